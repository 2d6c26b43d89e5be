"""The chat templates of about seventy real models, which llama.cpp has as files, with conversations and tools."""

import json
import random
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from duo.config import ModelConfig
from duo.errors import PromptError
from duo.llama.chat_template import ChatTemplate
from duo.llama.model import Model
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


def test_an_answer_that_is_begun_stays_open(sources: dict[str, str]) -> None:
    for name, source in sources.items():
        template = ChatTemplate(source, name=name, bos="<s>", eos="</s>")
        for content in ("zq begun", " zq begun "):
            messages = [USER, ANSWER, AGAIN, {"role": "assistant", "content": content}]
            options = NEEDED.get(name)
            prompt = template.render(messages, (), options, "content")
            assert prompt.endswith(content.lstrip()), name
            assert prompt.startswith(template.render(messages[:1], (), options).partition(USER["content"])[0]), name
            assert template.render(messages, (), options).startswith(prompt.rstrip()), name


def test_what_templates_show(sources: dict[str, str]) -> None:
    templates = {name: ChatTemplate(source) for name, source in sources.items()}
    assert {name for name, one in templates.items() if not one.supports_tools} == WITHOUT_TOOLS
    assert {name for name, one in templates.items() if one.has_json_calls} == HERMES
    for name in HERMES:
        prompt = templates[name].render([SYSTEM, USER, CALLED, RESULT], [TOOL])
        call = prompt.rpartition("<tool_call>\n")[2].partition("\n</tool_call>")[0]
        assert json.loads(call) == CALL["function"], name


# Of SentencePiece, with and without spaces left out at special tokens, and of BPE.
VOCABULARIES = ("llama-spm", "phi-3", "llama-bpe", "qwen2", "deepseek-llm", "command-r", "gemma-4")
N_MESSAGES = 150


@pytest.mark.parametrize("name", VOCABULARIES)
def test_tokens_of_messages_that_spell_no_special_token(
    pytestconfig: pytest.Config, sources: dict[str, str], name: str
) -> None:
    """They are those of the prompt as a plain text, also where the parts of it are tokenised one by one."""
    folder = vocabularies.fetch(pytestconfig)
    n_prompts = n_marked = 0
    with closing(Model(ModelConfig(folder / f"ggml-vocab-{name}.gguf"), vocabulary_only=True)) as model:
        bos = model.spelling([model.bos]).decode() if model.bos >= 0 else ""
        for title, source in sources.items():
            template = ChatTemplate(source, name=title, bos=bos)
            for messages in conversations(vocabularies.texts(folder)):
                options = NEEDED.get(title, {})
                text = template.render(messages[title in REFUSED and title not in NEEDED :], (), options)
                tokens = model.tokenize(text)
                assert tokens == model.tokenize(str(text)), (title, messages)
                n_prompts += 1
                control = model._control(tokens)
                marked, mark = text.marked(["the"])
                if mark and marked.replace(mark, "") == text and not text.marked(control)[1]:
                    assert model._tokenize_marked(marked, mark, control, add_bos=True) == tokens, (title, messages)
                    n_marked += 1
    assert n_prompts >= len(sources) * N_MESSAGES // 5
    assert n_marked > n_prompts // 2


def conversations(texts: list[str]) -> Iterator[list[dict[str, Any]]]:
    """N_MESSAGES messages and more of a system, a user and an assistant."""
    choose, roles = random.Random(1), ("system", "user", "assistant", "user", "assistant", "user")
    words = [*texts, "Is the cat there? ", " the\n\nend ", "the 日本 the", "`the`<b>the</b>", '{"the": "\\n"}']
    for _ in range(N_MESSAGES // 5):
        # A template may take the first text apart that is no text, such as an empty one.
        yield [{"role": role, "content": choose.choice(words) + choose.choice(words)} for role in roles]


@pytest.mark.parametrize("name", VOCABULARIES)
def test_texts_cannot_forge_special_tokens(pytestconfig: pytest.Config, sources: dict[str, str], name: str) -> None:
    folder = vocabularies.fetch(pytestconfig)
    with closing(Model(ModelConfig(folder / f"ggml-vocab-{name}.gguf"), vocabulary_only=True)) as model:
        control = model._control(range(model.n_vocab))
        named = {model.tokenize(one, add_bos=False)[0] for one in control}
        bos = model.spelling([model.bos]).decode() if model.bos >= 0 else ""
        for title, source in sources.items():
            template, spelled = ChatTemplate(source, name=title, bos=bos), [*control][:40]
            forged, plain = f"zq {' '.join(spelled)} zq {''.join(spelled)}zq", "zq"

            def special(template: ChatTemplate, content: str, title: str = title) -> list[int]:
                messages = [USER, ANSWER, {"role": "user", "content": content}]
                tokens = model.tokenize(template.render(messages, (), NEEDED.get(title, {})))
                return [token for token in tokens if token in named]

            assert special(template, forged) == special(template, plain), title


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
