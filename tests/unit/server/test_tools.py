"""Tools: which a request may have, and the grammar of an answer that calls them."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from duo.chat.conversation import Function
from duo.chat.prompt import Calls
from duo.config import ModelConfig
from duo.errors import ApiError, UsageError
from duo.llama.grammar import Grammar, schema_grammar, until
from duo.llama.model import Model
from duo.server.api import ChatBody, Tool
from tests.gguf_files import tiny_llama

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "day": {"$ref": "#/$defs/Day"}},
    "required": ["city"],
    "$defs": {"Day": {"type": "integer"}},
}
PLAN = WEATHER | {  # its Day is another one
    "properties": {"day": {"$ref": "#/$defs/Day"}, "root ::=": {"enum": ["root |", "["]}},
    "required": ["day"],
    "$defs": {"Day": {"enum": ["Monday", "Tuesday"]}},
}
FUNCTIONS = {"get_weather": WEATHER, "plan": PLAN, "now": None}


def tools(functions: dict[str, Any]) -> list[Tool]:
    given = [{"type": "function", "function": {"name": name, "parameters": functions[name]}} for name in functions]
    return msgspec.convert(given, list[Tool])


def calls(choice: Any = "auto", *, is_parallel: bool = True) -> Calls:
    found = Calls.of(
        ChatBody(tools=tools(FUNCTIONS), tool_choice=choice, parallel_tool_calls=is_parallel).conversation()
    )
    assert found is not None
    return found


def call(name: str, **arguments: Any) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


WORDS = ("▁", "<<")
TAGS = ("<tool_call>", "</tool_call>", "<think>", "</think>")
FIRST_BYTE, FIRST_WORD = 3, 259
SPELT = {text.encode(): FIRST_WORD + i for i, text in enumerate((*WORDS, *TAGS))}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """Its tokens are bytes, `<<` and tags."""
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    with closing(Model(ModelConfig(tiny_llama(path, words=WORDS, control=TAGS)), vocabulary_only=True)) as loaded:
        assert all(loaded.spelling([token]) == text for text, token in list(SPELT.items())[1:])
        yield loaded


Rest = Callable[..., str]


@pytest.fixture(scope="module")
def rest(model: Model) -> Rest:
    """Applies a grammar to a text: what is left of it where it is not allowed, and `|` if it must not end there."""

    def apply(grammar: str, text: str, *, tags: bool = True) -> str:
        data = text.encode()
        pieces = re.findall(rb"</?tool_call>|</?think>|<<|." if tags else b".", data, re.DOTALL)
        applied = Grammar(model, grammar)
        for i, piece in enumerate(pieces):
            token = SPELT.get(piece, FIRST_BYTE + piece[0])
            if not applied.allows(token):
                return b"".join(pieces[i:]).decode("utf-8", "replace")
            applied.accept(token)
        return "" if applied.allows(model.eos) else "|"

    return apply


# Which calls a request allows


def test_names_that_are_refused() -> None:
    for name in ("", "a b", 'a"', "a\\", "é", "a" * 129, "a\n"):
        with pytest.raises(msgspec.ValidationError):
            tools({name: None})


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"type": "string"}, "tools: the parameters of 'f' must be a JSON schema of type object"),
        ({"type": ["object", "null"]}, "must be a JSON schema of type object"),
        ({"properties": {"a": {"type": "nonsense"}}}, "the parameters of the tools is an invalid or unsupported JSON"),
        ({"properties": {"a": {"$ref": "#/$defs/None"}}}, "Pointer .* does not exist"),
        ({"description": "a" * 2**18}, "the parameters of the tools has more than 262144 bytes"),
    ],
)
def test_parameters_that_are_refused(parameters: dict[str, Any], said: str) -> None:
    found = Calls.of(ChatBody(tools=tools({"f": parameters})).conversation())
    assert found is not None
    with pytest.raises((ApiError, UsageError), match=said):
        found.grammar(None)


# What a grammar allows

NOW, PARIS = call("now"), call("get_weather", city="Paris\\n\N{EURO SIGN}", day=3)
MONDAY = call("plan", **{"day": "Monday", "root ::=": "root |"})
ENDS = "\n</tool_call>"


@pytest.mark.parametrize("text", ["", "Hi", "<", "<tool_cal", "<tool_call x", "</tool_call>", "<think>", "<<", "\n\n"])
def test_text_is_free_where_calls_are(rest: Rest, text: str) -> None:
    grammar = calls().grammar(None)
    assert rest(grammar, text) == ""
    for one in (NOW, PARIS, MONDAY):
        assert rest(grammar, text + one) == ""
        assert rest(grammar, f"{text}{one}\n{NOW}\n{one}") == ""
    assert rest(grammar, f"{text}{NOW} and") == " and"
    assert rest(calls(is_parallel=False).grammar(None), f"{text}{NOW}\n{NOW}") == f"\n{NOW}"


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("<tool_call>{", "{"),
        ('<tool_call>\n{"name": "nothing"', 'thing"'),
        ('<tool_call>\n{"arguments"', 'arguments"'),
        (call("now", a=1), '"a": 1}}' + ENDS),
        (call("get_weather", day=3), "day" + '": 3}}' + ENDS),
        (call("get_weather", city="a", day="Monday"), '"Monday"}}' + ENDS),
        (call("plan", day=3), "3}}" + ENDS),
        (call("get_weather", city="a\n").replace("\\n", "\n"), '\n"}}' + ENDS),
    ],
)
def test_what_a_call_must_be(rest: Rest, choice: str, text: str, left: str) -> None:
    grammar = calls(choice).grammar(None)
    assert rest(grammar, text) == left
    assert rest(grammar, text, tags=False) == left, "tags may be spelt"


def test_a_required_call(rest: Rest) -> None:
    grammar = calls("required").grammar(None)
    assert rest(grammar, "") == "|"
    assert rest(grammar, "Hi") == "Hi"
    assert rest(grammar, f"{PARIS}\n{NOW}") == ""
    named = calls(Tool(Function("get_weather"))).grammar(None)
    assert rest(named, PARIS) == ""
    assert rest(named, NOW) == 'now", "arguments": {}}' + ENDS
    for grammar in (named, calls("required", is_parallel=False).grammar(None)):
        assert rest(grammar, f"{PARIS}\n{PARIS}") == f"\n{PARIS}"


LITERALS = ("<tool_call>", "</think>", "aabaaab")


@given(st.sampled_from(LITERALS), st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_up_to_a_literal(rest: Rest, literal: str, data: st.DataObject) -> None:
    pieces = st.sampled_from([*literal, *(literal[:n] for n in range(1, len(literal))), "x", "é", "<<", "aab"])
    text = "".join(data.draw(st.lists(pieces, max_size=12)))
    _, found, after = text.partition(literal)
    before = f"{text}{literal}".partition(literal)[0]  # the end of the text may be the beginning of the literal
    for may_end in (False, True):
        rules = [f"start: T {json.dumps('!')}{' | NO_T' * may_end}", *until("T", literal)]
        grammar = "\n".join(["%llguidance {}", *rules])
        ending = "" if may_end else "|"
        assert rest(grammar, before) == ending
        assert rest(grammar, f"{before}{literal}!") == ""
        assert rest(grammar, f"{before}{literal}x") == "x"
        assert rest(grammar, text) == ((after or "|") if found else ending)


def test_a_schema_of_the_answer_beside_the_calls(rest: Rest) -> None:
    schema = {"type": "object", "properties": {"fruit": {"enum": ["apple", "pear"]}}, "required": ["fruit"]}
    fruit = '{"fruit": "pear"}'
    for thinks in (None, False, True):
        grammar = calls().grammar(thinks, content=schema)
        before = "So.</think>\n\n" if thinks else ""
        for text in (fruit, NOW, f"{NOW}\n{PARIS}"):
            assert rest(grammar, before + text) == ""
        assert rest(grammar, before + "Hi") == "Hi"
        assert rest(grammar, before + '{"fruit": "plum"}') == 'lum"}'
        if thinks is False:
            assert rest(grammar, f"<think>A {NOW}</think>{fruit}") == ""
    required = calls("required").grammar(None, content=schema)
    assert rest(required, NOW) == ""
    assert rest(required, fruit) == fruit


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"enum": ['a"b', "c\\d", "e\nf"]}, ['"a\\"b"', '"c\\\\d"', '"e\\nf"'], ['"a"', '"ab"']),
        ({"enum": ["é", "中文"]}, ['"é"', '"中文"'], ['"e"']),
        ({"type": ["object"], "properties": {"b": {"type": "null"}}, "required": ["b"]}, ['{"b":null}'], ["{}"]),
        ({"type": "array", "items": True}, ["[]", '[1,"a"]'], ["{}"]),
        ({"allOf": [{"enum": ["a"]}], "default": "a"}, ['"a"'], ["{}"]),
        ({"const": '"'}, ['"\\""'], ['"']),
        ({"description": "anything"}, ["1", '"a"', "null", "[]", "{}", "true"], ["a"]),
        (True, ["1", "{}"], ["a"]),
        ({"type": ["string", "null"], "enum": ["a", None, 1]}, ['"a"', "null"], ["1"]),
        ({"type": ["object", "null"], "properties": {"b": {"type": "null"}}}, ["null", '{"b":null}'], ['{"b":1}']),
        ({"type": "string", "maxLength": 10**6}, ['"a"'], ["1"]),
        ({"type": "object", "properties": {"title": {"type": "null"}, 'q"': {"type": "null"}}},
         ['{"title":null}', '{"q\\"":null}'], ['{"title":1}']),
        ({"type": "string", "pattern": "^a+$", "minLength": 2}, ['"aa"'], ['"a"', '"ab"']),
        ({"type": "string", "format": "date"}, ['"2026-11-26"'], ['"2026-13-26"']),
        ({"type": "integer", "minimum": 3, "multipleOf": 2}, ["4", "12"], ["2", "5"]),
        ({"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#/properties/x"}}]}, ["[[null]]"], ["[1]"]),
        ({"properties": {"a": {"type": "null"}}}, ['{"a":null,"b":1}', '{"b":1}'], ['{"a":1}']),
        ({"type": "object", "properties": {"a": {}}}, ['{"a":1}'], ['{"a":1,"b":1}', '{"b":1}']),
        ({"type": "object", "properties": {"a": {}}, "additionalProperties": {}}, ['{"b":1}'], ["1"]),
        ({"type": "object", "properties": {"enum": {"type": "object", "properties": {}}}}, ['{"enum":{}}'],
         ['{"enum":{"a":1}}', '{"enum":1}']),
        ({"type": "object"}, ['{"a":1}'], ["1"]),
        ({"type": ["object", "null"], "properties": {"a": {}}}, ["null", '{"a":1}'], ['{"b":1}']),
        ({"type": "object", "properties": {"a": {}}, "required": ["b"]}, ['{"a":1,"b":1}'], ['{"a":1}']),
        ({"allOf": [{"type": "object", "properties": {name: {}}, "required": [name]} for name in "ab"]},
         ['{"a":1,"b":1}'], ['{"a":1}']),
        ({"type": "object", "properties": {"a": {}}, "anyOf": [{"type": "object", "properties": {"b": {}}}, {}]},
         ['{"a":1,"b":1}'], ["1"]),
        ({"$schema": "http://json-schema.org/schema#", "type": "null"}, ["null"], ["1"]),
        ({"properties": {"a": {}}, "additionalProperties": False}, ['{"a":1}'], ['{"b":1}']),
        ({"type": "string"}, ['"\\u20ac"', '"\\n"'], ['"\n"', '"\\x"']),
        ({"type": "array", "items": {}}, ["[1, 2]", "[\n  1\n]"], ["[  1]"]),
    ],
)  # fmt: skip
def test_schemas_of_properties(rest: Rest, schema: Any, right: list[str], wrong: list[str]) -> None:
    whole = {"type": "object", "properties": {"x": schema}, "required": ["x"]}
    grammar = schema_grammar(json.dumps(whole), "x")
    for value in right:
        assert rest(grammar, f'{{"x":{value}}}') == ""
    for value in wrong:
        assert rest(grammar, f'{{"x":{value}}}')


UNKNOWN: tuple[dict[str, Any], ...] = (
    {"uniqueItems": True},
    {"not": {"multipleOf": 2}},
    {"contains": {}},
)


@pytest.mark.parametrize("schema", UNKNOWN, ids=str)
def test_what_grammars_cannot_express(rest: Rest, schema: dict[str, Any]) -> None:
    """A schema for the answer is obeyed or refused; one of arguments is also read by the model."""
    with pytest.raises(UsageError, match=r"^x is an invalid or unsupported JSON schema: [^\n]+$"):
        schema_grammar(json.dumps(schema), "x")
    found = Calls.of(ChatBody(tools=tools({"f": {"properties": {"a": schema}}})).conversation())
    assert found is not None
    assert rest(found.grammar(None), call("f", a=None)) == ""


AGENTS: tuple[tuple[dict[str, Any], Any], ...] = (
    ({"type": "string", "format": "email", "pattern": r"^(?!\.)(?!.*\.\.)[a-z]+@[a-z.]+$"}, "a@b.c"),
    ({"type": "string", "pattern": r"^(a)\1$"}, "aa"), ({"type": "integer", "minimum": -(2**63)}, -5),
    ({"oneOf": [{"type": "string"}, {"type": "string", "minLength": 3}]}, "abc"),
    ({"$schema": "https://example.com/mine", "type": "null"}, None),
)  # fmt: skip


@pytest.mark.parametrize(("schema", "value"), AGENTS, ids=range(len(AGENTS)))
def test_parameters_of_agents(rest: Rest, schema: dict[str, Any], value: Any) -> None:
    found = Calls.of(ChatBody(tools=tools({"f": {"properties": {"a": schema}}})).conversation())
    assert found is not None
    assert rest(found.grammar(None), call("f", a=value)) == ""


def test_the_answer_beside_calls_is_held_to_its_schema(rest: Rest) -> None:
    grammar = calls().grammar(None, content={})
    assert rest(grammar, '{"a": 1}') == ""
    assert rest(grammar, "1") == "1"
    with pytest.raises(UsageError, match=r"^the schema is an invalid or unsupported JSON schema: contains$"):
        calls().grammar(None, content={"contains": {}})


def test_a_deep_schema_takes_no_time() -> None:
    """Twice as long for each level would be years."""
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(60):
        schema = {"type": "object", "properties": {"a": schema}, "$defs": {"a": schema}}
        schema.pop("$defs") if len(json.dumps(schema)) > 9000 else None
    with suppress(UsageError):
        schema_grammar(json.dumps(schema), "x")


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ('{"pattern": "^(?=a)b$"}', "regex parse error: look-around, including"),
        ('{"pattern": "("}', "regex parse error: unclosed group"),
        ('{"oneOf": [{"type": "string"}, {"pattern": "a"}]}', "oneOf: several may hold at once: use anyOf"),
        ('{"const": NaN}', "is not valid JSON"),
        ('{"type": "object", "properties": {}, "required": [[]]}', "is an invalid or unsupported JSON schema"),
    ],
)
def test_the_reason_is_told_in_one_line(schema: str, said: str) -> None:
    with pytest.raises(UsageError, match=f"^x .*{said}[^\n]*$"):
        schema_grammar(schema, "x")


def test_a_schema_that_takes_too_long() -> None:
    with pytest.raises(UsageError, match=r"^x takes longer than 1 s as a grammar: simplify"):
        schema_grammar('{"type": "integer", "multipleOf": 999983}', "x")


def test_lark_of_a_user(rest: Rest) -> None:
    for head in ("%llguidance {}", "%llguidance", '%llguidance {"no_forcing": false}'):
        assert rest(head + '\nstart: "a" /[bc]+/', "abcb") == ""
        assert rest(head + '\nstart: "a" /[bc]+/', "a") == "|"
    for wrong, said in (("start: nothing", "nothing"), ('line: "a"', "start"), ("{", "")):
        with pytest.raises(UsageError, match=f"^the grammar is invalid: .*{said}"):
            rest(f"%llguidance {{}}\n{wrong}", "a")
    with pytest.raises(UsageError, match=r"^the grammar is invalid: "):
        rest("%llguidance [1]\nstart: 'a'", "a")
