"""duo as a library, with the demo pair: the texts of the command, and what a program's process keeps."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import duo
from tests.command import ONE_EACH, models, python
from tests.serving import PATIENCE_S
from tests.unit.cli import runner

PROMPT = "Once upon a time"
QUESTION = "Why is the sky blue?"
MESSAGES = [{"role": "user", "content": QUESTION}]
N = 12
SAMPLED: Any = {"temperature": 0.8, "seed": 7}


def load(pair: tuple[Path, Path], **options: Any) -> duo.Engine:
    """An engine whose text is the same to the last bit, whatever the draft does."""
    return duo.load(*pair, exact=True, n_threads=1, draft_n_threads=1, profile=False, **options)


@pytest.fixture(scope="module")
def llm(demo_pair: tuple[Path, Path]) -> Iterator[duo.Engine]:
    with load(demo_pair, schedule="async") as engine:
        yield engine


@pytest.fixture(scope="module")
def texts(demo_pair: tuple[Path, Path]) -> list[str]:
    """What the command writes after PROMPT, and what it answers to QUESTION, with a seed."""
    options = (*models(*demo_pair), *ONE_EACH, "--exact", "-n", str(N))
    runs = [
        runner.duo(*options, "-p", PROMPT),
        runner.duo(*options, "-p", QUESTION, "--chat", "--temp", "0.8", "-s", "7"),
    ]
    assert [run.status for run in runs] == [0, 0], runs[0].stderr
    return [run.text for run in runs]


def text_of(steps: Iterator[duo.Step]) -> str:
    return "".join(step.text for step in steps)


def test_texts_are_those_of_the_command(llm: duo.Engine, demo_pair: tuple[Path, Path], texts: list[str]) -> None:
    plain, sampled = texts
    with llm.stream(PROMPT, max_tokens=N) as stream:
        assert text_of(stream) == plain
    assert stream.statistics.prompt.tokens == len(llm.tokenize(PROMPT)) == 4
    assert llm.generate(llm.apply_chat_template(MESSAGES), max_tokens=N, **SAMPLED).text == sampled
    # Two threads of one engine, and another engine.
    with load(demo_pair) as other, ThreadPoolExecutor() as pool:
        works: list[Callable[[], str]] = [
            lambda: text_of(llm.stream(PROMPT, max_tokens=N)),
            lambda: llm.chat(MESSAGES, max_tokens=N, **SAMPLED).text,
            lambda: other.generate(PROMPT, max_tokens=N).text,
        ]
        futures = [pool.submit(work) for work in works]
        assert [future.result(PATIENCE_S) for future in futures] == [plain, sampled, plain]


# What it leaves alone

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
    assert llm.generate("a", json_schema='{"const": "bed"}').text == '"bed"'
    for wrong in ({"grammar": " "}, {"grammar": "nonsense"}, {"json_schema": '{"type": 5}'}):
        try:
            llm.generate("a", **wrong)
        except duo.UsageError:
            pass
assert state() == before
assert [thread.name for thread in threading.enumerate()] == ["MainThread"]
"""


def test_it_changes_nothing_and_prints_nothing(demo_pair: tuple[Path, Path]) -> None:
    """No signal handlers, affinity of the caller's threads or descriptors; no warnings without a log handler."""
    done = python(POLITE, *demo_pair)
    assert (done.status, done.stdout, done.stderr) == (0, b"", "")
