"""Signals while the device decodes, which no abort callback reaches: the run ends after that decode.

A second signal ends the process at once, whatever it waits for: tests/process/cli/test_interrupts.py.
"""

import re
import signal
from pathlib import Path

import pytest

from tests.command import Argument, duo
from tests.serving import Served

# Flash attention ends the process in Mesa 22.3.
ON_DEVICE = ("-ngl", "99", "-t", "1", "-fa", "off", "--no-warmup")
LONG_PROMPT = ("-p", "one two three four " * 100, "-n", "64", "--ignore-eos", "-c", "2048")
COUNT = ("-p", "Count: 1 2 3 4", "-n", "500", "--ignore-eos", "--lookup", "off")

BATCH = r"^decoding \d{2,}$"  # of a prompt: 32 tokens of the demo model take seconds on a software device

# Code for `before`: says on stderr when a decode begins and ends, and when the run was asked to stop.
TELL = """
import os
from duo.engine.stream import Stream
from duo.llama.context import Context
close, decode = Stream.close, Context.decode
def tell(words):
    os.write(2, f"{words}\\n".encode())
def announce(self):
    close(self)
    tell("asked to stop")
def telling(self, tokens, n_rows=1):
    tell(f"decoding {len(tokens)}")
    logits = decode(self, tokens, n_rows)
    tell(f"decoded {len(tokens)}")
    return logits
Stream.close, Context.decode = announce, telling
"""


def n_decodes(lines: list[str], *, after_stop: bool = False) -> int:
    """Decodes that have begun, or only those after the run was asked to stop."""
    start = lines.index("asked to stop") if after_stop else 0
    return sum(line.startswith("decoding ") for line in lines[start:])


def stopped(*options: Argument, at: str, n: int = 1, number: signal.Signals = signal.SIGTERM) -> Served:
    """A run that gets a signal at the n-th line of this form, and has ended."""
    with Served(*options, before=TELL) as run:
        run.wait_for(at, n)
        run.send(number)
        assert run.finish() == 128 + number
    ended: Served = run
    return ended


def test_a_signal_during_the_prompt_ends_the_run_after_that_batch(demo_pair: tuple[Path, Path], gpu: str) -> None:
    run = stopped("-m", demo_pair[0], "-dev", gpu, *ON_DEVICE, *LONG_PROMPT, "-ub", "32", at=BATCH)
    assert n_decodes(run.lines, after_stop=True) <= 1, "one may have begun at this moment"
    assert any("stopped: interrupted" in line for line in run.lines)
    assert run.lines[-1] == "tokens: 0 tps: 0.000"
    assert run.stdout.strip() == b""


@pytest.mark.parametrize("drafted", [False, True])
def test_a_signal_during_the_text_keeps_the_text_so_far(demo_pair: tuple[Path, Path], gpu: str, drafted: bool) -> None:
    """The target decodes on the device, or the draft."""
    target, draft = demo_pair
    where: tuple[Argument, ...] = ("-m", target, "-dev", gpu, *ON_DEVICE)
    drafting: tuple[Argument, ...] = ()
    if drafted:
        where = ("-m", target, *ON_DEVICE, "-ngl", "0")
        drafting = ("-md", draft, "-devd", gpu, "-ngld", "99", "-td", "1", "--schedule", "async")
    run = stopped(*where, *drafting, *COUNT, at="^decoding 1$", n=6, number=signal.SIGINT)
    assert n_decodes(run.lines, after_stop=True) <= 1 + drafted, "one of each model may have begun at this moment"
    n_tokens = int(re.findall(r"^tokens: (\d+) ", run.lines[-1])[0])
    assert n_tokens < 500
    assert run.stdout == duo(*where, *COUNT, "-n", str(n_tokens)).stdout
