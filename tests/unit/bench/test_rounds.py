"""The rounds: every contestant writes once in each, in another order, after a few tokens to warm up."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from duo.bench.rounds import Contestant, Interrupted, Job, ParseError, Prompt, Run, Sample, measure

PROMPTS = [Prompt("chat", "one"), Prompt("code", "two\n"), Prompt("list", "three")]


@dataclass
class Session:
    """Contestants that note what they are asked; "d" fails."""

    stop_at: int | None = None
    asked: list[tuple[str, str, int]] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def run(self, names: Sequence[str], *, warm_up: bool = True, may_fail: bool = False) -> None:
        contestants = [Contestant(name, Scribe(name, self), may_fail=may_fail) for name in names]
        job, stop = Job(Path("target.gguf"), None, "", Path(), 64, 256), threading.Event()
        measure(contestants, PROMPTS, job, self.samples.append, self.warnings.append, stop, warm_up=warm_up)


@dataclass
class Scribe:
    name: str
    session: Session

    def write(self, job: Job, stop: threading.Event) -> Run:
        assert job.prompt_file.read_text(encoding="utf-8") == job.prompt + "\n"
        self.session.asked.append((self.name, job.prompt, job.n_tokens))
        if self.session.stop_at == len(self.session.asked):
            stop.set()
            raise Interrupted
        if self.name == "d":
            raise ParseError("d exited with 3")
        return Run(job.prompt, job.n_tokens, 1.0)


def test_all_write_once_per_round_in_another_order() -> None:
    session = Session()
    session.run("abc")
    assert [(name, n) for name, _, n in session.asked[:3]] == [("a", 16), ("b", 16), ("c", 16)], "to warm up"
    orders = ["".join(name for name, _, _ in session.asked[i : i + 3]) for i in (3, 6, 9)]
    assert [sorted(order) for order in orders] == [list("abc")] * 3
    assert len(set(orders)) > 1
    assert not all(order in "abcab" for order in orders), "as in a rotation"
    assert [prompt for _, prompt, _ in session.asked[3:]] == ["one"] * 3 + ["two\n"] * 3 + ["three"] * 3
    assert {n for _, _, n in session.asked[3:]} == {64}
    taken = [(s.contestant.mode, s.i_round, s.run.text) for s in session.samples]
    assert taken == [
        (name, i, p.text) for i, (order, p) in enumerate(zip(orders, PROMPTS, strict=True)) for name in order
    ]


def test_a_failure_is_found_before_anything_is_measured() -> None:
    session = Session()
    with pytest.raises(ParseError, match="d exited with 3"):
        session.run("abcd")
    assert not session.samples


def test_a_contestant_that_may_fail_is_left_out_with_a_warning() -> None:
    session = Session()
    session.run("abcd", may_fail=True)
    assert session.warnings[-1] == "d exited with 3: skipped"
    assert [name for name, _, _ in session.asked].count("d") == 1, "it was not asked again"
    assert len(session.samples) == 9
