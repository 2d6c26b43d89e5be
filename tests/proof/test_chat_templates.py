"""The chat templates of about seventy real models, which llama.cpp has as files, with conversations and tools."""

import json
from typing import Any

import pytest

from duo.errors import PromptError
from duo.llama.chat_template import ChatTemplate
from tests import vocabularies

# What a template refuses itself, and what it needs besides messages and tools.
REFUSED = {
    "fireworks-ai-llama-3-firefunction-v2": "'functions' is undefined",  # a text, instead of tools
    "google-gemma-2-2b-it": "System role not supported",
}
NEEDED = {"fireworks-ai-llama-3-firefunction-v2": {"functions": "[]", "datetime": "today"}}
# Templates that ignore tools (SmolLM3 has them in variables of its own), that show no calls, or no results.
WITHOUT_TOOLS = {
    "HuggingFaceTB-SmolLM3-3B", "deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
    "deepseek-ai-DeepSeek-V3.1", "fireworks-ai-llama-3-firefunction-v2", "google-gemma-2-2b-it", "llama-cpp-rwkv-world",
    "microsoft-Phi-3.5-mini-instruct",
}  # fmt: skip
WITHOUT_CALLS = {"LFM2-8B-A1B", "LFM2.5-Instruct", "ibm-granite-granite-3.3-2B-Instruct"}
HERMES = {  # calls as JSON between <tool_call> and </tool_call>
    "Bielik-11B-v3.0-Instruct", "MiMo-VL", "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", "Qwen-QwQ-32B",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "Qwen-Qwen2.5-7B-Instruct", "Qwen-Qwen3-0.6B", "Reka-Edge",
    "ibm-granite-granite-4.0", "ibm-granite-granite-4.1",
}  # fmt: skip

SYSTEM = {"role": "system", "content": "zq system"}
USER, AGAIN = ({"role": "user", "content": content} for content in ("zq user", "zq again"))
ANSWER = {"role": "assistant", "content": "zq answer"}
ARGUMENTS = {"place": "zq place", "count": 3}
CALL = {"id": "call00001", "type": "function", "function": {"name": "zq_tool", "arguments": ARGUMENTS}}
CALLED = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "call00001", "name": "zq_tool", "content": "zq result"}
PROPERTIES = {name: {"type": kind, "description": "?"} for name, kind in (("place", "string"), ("count", "integer"))}
PARAMETERS = {"type": "object", "properties": PROPERTIES, "required": ["place"]}
TOOL = {"type": "function", "function": {"name": "zq_tool", "description": "?", "parameters": PARAMETERS}}


@pytest.fixture(scope="module")
def sources(pytestconfig: pytest.Config) -> dict[str, str]:
    """The templates by their names."""
    texts = {path.stem: path.read_text() for path in vocabularies.fetch(pytestconfig).glob("*.jinja")}
    assert len(texts) >= 60
    return texts


def rendered(name: str, source: str, messages: list[dict[str, Any]], tools: Any = ()) -> str:
    template = ChatTemplate(source, name=name, bos="<s>", eos="</s>")
    if name not in REFUSED:
        return template.render(messages, tools)
    with pytest.raises(PromptError, match=REFUSED[name]):
        template.render(messages, tools)
    return template.render([m for m in messages if name in NEEDED or m is not SYSTEM], tools, NEEDED.get(name))


def test_conversations(sources: dict[str, str]) -> None:
    for name, source in sources.items():
        messages = [SYSTEM, USER, ANSWER, AGAIN]
        prompt = rendered(name, source, messages)
        shown = [m for m in messages if m["content"] in prompt or (m is SYSTEM and name in REFUSED)]
        assert shown == messages, name
        assert "zq" not in prompt.partition(AGAIN["content"])[2], f"{name}: the question is last"


def test_conversations_with_tools(sources: dict[str, str]) -> None:
    for name, source in sources.items():
        if name in WITHOUT_TOOLS:
            continue
        prompt = rendered(name, source, [SYSTEM, USER, CALLED, RESULT, ANSWER, AGAIN], [TOOL])
        for text in ("zq system", "zq user", "zq_tool", "zq result", "zq answer", "zq again"):
            assert text in prompt, f"{name}: {text}"
        assert ("zq place" in prompt) == (name not in WITHOUT_CALLS), name
        assert "{'place': 'zq" not in prompt, f"{name}: the arguments are as Python writes them"


def test_what_templates_show(sources: dict[str, str]) -> None:
    templates = {name: ChatTemplate(source) for name, source in sources.items()}
    assert {name for name, one in templates.items() if not one.supports_tools} == WITHOUT_TOOLS
    assert {name for name, one in templates.items() if one.has_json_calls} == HERMES
    for name in HERMES:
        prompt = templates[name].render([SYSTEM, USER, CALLED, RESULT], [TOOL])
        call = prompt.rpartition("<tool_call>\n")[2].partition("\n</tool_call>")[0]
        assert json.loads(call) == CALL["function"], name


def test_thoughts(sources: dict[str, str]) -> None:
    qwen3 = ChatTemplate(sources["Qwen-Qwen3-0.6B"])
    assert qwen3.thought is not None
    assert qwen3.render([USER]).endswith("<|im_start|>assistant\n")
    assert qwen3.render([USER], options={"enable_thinking": False}).endswith("<think>\n\n</think>\n\n")
    assert ChatTemplate(sources["deepseek-ai-DeepSeek-R1-Distill-Llama-8B"]).render([USER]).endswith("<think>\n")
    assert ChatTemplate(sources["Qwen-Qwen2.5-7B-Instruct"]).thought is None


def test_no_prompt_begins_a_thought_where_none_is_wanted(sources: dict[str, str]) -> None:
    """Most of the templates that begin one do not know the variable."""
    closed = set()
    for name, source in sources.items():
        template = ChatTemplate(source, variables={"enable_thinking": False})
        if template.thought is None:
            continue
        try:
            with_thought, without = (template.render([USER], options=o) for o in ({"enable_thinking": True}, None))
        except PromptError:
            continue
        assert not without.rstrip().endswith(template.thought.begin), name
        if without.rstrip().endswith(template.thought.end) and without.startswith(with_thought.rstrip()):
            closed.add(name)
    assert closed > {"deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "Qwen-QwQ-32B", "MiniMax-M2", "Qwen-Qwen3-0.6B"}
