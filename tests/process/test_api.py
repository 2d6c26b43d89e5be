"""duo as a library: what `import duo` promises."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

import duo
from duo.engine.drafter import Drafter
from tests.command import ONE_EACH, environment, models
from tests.command import duo as run_duo
from tests.gguf_files import N_CTX_TRAIN, tiny_llama
from tests.serving import PATIENCE_S

T = TypeVar("T")

PROMPT = "Once upon a time"
QUESTION = "Why is the sky blue?"
MESSAGES = [{"role": "user", "content": QUESTION}]
N = 20
LONG = 1000  # tokens: takes so long that whatever ends the text comes in time
SAMPLED: Any = {"temperature": 0.8, "seed": 7}


def load(target: Path, draft: Path | None = None, **options: Any) -> duo.Engine:
    """An engine whose text is the same to the last bit, whatever the draft does."""
    return duo.load(
        target, draft, **({"exact": True, "n_threads": 1, "draft_n_threads": 1, "profile": False} | options)
    )


@pytest.fixture(scope="module")
def llm(demo_pair: tuple[Path, Path]) -> Iterator[duo.Engine]:
    with load(*demo_pair) as engine:
        yield engine


@pytest.fixture(scope="module")
def tiny_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tiny")
    return tiny_llama(folder / "target.gguf", depth=0.3), tiny_llama(folder / "draft.gguf", depth=0.1)


@pytest.fixture(scope="module")
def tiny(tiny_pair: tuple[Path, Path]) -> Iterator[duo.Engine]:
    with load(*tiny_pair) as engine:
        yield engine


@pytest.fixture(scope="module")
def plain(demo_pair: tuple[Path, Path]) -> str:
    """What the command writes after PROMPT."""
    return command(demo_pair, "-p", PROMPT)


@pytest.fixture(scope="module")
def sampled(demo_pair: tuple[Path, Path]) -> str:
    """What the command answers to QUESTION, with a seed."""
    return command(demo_pair, "-p", QUESTION, "--chat", "--temp", "0.8", "-s", "7")


def command(pair: tuple[Path, Path], *options: str) -> str:
    done = run_duo(*models(*pair), *ONE_EACH, "--exact", "-n", str(N), *options)
    assert done.status == 0, done.stderr
    return done.text


def text_of(steps: Iterator[duo.Step]) -> str:
    return "".join(step.text for step in steps)


def at_once(*works: Callable[[], T]) -> list[T]:
    """What they return, each on a thread of its own."""
    with ThreadPoolExecutor(len(works)) as pool:
        return [future.result(PATIENCE_S) for future in [pool.submit(work) for work in works]]


def ended(engine: duo.Engine) -> str:
    """Why the text that was begun last has ended; waits for that."""
    engine.call(lambda _: None)
    assert engine.statistics is not None
    return engine.statistics.generation.stop


# The names


def test_the_public_names() -> None:
    assert duo.__all__ == [
        "BusyError",
        "ClosedError",
        "Completion",
        "DecodeError",
        "DeviceError",
        "DownloadError",
        "DraftStatistics",
        "DuoError",
        "Engine",
        "GenerationStatistics",
        "Lead",
        "MemoryLimitError",
        "ModelError",
        "PromptError",
        "PromptStatistics",
        "Statistics",
        "Step",
        "Stream",
        "UsageError",
        "VocabularyError",
        "load",
    ]
    assert {name: getattr(duo, name).__name__ for name in duo.__all__} == {name: name for name in duo.__all__}


def test_there_is_no_other_name() -> None:
    name = "nonsense"
    with pytest.raises(AttributeError, match="module 'duo' has no attribute 'nonsense'"):
        getattr(duo, name)


def test_importing_it_is_quick_and_quiet() -> None:
    code = "import sys, duo; sys.exit('llama_cpp' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


# The text is that of the command


def test_stream(llm: duo.Engine, plain: str) -> None:
    with llm.stream(PROMPT, max_tokens=N) as stream:
        steps = list(stream)
    assert text_of(iter(steps)) == plain
    assert sum(len(step.tokens) for step in steps) == N == stream.statistics.generation.tokens
    assert stream.statistics.prompt.tokens == 4
    assert stream.statistics == llm.statistics


def test_generate(llm: duo.Engine, plain: str) -> None:
    answer = llm.generate(llm.tokenize(PROMPT), max_tokens=N)
    assert (answer.text, answer.stop_reason) == (plain, "token limit")
    assert llm.detokenize(answer.tokens) == plain
    assert answer.statistics.generation.stop == answer.stop_reason
    assert answer.statistics.tokens_per_s == answer.statistics.generation.tokens_per_s is not None


def test_chat(llm: duo.Engine, sampled: str) -> None:
    assert llm.chat(MESSAGES, max_tokens=N, **SAMPLED).text == sampled


def test_stream_chat(llm: duo.Engine, sampled: str) -> None:
    assert text_of(llm.stream_chat(MESSAGES, max_tokens=N, **SAMPLED)) == sampled
    assert llm.generate(llm.apply_chat_template(MESSAGES), max_tokens=N, **SAMPLED).text == sampled


def test_asyncio(llm: duo.Engine, plain: str) -> None:
    """Two texts of one event loop, and one that is left early."""

    async def text() -> str:
        return "".join([step.text async for step in llm.astream(PROMPT, max_tokens=N)])

    async def everything() -> list[str]:
        steps = cast("Any", llm.astream(PROMPT, max_tokens=LONG, ignore_eos=True))
        async for _ in cast("AsyncIterator[duo.Step]", steps):
            break
        await steps.aclose()
        return list(await asyncio.gather(text(), text()))

    assert asyncio.run(everything()) == [plain, plain]


def test_asyncio_where_steps_come_faster_than_it_looks(tiny: duo.Engine) -> None:
    async def tokens() -> list[int]:
        return [token async for step in tiny.astream("a", max_tokens=200, ignore_eos=True) for token in step.tokens]

    assert asyncio.run(tokens()) == list(tiny.generate("a", max_tokens=200, ignore_eos=True).tokens)


def test_asyncio_raises_what_the_text_failed_of(tiny: duo.Engine) -> None:
    async def write(prompt: str) -> None:
        async for _ in tiny.astream(prompt):
            pass

    with pytest.raises(duo.PromptError, match="the prompt has 600 tokens"):
        asyncio.run(write("a" * 599))


# Several texts


def test_two_engines_at_once(llm: duo.Engine, demo_pair: tuple[Path, Path], plain: str, sampled: str) -> None:
    with load(*demo_pair) as other:
        texts = at_once(
            lambda: llm.generate(PROMPT, max_tokens=N).text,
            lambda: other.chat(MESSAGES, max_tokens=N, **SAMPLED).text,
        )
    assert texts == [plain, sampled]


def test_two_threads_of_one_engine(llm: duo.Engine, plain: str, sampled: str) -> None:
    texts = at_once(
        lambda: text_of(llm.stream(PROMPT, max_tokens=N)),
        lambda: llm.chat(MESSAGES, max_tokens=N, **SAMPLED).text,
    )
    assert texts == [plain, sampled]


def test_a_text_within_the_loop_over_another(llm: duo.Engine, plain: str) -> None:
    outer = ""
    for i, step in enumerate(llm.stream(PROMPT, max_tokens=N)):
        outer += step.text
        if i == 0:
            assert llm.generate(PROMPT, max_tokens=4).text == text_of(llm.stream(PROMPT, max_tokens=4))
    assert outer == plain


def test_leaving_the_loop_ends_the_text(llm: duo.Engine, plain: str) -> None:
    for _ in llm.stream(PROMPT, max_tokens=LONG, ignore_eos=True):
        break
    assert ended(llm) == "interrupted"
    assert llm.generate(PROMPT, max_tokens=N).text == plain


def test_closing_a_stream_ends_the_text(llm: duo.Engine) -> None:
    stream = llm.stream(PROMPT, max_tokens=LONG, ignore_eos=True)
    next(stream)
    stream.close()
    assert len(list(stream)) < LONG
    assert stream.statistics.generation.stop == "interrupted"


def test_a_text_that_nobody_wants_is_not_begun(llm: duo.Engine) -> None:
    with llm.stream(PROMPT, max_tokens=LONG, ignore_eos=True) as running:
        waiting = llm.stream(PROMPT, max_tokens=LONG)
        waiting.close()
        next(running)
    assert list(waiting) == []
    assert waiting.statistics.generation.stop == "interrupted"


def test_an_interruption_ends_the_present_text_only(llm: duo.Engine, plain: str) -> None:
    llm.interrupt()  # of nothing
    stream = llm.stream(PROMPT, max_tokens=LONG, ignore_eos=True)
    waiting = llm.stream(PROMPT, max_tokens=N)
    next(stream)
    at_once(llm.interrupt)
    assert stream.completion().stop_reason == "interrupted"
    assert text_of(waiting) == plain


def test_texts_are_written_in_order(llm: duo.Engine) -> None:
    with llm.stream(PROMPT, max_tokens=LONG, ignore_eos=True) as running:
        waiting = [llm.stream(PROMPT, max_tokens=2) for _ in range(3)]
        next(running)
    assert [len(stream.completion().tokens) for stream in waiting] == [2, 2, 2]
    began = [stream.request.metrics.steps[0].start for stream in waiting]
    assert began == sorted(began)


def test_what_a_text_begins_with_is_not_read_again(llm: duo.Engine) -> None:
    prompt = llm.tokenize(PROMPT)
    first = llm.generate(prompt, max_tokens=N)
    again = llm.stream([*prompt, *first.tokens[:10]], max_tokens=N - 10)
    assert again.completion().tokens == first.tokens[10:]
    assert again.request.n_cached == len(prompt) + 10 - 1  # the last is decoded again


def test_contexts_grow(tiny_pair: tuple[Path, Path]) -> None:
    with load(*tiny_pair) as engine:
        short = engine.generate("the cat", max_tokens=8, ignore_eos=True)
        before = engine.slot.n_ctx
        longer = engine.generate("the cat", max_tokens=400, ignore_eos=True)
        assert before < 400 < engine.slot.n_ctx
        assert longer.tokens[:8] == short.tokens
        whole = engine.generate("the cat", ignore_eos=True)
    assert (whole.stop_reason, longer.tokens) == ("context full", whole.tokens[:400])


# The end of an engine


def test_closing_an_engine_ends_its_texts(demo_pair: tuple[Path, Path]) -> None:
    engine = load(demo_pair[0])
    stream = engine.stream(PROMPT, max_tokens=LONG, ignore_eos=True)
    waiting = engine.stream(PROMPT, max_tokens=LONG)
    n_steps = 0
    for _ in stream:
        n_steps += 1
        if n_steps == 1:
            at_once(engine.close)
    assert 0 < n_steps < LONG
    assert stream.statistics.generation.stop == "interrupted"
    assert list(waiting) == []
    engine.close()


def test_a_closed_engine_is_of_no_use(tiny_pair: tuple[Path, Path]) -> None:
    with load(*tiny_pair) as engine:
        engine.generate("a", max_tokens=1)
    uses: list[Callable[[], object]] = [
        lambda: engine.stream("a"),
        lambda: engine.generate([1]),
        lambda: engine.chat(MESSAGES),
        lambda: engine.stream_chat(MESSAGES),
        lambda: engine.astream("a"),
        lambda: engine.tokenize("a"),
        lambda: engine.detokenize([1]),
    ]
    for use in uses:
        with pytest.raises(duo.ClosedError, match="the engine is closed"):
            use()
    engine.interrupt()
    assert engine.statistics is not None


# What is written


def test_max_tokens(tiny: duo.Engine) -> None:
    text = tiny.generate("a", max_tokens=30, ignore_eos=True)
    assert len(text.tokens) == 30
    assert tiny.generate("a", max_tokens=7, ignore_eos=True).tokens == text.tokens[:7]
    assert tiny.generate("a", max_tokens=0).tokens == ()


def test_stop_strings(llm: duo.Engine, plain: str) -> None:
    word = plain.split()[4]
    for stop in (word, ["of no use", word]):
        answer = llm.generate(PROMPT, max_tokens=N, stop=stop)
        assert (answer.text, answer.stop_reason) == (plain[: plain.index(word)], "stop string")


def test_a_seed(tiny: duo.Engine, tiny_pair: tuple[Path, Path]) -> None:
    def tokens(engine: duo.Engine, seed: int | None) -> tuple[int, ...]:
        return engine.generate("a", max_tokens=40, ignore_eos=True, temperature=1.0, seed=seed).tokens

    first = tokens(tiny, 5)
    assert tokens(tiny, 5) == first != tokens(tiny, 6)
    assert tokens(tiny, None) != tokens(tiny, None)
    with load(tiny_pair[0]) as alone:
        assert tokens(alone, 5) == first


def test_grammar(tiny: duo.Engine) -> None:
    answer = tiny.generate("a", grammar='root ::= ("bad" | "fed") "cab"')
    assert answer.text in ("badcab", "fedcab")
    assert answer.stop_reason == "end of text"


def test_json_schema(llm: duo.Engine) -> None:
    schema = '{"type": "object", "properties": {"wet": {"type": "boolean"}}, "required": ["wet"]}'
    answer = llm.generate("Is water wet? ", max_tokens=40, json_schema=schema)
    assert json.loads(answer.text) in ({"wet": True}, {"wet": False})


def test_logit_bias(tiny: duo.Engine) -> None:
    token = tiny.tokenize("the")[-1]
    assert set(tiny.generate("a", max_tokens=10, logit_bias={token: 1000.0}).tokens) == {token}
    assert token not in tiny.generate("a", max_tokens=40, ignore_eos=True, logit_bias={token: float("-inf")}).tokens


def test_ignore_eos(tiny: duo.Engine) -> None:
    end = tiny.slot.target.eos
    ending: Any = {"logit_bias": {end: 1000.0}, "max_tokens": 10}
    assert tiny.generate("a", **ending).tokens == (end,)
    going_on = tiny.generate("a", **ending, ignore_eos=True)
    assert (len(going_on.tokens), going_on.stop_reason) == (10, "token limit")
    assert end not in going_on.tokens


def test_each_step_is_whole_characters(tiny: duo.Engine) -> None:
    """Here each byte of them is a token of its own."""
    said = "é日本語😀!"
    steps = list(tiny.stream("a", grammar=f'root ::= "{said}"'))
    assert text_of(iter(steps)) == said
    assert all(step.text in said for step in steps)
    assert sum(len(step.tokens) for step in steps) == len(said.encode()) + 1  # the end


def test_bytes_that_are_no_characters(tiny: duo.Engine) -> None:
    byte = tiny.slot.target.eos + 1 + 0xE6  # the first byte of a character, again and again
    answer = tiny.generate("a", max_tokens=3, logit_bias={byte: 1000.0})
    assert (answer.tokens, answer.text) == ((byte,) * 3, "\ufffd" * 3)


# Errors


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(duo.ModelError, match="no such file"):
        duo.load(tmp_path / "missing.gguf")


def test_a_draft_with_another_vocabulary(demo_pair: tuple[Path, Path], tiny_pair: tuple[Path, Path]) -> None:
    with pytest.raises(duo.VocabularyError, match=r"draft\.gguf cannot draft for smollm2"):
        load(demo_pair[0], tiny_pair[1])


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("n_ctx", -1),
        ("n_batch", 0),
        ("n_ubatch", 0),
        ("n_threads", 0),
        ("n_threads_batch", 0),
        ("draft_n_threads", 0),
        ("draft_n_max", -1),
        ("draft_n_ahead", 0),
        ("flash_attn", "x"),
        ("type_k", "x"),
        ("type_v", "x"),
        ("schedule", "x"),
        ("split_mode", "x"),
        ("draft_split_mode", "x"),
        ("n_gpu_layers", "x"),
        ("draft_n_gpu_layers", "x"),
        ("tensor_split", [1.0] * 100),
    ],
)
def test_what_load_cannot_do(parameter: str, value: object, tiny_pair: tuple[Path, Path]) -> None:
    with pytest.raises(duo.UsageError, match=f"^{parameter}") as raised:
        duo.load(tiny_pair[0], profile=False, **{parameter: cast("Any", value)})
    assert raised.value.parameter == parameter


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("max_tokens", -2),
        ("temperature", -1.0),
        ("top_p", 1.5),
        ("top_k", -1),
        ("min_p", -0.1),
        ("typical_p", 2.0),
        ("repeat_penalty", 0.0),
        ("repeat_last_n", -1),
        ("presence_penalty", float("nan")),
        ("frequency_penalty", float("inf")),
        ("logit_bias", {0: float("nan")}),
        ("logit_bias", {10**6: 1.0}),
        ("logit_bias", {-1: 1.0}),
        ("samplers", ["x"]),
        ("stop", ""),
        ("verify", "x"),
    ],
)
def test_what_a_text_cannot_be(parameter: str, value: object, tiny: duo.Engine) -> None:
    with pytest.raises(duo.UsageError, match=f"^{parameter}") as raised:
        tiny.generate("a", **{parameter: cast("Any", value)})
    assert raised.value.parameter == parameter


@pytest.mark.parametrize("options", [{"json_schema": "{"}, {"json_schema": '{"type": 5}'}, {"grammar": " "}])
def test_a_grammar_that_is_none(options: Any, tiny: duo.Engine) -> None:
    with pytest.raises(duo.UsageError):
        tiny.generate("a", **options)


def test_a_keyword_that_is_none(tiny: duo.Engine) -> None:
    unknown: Any = {"max_length": 5}
    for method in (tiny.stream, tiny.generate, tiny.astream):
        with pytest.raises(TypeError, match="max_length"):
            method("a", **unknown)
    with pytest.raises(TypeError, match="max_length"):
        duo.load("main.gguf", **unknown)


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ("", "the prompt has no tokens"),
        ([], "the prompt has no tokens"),
        ([1, 10**12], r"there is no token 10{12} in a vocabulary of \d+"),
        ([-1], "there is no token -1"),
        ("a" * N_CTX_TRAIN, "the prompt has 513 tokens, the context 512 (what the model was trained for)"),
    ],
)
def test_a_prompt_that_cannot_be(prompt: str | list[int], said: str, tiny: duo.Engine) -> None:
    with pytest.raises(duo.PromptError, match=said.replace("(w", r"\(w").replace("r)", r"r\)")):
        tiny.generate(prompt)


def test_a_prompt_that_is_too_long_for_the_context_asked_for(tiny_pair: tuple[Path, Path]) -> None:
    with load(*tiny_pair, n_ctx=32) as engine:
        with pytest.raises(duo.PromptError, match=r"the prompt has 41 tokens, the context 32 \(n_ctx\)"):
            engine.generate("a" * 40)
        full = engine.generate("a", ignore_eos=True)
        assert (len(full.tokens), full.stop_reason) == (32 - 2 + 1, "context full")


def test_a_model_without_a_chat_template(tiny: duo.Engine) -> None:
    with pytest.raises(duo.PromptError, match="has no chat template"):
        tiny.chat(MESSAGES)


def test_an_error_does_not_outlive_its_text(tiny: duo.Engine) -> None:
    with pytest.raises(duo.UsageError):
        tiny.generate("a", logit_bias={10**6: 1.0})
    assert len(tiny.generate("a", max_tokens=3, ignore_eos=True).tokens) == 3


# While it loads


def test_progress(tiny_pair: tuple[Path, Path]) -> None:
    told: list[tuple[str, float, float | None]] = []

    def note(description: str, done: float, total: float | None) -> None:
        told.append((description, done, total))

    with load(*tiny_pair, progress=note):
        pass
    assert [description for description, done, total in told if done == total] == [
        "loading target.gguf",
        "loading draft.gguf",
    ]


def test_progress_stops_the_loading(tiny_pair: tuple[Path, Path]) -> None:
    with pytest.raises(duo.ModelError, match=r"^loading target\.gguf: stopped$"):
        load(*tiny_pair, progress=lambda *_: False)


def test_progress_that_fails(tiny_pair: tuple[Path, Path], capfd: pytest.CaptureFixture[str]) -> None:
    def fail(description: str, done: float, total: float | None) -> None:
        raise ZeroDivisionError(description)

    with pytest.raises(ZeroDivisionError, match=r"loading target\.gguf"):
        load(*tiny_pair, progress=fail)
    assert capfd.readouterr() == ("", "")


# What it leaves alone

POLITE = """
import os, signal, sys, threading
import duo
from duo.llama import library

