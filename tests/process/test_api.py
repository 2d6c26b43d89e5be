"""duo as a library, with the demo pair: the texts of the command, and what a program's process keeps."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

import duo
from duo.engine.drafter import Drafter
from tests.command import ONE_EACH, ROOT, environment, models
from tests.command import duo as run_duo
from tests.serving import PATIENCE_S

T = TypeVar("T")

PROMPT = "Once upon a time"
QUESTION = "Why is the sky blue?"
MESSAGES = [{"role": "user", "content": QUESTION}]
N = 20
SAMPLED: Any = {"temperature": 0.8, "seed": 7}


def load(pair: tuple[Path, Path], **options: Any) -> duo.Engine:
    """An engine whose text is the same to the last bit, whatever the draft does."""
    return duo.load(*pair, exact=True, n_threads=1, draft_n_threads=1, profile=False, **options)


@pytest.fixture(scope="module")
def llm(demo_pair: tuple[Path, Path]) -> Iterator[duo.Engine]:
    with load(demo_pair, schedule="async") as engine:
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
    """What they return, each on a separate thread."""
    with ThreadPoolExecutor(len(works)) as pool:
        return [future.result(PATIENCE_S) for future in [pool.submit(work) for work in works]]


# Texts


def test_texts_are_those_of_the_command(llm: duo.Engine, plain: str, sampled: str) -> None:
    with llm.stream(PROMPT, max_tokens=N) as stream:
        assert text_of(stream) == plain
    assert stream.statistics.prompt.tokens == len(llm.tokenize(PROMPT)) == 4
    assert llm.chat(MESSAGES, max_tokens=N, **SAMPLED).text == sampled
    assert llm.generate(llm.apply_chat_template(MESSAGES), max_tokens=N, **SAMPLED).text == sampled


def test_two_threads_of_one_engine_and_another_engine(
    llm: duo.Engine, demo_pair: tuple[Path, Path], plain: str, sampled: str
) -> None:
    with load(demo_pair) as other:
        texts = at_once(
            lambda: text_of(llm.stream(PROMPT, max_tokens=N)),
            lambda: llm.chat(MESSAGES, max_tokens=N, **SAMPLED).text,
            lambda: other.generate(PROMPT, max_tokens=N).text,
        )
    assert texts == [plain, sampled, plain]


# What it leaves alone


def test_importing_it_is_quick_and_quiet() -> None:
    code = "import sys, duo; sys.exit('llama_cpp' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


POLITE = """
import os, signal, sys, threading
import duo

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
    assert llm.generate("a", grammar='root ::= "b"').text == "b"
    for grammar in (" ", "nonsense"):
        try:
            llm.generate("a", grammar=grammar)
        except duo.UsageError:
            pass
assert state() == before
assert [thread.name for thread in threading.enumerate()] == ["MainThread"]
"""


def test_it_changes_nothing_and_prints_nothing(demo_pair: tuple[Path, Path]) -> None:
    """No signal handlers, affinity of the caller's threads or descriptors; no warnings without a log handler."""
    done = subprocess.run(
        [sys.executable, "-c", POLITE, *map(str, demo_pair)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_no_thread_outlives_a_text(llm: duo.Engine) -> None:
    names = {thread.name for _ in llm.stream(PROMPT, max_tokens=N) for thread in threading.enumerate()}
    assert {"duo-target", "duo-draft"} <= names
    for thread in threading.enumerate():
        if thread.name in ("duo-target", "duo-draft"):
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


# A draft that fails


@pytest.mark.parametrize("schedule", ["async", "sync"])
def test_a_draft_that_fails_is_logged_once_and_the_text_goes_on(
    schedule: str,
    demo_pair: tuple[Path, Path],
    plain: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(_: Drafter) -> None:
        raise RuntimeError("no more ideas")

    with load(demo_pair, schedule=schedule) as engine:
        with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "duo"):
            patch.setattr(Drafter, "_reconcile", fail)
            answer = engine.generate(PROMPT, max_tokens=N)
        assert answer.text == plain
        assert answer.statistics.draft is not None
        assert answer.statistics.draft.error == "no more ideas"
        (record,) = [record for record in caplog.records if record.name.startswith("duo.")]
        assert "no more ideas" in record.getMessage()
        assert record.exc_info is not None
        assert isinstance(record.exc_info[1], RuntimeError)
        again = engine.generate(PROMPT, max_tokens=N)
        assert again.text == plain
        assert again.statistics.draft is not None
        assert again.statistics.draft.error is None


def test_exact_text_after_a_common_prefix_is_that_of_a_new_context(demo_pair: tuple[Path, Path]) -> None:
    """llama.cpp's logits of a position differ between batches of fewer than 64 tokens and larger ones."""
    with duo.load(demo_pair[0], exact=True, n_threads=1, lookup="off", profile=False, n_ctx=1024) as engine:
        long = engine.tokenize((ROOT / "test_prompt.txt").read_text(encoding="utf-8") * 20)
        other = engine.tokenize("Something else.")

        def logprobs_after(*prompts: list[int]) -> object:
            for prompt in (other, *prompts):
                steps = list(engine.stream(prompt, max_tokens=2, logprobs=2))
            return [step.logprobs for step in steps]

        for n_before, n in ((100, 150), (150, 190), (60, 100), (60, 40), (390, 390)):
            assert logprobs_after(long[:n_before], long[:n]) == logprobs_after(long[:n]), (n_before, n)
