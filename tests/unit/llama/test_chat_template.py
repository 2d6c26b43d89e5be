"""Chat templates: what they are given, may do, and show about a model. Conversations: tests/proof."""

from typing import Any

import pytest

from duo.errors import PromptError
from duo.llama.chat_template import ChatTemplate
from tests.chat_templates import HERMES, OTHER, PLAIN

USER = {"role": "user", "content": "Hi <b>é</b>"}
CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": "é<"}}}
CALLED = {"role": "assistant", "content": "", "tool_calls": [CALL]}


def prompt(source: str, message: dict[str, Any] = USER) -> str:
    return ChatTemplate(source, name="m.gguf", bos="<s>", eos="</s>").render([message])


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", "<s>Hi <b>é</b></s>"),
        ("{{ tools is defined }}{{ functions is defined }}{{ tool_choice is defined }}", "FalseFalseFalse"),
        ("{% for tool in tools %}x{% endfor %}", ""),
        ("{% set a = [] %}{% set _ = a.append(1) %}{{ a | tojson }}", "[1]"),
        ("{{ {'b': 'é', 'a': '<'} | tojson(sort_keys=true, indent=1) }}", '{\n "a": "<",\n "b": "é"\n}'),
        ("{% generation %}{{ 1 }}{% endgeneration %}", "1"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% if true %}\n  {% if true %}\nx{% endif %}\n{% endif %}", "x"),
        ("{{ strftime_now('%%') }}", "%"),
    ],
)
def test_what_templates_expect(source: str, expected: str) -> None:
    assert prompt(source) == expected


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{{ raise_exception('no system messages') }}", "m.gguf: the chat template failed: no system messages"),
        ("{{ messages.nothing.at_all }}", "has no attribute 'nothing'"),
        ("{{ ''.__class__.__mro__ }}", "access to attribute '__class__'"),
        ("{% nothing %}", r"m\.gguf: the chat template failed: .*nothing"),
    ],
)
def test_a_template_that_fails(source: str, said: str) -> None:
    with pytest.raises(PromptError, match=said):
        prompt(source)


AS_TEXT = '{"a": 1, "b": "é<"}'


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("call.function.arguments | tojson", AS_TEXT),
        ("call.function.arguments", AS_TEXT),
        ("'' + call.function.arguments", AS_TEXT),
        ("call.function.arguments.items() | list", "[('a', 1), ('b', 'é<')]"),
        ("raise_exception('a string') if call.function.arguments is string else 'object'", "object"),
    ],
)
def test_arguments_are_given_as_the_template_takes_them(arguments: str, expected: str) -> None:
    """Also by one that writes the tools as Python does."""
    source = "{% for m in messages %}{% for call in m.tool_calls %}{{ ARGUMENTS }}{% endfor %}{% endfor %}"
    for tools in ("", "{% if tools %}{{ tools }}{% endif %}"):
        assert prompt(tools + source.replace("ARGUMENTS", arguments), CALLED) == expected


@pytest.mark.parametrize(
    ("source", "supports_tools", "has_json_calls", "has_thoughts"),
    [
        (HERMES, True, True, True),
        (OTHER, True, False, False),
        (PLAIN, False, False, False),
        ("{{ raise_exception('no') }}", False, False, False),
        (HERMES.replace('\\"name\\": ', "<function=").replace("<think>", "[think]"), True, False, False),
        (HERMES.replace("tool_call>", "function_call>"), True, False, True),
    ],
)
def test_what_a_template_shows(source: str, supports_tools: bool, has_json_calls: bool, has_thoughts: bool) -> None:
    template = ChatTemplate(source)
    assert (template.supports_tools, template.has_json_calls) == (supports_tools, has_json_calls)
    assert (template.thought is not None) == has_thoughts


@pytest.mark.parametrize(
    ("source", "is_on", "expected"),
    [
        ("x<think>", None, "x<think>"),
        ("x<think>", True, "x<think>"),
        ("x<think>\n\n", False, "x<think>\n\n</think>\n\n"),
        ("x[THINK]", False, "x[THINK]\n\n[/THINK]\n\n"),
        ("x{% if enable_thinking is false %}<think></think>{% endif %}", False, "x<think></think>"),
        ("x{# <think> #}", False, "x"),
        ("x", False, "x"),
    ],
)
def test_a_thought_that_the_prompt_begins_is_closed_where_none_is_wanted(
    source: str, is_on: bool | None, expected: str
) -> None:
    variables = {} if is_on is None else {"enable_thinking": is_on}
    assert ChatTemplate(source, variables=variables).render([USER]) == expected
    assert ChatTemplate(source).render([USER], options=variables) == expected
    assert ChatTemplate(source, variables={"enable_thinking": True}).render([USER], options=variables) == expected


def test_variables_are_overridden_by_those_of_a_request() -> None:
    template = ChatTemplate("{{ a }}{{ b }}{{ bos_token }}", bos="<s>", variables={"a": 1, "b": 2})
    assert template.render([USER]) == "12<s>"
    assert template.render([USER], options={"b": 3}) == "13<s>"
    with pytest.raises(PromptError, match="must not have 'bos_token'"):
        ChatTemplate("x", variables={"bos_token": ""})


@pytest.mark.parametrize("content", [5, [{"type": "text", "text": "a"}]])
def test_an_answer_that_does_not_begin_with_a_text(content: object) -> None:
    template = ChatTemplate("{% for message in messages %}<{{ message.content }}>{% endfor %}")
    with pytest.raises(PromptError, match=r"^the content of the last message must be a text to be continued, not "):
        template.render([{"role": "assistant", "content": content}], field="content")
    assert template.render([{"role": "assistant", "content": None}], field="content") == "<"