def state():
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    return handlers, cores, [(os.fstat(fd).st_dev, os.fstat(fd).st_ino) for fd in (0, 1, 2)], signal.set_wakeup_fd(-1)

before = state()
core = str(min(before[1])) if before[1] else "0"
cores = {"cpu_range": f"{core}-{core}", "draft_cpu_range": f"{core}-{core}"} if before[1] else {}
with duo.load(*sys.argv[1:], schedule="async", n_threads=1, draft_n_threads=1, **cores) as llm:
    for step in llm.stream("Once upon a time", max_tokens=8):
        assert state() == before
    assert llm.statistics.draft is not None
    try:
        llm.generate("a", grammar=" ")
    except duo.UsageError:
        pass
assert state() == before
assert library.owns_stderr is False
assert [thread.name for thread in threading.enumerate()] == ["MainThread"]
"""


def test_it_changes_nothing_and_prints_nothing(demo_pair: tuple[Path, Path]) -> None:
    """Not signal handlers, the caller's cores or descriptors; a warning goes to nobody who did not ask for it."""
    done = subprocess.run(
        [sys.executable, "-c", POLITE, *map(str, demo_pair)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_wrong_grammar_moves_no_descriptor(tiny: duo.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[object] = []
    with monkeypatch.context() as patch:
        patch.setattr(os, "dup2", lambda *arguments: moved.append(arguments))
        with pytest.raises(duo.UsageError, match="the grammar cannot be used"):
            tiny.generate("a", grammar="nonsense")
    assert moved == []


def test_no_thread_outlives_a_text(demo_pair: tuple[Path, Path]) -> None:
    with load(*demo_pair, schedule="async") as engine:
        names = {thread.name for _ in engine.stream(PROMPT, max_tokens=N) for thread in threading.enumerate()}
        assert {"duo-target", "duo-draft"} <= names
        for thread in threading.enumerate():
            if thread.name in ("duo-target", "duo-draft"):
                thread.join(PATIENCE_S)
                assert not thread.is_alive()


# When the draft dies


@pytest.mark.parametrize("schedule", ["async", "sync"])
def test_a_dead_draft(
    schedule: str,
    demo_pair: tuple[Path, Path],
    plain: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def die(_: Drafter) -> bool:
        raise RuntimeError("no more ideas")

    with closing(load(*demo_pair, schedule=schedule)) as engine:
        with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "duo"):
            patch.setattr(Drafter, "step", die)
            answer = engine.generate(PROMPT, max_tokens=N)
        assert answer.text == plain
        assert answer.statistics.draft is not None
        assert answer.statistics.draft.error == "no more ideas"
        (record,) = [record for record in caplog.records if record.name.startswith("duo.")]
        assert record.getMessage() == "the draft failed (no more ideas): the target goes on alone"
        assert record.exc_info is not None
        assert isinstance(record.exc_info[1], RuntimeError)
        again = engine.generate(PROMPT, max_tokens=N)
        assert again.text == plain
        assert again.statistics.draft is not None
        assert again.statistics.draft.error is None
