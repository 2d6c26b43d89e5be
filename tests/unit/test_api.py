"""duo as a library: its names, the life of an engine and its streams, and what a generation takes."""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

import duo
import duo.llama.vocabulary
from duo.config import GenerationConfig, SamplingConfig, StopConfig
from duo.engine.request import Request, generation_config
from tests.gguf_files import N_CTX_TRAIN, tiny_gemma, tiny_hybrid, tiny_llama, tiny_qwen35
from tests.scripted import BOS, N_STEP, TEXT, ScriptedSlot, scripted_engine, tokens_of

MESSAGES = [{"role": "user", "content": "the cat"}]
CIRCULAR: dict[str, Any] = {}
CIRCULAR["properties"] = {"a": CIRCULAR}
TEMPLATE = "{% for message in messages %}{{ message.role[0] }} {{ message.content }} {% endfor %}"


def text_of(steps: Iterable[duo.Step]) -> str:
    return "".join(step.text for step in steps)


# The names


def test_the_public_names() -> None:
    names = (
        "BranchStatistics BusyError ClosedError Completion DecodeError DeviceError DownloadError DraftStatistics "
        "DuoError Engine GenerationStatistics Lead LookupStatistics MemoryLimitError ModelError PromptError "
        "PromptStatistics Source Statistics Step Stream TokenLogprobs UsageError load"
    )
    assert duo.__all__ == names.split()
    found = {name: getattr(duo, name).__name__ for name in duo.__all__}
    assert found == {name: name for name in duo.__all__} | {"Source": "Origin"}
    with pytest.raises(AttributeError, match="module 'duo' has no attribute 'nonsense'"):
        duo.nonsense  # type: ignore[attr-defined]  # noqa: B018


# Streams, of a scripted engine


@pytest.fixture
def engine() -> Iterator[duo.Engine]:
    with scripted_engine()[0] as engine:
        yield engine


@pytest.fixture
def slot(engine: duo.Engine) -> ScriptedSlot:
    return cast("ScriptedSlot", engine.slot)


def test_a_chat_applies_the_template(engine: duo.Engine, slot: ScriptedSlot) -> None:
    prompt = "<user>the cat<assistant>"
    assert engine.apply_chat_template(MESSAGES) == prompt
    assert engine.chat(MESSAGES).text == text_of(engine.stream_chat(MESSAGES)) == TEXT
    assert engine.chat("the cat").text == TEXT, "a string is a message of the user"
    assert [request.prompt for request in slot.requests] == [[BOS, *tokens_of(prompt)]] * 3
    assert engine.chat([*MESSAGES, {"role": "assistant", "content": "It sat"}]).text == TEXT
    assert slot.requests[-1].prompt == [BOS, *tokens_of(prompt + "It sat")], "an answer that is begun is continued"


def test_a_text_within_the_loop_over_another(engine: duo.Engine) -> None:
    outer = ""
    for step in engine.stream("a"):
        if not outer:
            with ThreadPoolExecutor(4) as pool:
                texts = list(pool.map(lambda n: engine.generate("a", max_tokens=n).text, range(1, 5)))
            assert texts == [TEXT[:n] for n in range(1, 5)], "each has its own steps"
        outer += step.text
    assert outer == TEXT


def test_closing_or_dropping_a_stream_ends_the_text(engine: duo.Engine, slot: ScriptedSlot) -> None:
    slot.hold(n_free=1)
    stream, waiting = engine.stream("a"), engine.stream("b")
    assert next(stream).text == TEXT[:N_STEP]
    waiting.close()
    stream.close()
    assert list(stream) == list(waiting) == []
    assert stream.statistics.generation.stop == waiting.statistics.generation.stop == "interrupted"
    assert len(slot.requests) == 1, "a text that is closed in the queue is never begun"
    for _ in engine.stream("a"):
        break
    engine.call(lambda _: None)  # after that text
    assert engine.statistics is not None
    assert engine.statistics.generation.stop == "interrupted"
    slot.go_on()
    assert engine.generate("a").text == TEXT


