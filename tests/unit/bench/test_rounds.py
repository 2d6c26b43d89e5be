"""Who writes when: everybody once per round, each time in another order, after few tokens to warm up."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from duo.bench.contestant import Contestant, Interrupted, Job, Run
from duo.bench.peers import ParseError
from duo.bench.prompts import Prompt
from duo.bench.rounds import Sample, measure

JOB = Job(Path("target.gguf"), None, "", Path(), 64, 256)
PROMPTS = [Prompt("chat", "one"), Prompt("code", "two\n"), Prompt("list", "three")]


@dataclass
class Scribe:
    """Keeps what it was asked for."""

    name: str
    log: list[tuple[str, str, int]] = field(default_factory=list)
    stop_at: int | None = None

    def write(self, job: Job, stop: threading.Event) -> Run:
        assert job.prompt_file.read_text(encoding="utf-8") == job.prompt + "\n"
        self.log.append((self.name, job.prompt, job.n_tokens))
        if self.stop_at == len(self.log):
            stop.set()
            raise Interrupted
        return Run(job.n_tokens, 1.0, job.prompt)


def fail(text: str) -> None:
    raise AssertionError(text)


def contestants(**more: int) -> tuple[list[Contestant], list[tuple[str, str, int]]]:
    log: list[tuple[str, str, int]] = []
    return [Contestant(name, Scribe(name, log, **more), "1", "CPU") for name in "abc"], log


def test_everybody_writes_once_per_round_in_another_order() -> None:
    taking_part, log = contestants()
    found: list[Sample] = []
    measure(taking_part, PROMPTS, JOB, found.append, fail, threading.Event())
    assert [(name, n) for name, _, n in log[:3]] == [("a", 16), ("b", 16), ("c", 16)]  # to warm up
    orders = ["".join(name for name, _, _ in log[i : i + 3]) for i in (3, 6, 9)]
    assert [sorted(order) for order in orders] == [list("abc")] * 3
    assert orders[0] != orders[1] != orders[2]
    assert not all(order in "abcab" for order in orders)  # as in a rotation
    assert [prompt for _, prompt, _ in log[3:]] == ["one"] * 3 + ["two\n"] * 3 + ["three"] * 3
    assert {n for _, _, n in log[3:]} == {64}
    assert [(s.contestant.mode, s.i_round, s.run.text) for s in found[:2]] == [(n, 0, "one") for n in orders[0][:2]]
    assert len(found) == 9


def test_it_ends_when_it_is_to_stop() -> None:
    taking_part, log = contestants(stop_at=5)
    found: list[Sample] = []
    measure(taking_part, PROMPTS, JOB, found.append, fail, threading.Event())
    assert (len(log), len(found)) == (5, 1)


def test_who_cannot_run_is_found_out_before_anything_is_measured() -> None:
    class Broken:
        def write(self, job: Job, stop: threading.Event) -> Run:
            raise ParseError("it cannot")

    taking_part, _ = contestants()
    found: list[Sample] = []
    with pytest.raises(ParseError, match="it cannot"):
        measure(
            [*taking_part, Contestant("d", Broken(), "1", "CPU")], PROMPTS, JOB, found.append, fail, threading.Event()
        )
    assert not found


def test_who_may_fail_is_left_out_with_a_warning() -> None:
    log: list[tuple[str, str, int]] = []

    class Failing(Scribe):
        def write(self, job: Job, stop: threading.Event) -> Run:
            super().write(job, stop)
            raise ParseError("d exited with 3")

    taking_part, _ = contestants()
    found: list[Sample] = []
    said: list[str] = []
    failing = Contestant("d", Failing("d", log), "1", "CPU", may_fail=True)
    measure([*taking_part, failing], PROMPTS, JOB, found.append, said.append, threading.Event())
    assert said == ["d exited with 3: left out"]
    assert len(log) == 1  # it was not asked again
    assert sorted(sample.contestant.mode for sample in found[:3]) == ["a", "b", "c"]
    assert len(found) == 9
