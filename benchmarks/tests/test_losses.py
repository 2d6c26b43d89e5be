"""Where the time of a draft goes: benchmarks/losses.py."""

import sys

import pytest

from benchmarks.losses import KINDS, losses, main, row
from benchmarks.oracle import N_PROMPT, Case
from benchmarks.virtual import Decode, Replay, constant
from duo.speculation.machine import Machine
from duo.speculation.modes import Schedule

FLAT = 9 * [0.5]
MACHINE = Machine(FLAT, 0.1, FLAT, 0.1, branch_s=[0.1, *8 * [0.125]], aborts=False)


def test_every_decode_has_one_reason() -> None:
    at, found = N_PROMPT, Replay()
    found.decodes = [
        Decode(0.0, 0.1, ((at, True),)),
        Decode(0.2, 0.325, ((at, True), (at + 1, True))),
        Decode(0.325, 0.45, ((at + 2, True), (at + 2, False))),
        Decode(0.45, 0.55, ((at + 4, False),)),
        Decode(0.55, 0.65, ((at + 1, True),)),
        Decode(0.65, 0.675),
    ]
    found.add(2, 0.6)
    found.add(1, 0.8)
    expected = {"chain": 0.2, "branch": 0.1, "several": 0.05, "wrong": 0.125, "late": 0.1, "idle": 0.1 + 0.125}
    assert losses(MACHINE, found) == pytest.approx(expected)


@pytest.mark.parametrize("aborts", [True, False])
def test_the_kinds_of_loss_add_up_to_the_time_of_a_text(aborts: bool) -> None:
    guess = constant(0.7)
    text = tuple(guess(i) for i in range(200))
    machine = Machine(FLAT, 0.1, FLAT, 0.1, branch_s=[0.1, *8 * [0.11]], aborts=aborts)
    found = Case("", machine, (text,), separate_devices=True).forced(Schedule.ASYNC, text, 200, branches=None)
    spent = losses(machine, found)
    assert sum(spent.values()) == pytest.approx(found.seconds)
    assert min(spent[kind] for kind in ("chain", "branch", "several", "wrong")) > 0
    shown = dict(zip(KINDS, row("", machine, [found])[3:], strict=False))
    assert sum(map(float, shown.values())) == pytest.approx(1000 / found.rate, abs=0.05)


@pytest.mark.parametrize(
    ("machine", "error"),
    [("nosuch", "no file machines/nosuch.json"), ("m2-ultra", "m2-ultra: no recorded texts of a draft with a device")],
)
def test_machines_without_a_row(
    machine: str, error: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["losses", machine])
    with pytest.raises(SystemExit) as raised:
        main()
    said = capsys.readouterr()
    assert (raised.value.code, said.out, error in said.err) == (2, "", True), said.err