def test_an_interrupt_ends_the_running_text_only(engine: duo.Engine, slot: ScriptedSlot) -> None:
    engine.interrupt()  # of nothing
    slot.hold(n_free=1)
    stream, waiting = engine.stream("a"), engine.stream("b")
    next(stream)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(engine.interrupt)
    assert stream.completion().stop_reason == "interrupted"
    slot.go_on()
    assert text_of(waiting) == TEXT


def test_an_error_is_raised_where_the_steps_are_iterated_over(
    engine: duo.Engine, slot: ScriptedSlot, caplog: pytest.LogCaptureFixture
) -> None:
    for error in (duo.DecodeError("no memory"), RuntimeError("the sky is falling")):
        slot.error, slot.error_at = error, 1
        stream = engine.stream("a")
        assert next(stream).text == TEXT[:N_STEP]
        with pytest.raises(type(error), match=str(error)):
            next(stream)
        slot.error = None
        assert engine.generate("a").text == TEXT
    (record,) = caplog.records
    assert record.exc_info is not None, "only what is unexpected is logged"


def test_asyncio(engine: duo.Engine, slot: ScriptedSlot) -> None:
    """Two texts of one event loop, one that is left early, and one that fails."""

    async def text() -> str:
        return "".join([step.text async for step in engine.astream("a")])

    async def everything() -> list[str]:
        steps = cast("Any", engine.astream("a", ignore_eos=True))
        async for _ in steps:
            break
        await steps.aclose()
        return list(await asyncio.gather(text(), text()))

    assert asyncio.run(everything()) == [TEXT, TEXT]
    slot.error = duo.PromptError("too long")
    with pytest.raises(duo.PromptError, match="too long"):
        asyncio.run(text())


def test_closing_an_engine_ends_its_texts(engine: duo.Engine, slot: ScriptedSlot) -> None:
    slot.hold(n_free=1)
    stream, waiting = engine.stream("a"), engine.stream("b")
    next(stream)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(engine.close)
    assert list(stream) == list(waiting) == []
    assert stream.statistics.generation.stop == "interrupted"
    engine.close()
    engine.interrupt()
    for use in (engine.stream, engine.generate, engine.chat, engine.stream_chat, engine.astream, engine.tokenize):
        with pytest.raises(duo.ClosedError, match="the engine is closed"):
            use("a")


# What a generation takes, with tiny models


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duo.Engine]:
    folder = tmp_path_factory.mktemp("tiny")
    pair = tiny_llama(folder / "target.gguf", depth=0.3), tiny_llama(folder / "draft.gguf", depth=0.1)
    with duo.load(*pair, exact=True, n_threads=1, draft_n_threads=1, profile=False) as engine:
        yield engine


@pytest.mark.parametrize(
    ("given", "sampling", "stop"),
    [
        ({"max_tokens": 7, "stop": "x", "ignore_eos": True}, {}, StopConfig(7, ("x",), True)),
        ({"max_tokens": None, "stop": ["x", "y"]}, {}, StopConfig(-1, ("x", "y"))),
        ({"temperature": 0.5, "typical_p": 0.25}, {"temp": 0.5, "typical": 0.25}, StopConfig()),
        ({"logit_bias": {7: 1.5}}, {"logit_bias": ((7, 1.5),)}, StopConfig()),
        ({"samplers": ["top_k"]}, {"samplers": ("top_k",)}, StopConfig()),
    ],
)
def test_keywords(given: dict[str, Any], sampling: dict[str, Any], stop: StopConfig) -> None:
    assert generation_config(seed=1, **given) == GenerationConfig(SamplingConfig(seed=1, **sampling), stop)


