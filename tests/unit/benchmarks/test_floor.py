"""Plain decoding in every way, with recorded output and a machine on which other programs compute."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from benchmarks import floor
from benchmarks.floor import Completion, Undisturbed
from duo.bench.contestant import Job, Run
from tests.unit.bench.recorded import JOB, N_TOKENS, TEXT, cost, recorded


def test_llama_completion_is_timed_with_sampling_and_printing() -> None:
    found = cost(recorded("completion.out"), recorded("completion.err"))
    run = Completion(floor.PROGRAM, Path("llama-completion"), 1).parse(JOB, found)
    assert run.tokens_per_s == pytest.approx((N_TOKENS - 1) / (0.32432 - 0.02729))
    assert run.startup_s == pytest.approx(found.wall_s - (0.32432 - 0.02729))
    assert (run.tokens, run.text) == (N_TOKENS, TEXT)


class Machine:
    """A machine on which other programs compute during the first `n_disturbed` texts."""

    def __init__(self, n_disturbed: int) -> None:
        self.n_disturbed = n_disturbed
        self.n_texts = 0
        self.others_s = 0.0

    def write(self, job: Job, stop: threading.Event) -> Run:
        self.n_texts += 1
        self.others_s += 1.0 * (self.n_texts <= self.n_disturbed)
        return Run(self.n_texts, 1.0, "")


@pytest.mark.parametrize(("n_disturbed", "used"), [(0, 1), (2, 3), (1000, floor.TRIES)])
def test_a_disturbed_text_is_repeated(n_disturbed: int, used: int, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(n_disturbed)
    monkeypatch.setattr(floor, "others_s", lambda: machine.others_s)
    monkeypatch.setattr(floor, "_LOOK_S", 0)
    assert Undisturbed(machine).write(JOB, threading.Event()).tokens == used