@pytest.mark.parametrize("options", [{}, {"temperature": 0.8}, {"temperature": 0.8, "verify": "rejection"}])
def test_logprobs_are_of_the_models_own_probabilities(tiny: duo.Engine, options: Any) -> None:
    """Before bias, temperature and what is never chosen."""
    plain = tiny.generate("a", max_tokens=20, ignore_eos=True, seed=1, logprobs=3, **options)
    assert [(one.token, len(one.top)) for one in plain.logprobs] == [(token, 3) for token in plain.tokens]
    (likely, most), (_, less), _ = plain.logprobs[0].top
    assert most > less
    (biased,) = tiny.generate("a", max_tokens=1, seed=1, logprobs=3, logit_bias={likely: -100}, **options).logprobs
    assert (biased.top, biased.token != likely) == (plain.logprobs[0].top, True)
    assert tiny.generate("a", max_tokens=5, **options).logprobs == ()


def test_the_scores_of_a_text_are_the_logprobs_that_it_was_written_with(tiny: duo.Engine) -> None:
    prompt = tiny.tokenize("a")
    options: Any = {"max_tokens": 200, "ignore_eos": True, "temperature": 1.0, "seed": 1}
    written = tiny.generate(prompt, logprobs=3, **options)
    found = tiny.score([*prompt, *written.tokens], logprobs=3)
    assert [one.token for one in found] == [*prompt[1:], *written.tokens]
    for one, other in zip(found[len(prompt) - 1 :], written.logprobs, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert [token for token, _ in one.top] == [token for token, _ in other.top]
    assert tiny.score("a b")[0].top == ()
    assert tiny.score([5]) == ()


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(
    "make", [tiny_llama, partial(tiny_gemma, window=16), tiny_hybrid, partial(tiny_qwen35, mtp=True)]
)
def test_scores_do_not_depend_on_what_is_in_the_cache(
    tmp_path: Path, make: Callable[[Path], Path], exact: bool
) -> None:
    n = 150
    one, other = list(range(3, n + 3)), list(range(3, 103)) + [7] * (n - 100)
    options: Any = {"exact": exact, "n_threads": 1, "n_ctx": 256, "profile": False, "lookup": "off"}
    with duo.load(make(tmp_path / "tiny.gguf"), **options) as llm:
        alone = {logprobs: llm.score(one, logprobs) for logprobs in (0, 2)}
        text = llm.generate(one, max_tokens=20, ignore_eos=True).tokens
        for before in ([one], [other], [other, one], [one[:97]], [one, other]):
            for logprobs in (0, 2):
                for prompt in before:
                    llm.score(prompt, logprobs)
                assert llm.score(one, logprobs) == alone[logprobs]
            llm.generate(before[0], max_tokens=3)
            assert llm.score(one) == alone[0]
            if exact:
                assert llm.generate(one, max_tokens=20, ignore_eos=True).tokens == text


def test_what_has_been_scored_is_not_decoded_again(tiny: duo.Engine) -> None:
    prompt = list(range(3, 90))
    tiny.score(prompt[:70])
    for tokens, n_cached in ((prompt[:70], 64), (prompt, 64), (prompt[:66], 64), (prompt[:65], 32), ([9, *prompt], 0)):
        stream = tiny.start(Request(tokens, generation_config(max_tokens=0, logprobs=0), scored=[]))
        stream.completion()
        assert stream.request.n_cached == n_cached
        tiny.score(prompt[:70])


def test_a_prompt_is_read_also_where_no_token_is_wanted(tiny: duo.Engine) -> None:
    prompt = list(range(3, 60))
    assert tiny.generate(prompt, max_tokens=0).tokens == ()
    stream = tiny.start(Request(prompt, generation_config(max_tokens=1)))
    stream.completion()
    assert stream.request.n_cached == len(prompt) - 1


def test_a_score_that_is_cancelled_is_an_error() -> None:
    engine, slot = scripted_engine()
    with engine, ThreadPoolExecutor() as pool:
        slot.hold()
        running, waiting = engine.stream("a"), pool.submit(engine.score, "a b c")
        while len(engine.scheduler.requests) < 2:
            time.sleep(0.001)
        engine.close()
        with pytest.raises(duo.DuoError, match="was not read to its end"):
            waiting.result()
        assert not list(running)


def test_a_seed(tiny: duo.Engine) -> None:
    options: Any = {"max_tokens": 40, "ignore_eos": True, "temperature": 1.0}
    found = [tiny.generate("a", seed=seed, **options).tokens for seed in (5, 5, 6, None, None)]
    assert found[0] == found[1]
    assert len({*found}) == 4


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("logit_bias", {10**6: 1.0}), ("stop", ""), ("json_schema", "{"), ("json_schema", {"type": 1}),
        # Of another type.
        ("seed", "x"), ("seed", 1.5), ("stop", 5), ("stop", [5]), ("temperature", [1]), ("max_tokens", "3"),
        ("samplers", 3), ("samplers", "top_k"), ("grammar", 4), ("logit_bias", 3), ("logit_bias", {"a": 1}),
        ("logit_bias", {1: "a"}), ("json_schema", 3), ("json_schema", {"const": {1, 2}}), ("json_schema", CIRCULAR),
        ("ignore_eos", "no"), ("stop", "\ud800"),
    ],
)  # fmt: skip
def test_options_out_of_range(parameter: str, value: object, tiny: duo.Engine) -> None:
    with pytest.raises(duo.UsageError, match=f"^{parameter}") as raised:
        tiny.generate("a", **{parameter: cast("Any", value)})
    assert raised.value.parameter == parameter
    assert len(tiny.generate("a", max_tokens=3, ignore_eos=True).tokens) == 3, "the next one works"


def test_unknown_keywords(engine: duo.Engine) -> None:
    unknown: Any = {"temp": 5}
    for method in (engine.stream, engine.generate, engine.astream):
        with pytest.raises(TypeError, match="'temp'; similar: temperature"):
            method("a", **unknown)
    with pytest.raises(TypeError, match="'temp'"):
        duo.load("a", **unknown)


@pytest.mark.parametrize(("name", "value"), [
    ("lookup", False), ("schedule", None), ("n_ctx", "5"), ("rpc_servers", "a:1"), ("rpc_servers", 5),
    ("tensor_split", "1"), ("devices", "none"), ("cpu_range", 3), ("exact", "yes"), ("use_mmap", "off"), ("profile", 2),
    ("chat_template_kwargs", "{}"), ("override_tensor", "exps=CPU"), ("cpu_moe", "all"), ("n_cpu_moe", 1.5),
])  # fmt: skip
def test_settings_of_another_type(name: str, value: object) -> None:
    with pytest.raises(duo.UsageError, match=f"^{name} must "):
        duo.load("a", **{name: cast("Any", value)})


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ("", "the prompt .* no tokens|empty"),
        ([1, 10**12], r"no token 10{12} in a vocabulary of \d+"),
        ("a" * 2**21, r"the prompt has 2097152 bytes, too many for a context of 512 tokens"),
        ("a" * N_CTX_TRAIN, r"the prompt has 513 tokens, the context 512 \(what the model was trained for\)"),
        *((prompt, "^a prompt is a text or token ids, not ") for prompt in (5, None, b"a", ["a"], [[1]], [1.5])),
    ],
)
def test_prompts_that_cannot_be_used(prompt: Any, said: str, tiny: duo.Engine) -> None:
    with pytest.raises(duo.PromptError, match=said):
        tiny.generate(prompt)
    with pytest.raises(duo.PromptError, match="messages are dicts in a list, or a text, not"):
        tiny.chat([1])  # type: ignore[list-item]


def test_a_file_has_no_chat_template_or_another_one_for_tools(tiny: duo.Engine, tmp_path: Path) -> None:
    with pytest.raises(duo.PromptError, match="has no chat template"):
        tiny.chat(MESSAGES)
    templates = [{"name": "default", "template": TEMPLATE}, {"name": "tool_use", "template": "{{ tools[0].type }}"}]
    path = tiny_llama(tmp_path / "model.gguf", chat_template=templates)
    with duo.load(path, n_threads=1, profile=False) as engine:
        assert engine.apply_chat_template(MESSAGES) == "u the cat "
        assert engine.apply_chat_template(MESSAGES, [{"type": "function", "function": {"name": "f"}}]) == "function"
