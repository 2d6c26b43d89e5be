"""Backs that come and go in the middle of a text, and the rates of its two halves."""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from duo.bench.texts import first_difference
from tests.serving import BackProcess, LeadProcess

# The back connects only when the file is there.
_GATE = """
import time
from pathlib import Path
from duo.link.client import DraftClient
run = DraftClient.run
def wait(self):
    while not Path({gate!r}).exists():
        time.sleep(0.002)
    run(self)
DraftClient.run = wait
"""


WAYS = ("absent", "from the start", "joining midway", "killed midway")


class Halves(NamedTuple):
    """Tokens/s of the halves of a text and of all of it, by the client's clock."""

    first: float
    second: float
    whole: float
    text: str


def write_halves(lead: LeadProcess, file: Path, n_tokens: int, midway: Callable[[], object]) -> Halves:
    """Stream a text; `midway` is called at its half."""
    stream = lead.stream(file.read_text(encoding="utf-8"), n_tokens)
    while stream.n_tokens < n_tokens // 2 and stream.running:
        stream.wait_for_pieces(len(stream.times) + 1)
    began, n_before = time.monotonic(), stream.n_tokens
    midway()
    text = stream.finish()
    start, end = stream.times[0], stream.times[-1]
    return Halves(
        (n_before - 1) / (began - start), (n_tokens - n_before) / (end - began), (n_tokens - 1) / (end - start), text
    )


@contextmanager
def waiting_back(draft: Path, lead: LeadProcess, folder: Path) -> Iterator[Callable[[], None]]:
    """A back that is loaded and joins when the function is called; it goes afterwards."""
    gate = folder / "gate"
    gate.unlink(missing_ok=True)
    with BackProcess(draft, lead.port, before=_GATE.format(gate=str(gate))) as back:
        back.wait_for("drafts for")
        yield gate.touch
    gate.unlink(missing_ok=True)
    _wait_until_gone(lead)


def measure_backs(
    models: tuple[Path, Path], files: Sequence[Path], n_tokens: int, repetitions: int, note: Callable[[str], None]
) -> dict[str, list[dict[str, object]]]:
    """All ways in turns, each model with one thread: the halves of every text, by way."""
    target, draft = models
    found: dict[str, list[dict[str, object]]] = {way: [] for way in WAYS}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        alone, helped = (stack.enter_context(LeadProcess(target)) for _ in range(2))
        stack.enter_context(BackProcess(draft, helped.port)).wait_for("joined")
        ways: dict[str, Callable[[Path], Halves]] = {
            "absent": lambda file: write_halves(alone, file, n_tokens, lambda: None),
            "from the start": lambda file: write_halves(helped, file, n_tokens, lambda: None),
            "joining midway": partial(_joining, alone, draft, folder, n_tokens),
            "killed midway": partial(_killed, alone, draft, n_tokens),
        }
        for i in range(repetitions):
            file = files[i % len(files)]
            texts = {}
            for j in range(len(WAYS)):
                way = WAYS[(i + j) % len(WAYS)]
                note(f"{i + 1}/{repetitions} {file.stem} {way}")
                texts[way] = ways[way](file)
            for way, halves in texts.items():
                parted = first_difference(halves.text, texts["absent"].text)
                found[way].append({"prompt": file.stem, **halves._asdict(), "differs_at": parted})
    return found


def _joining(lead: LeadProcess, draft: Path, folder: Path, n_tokens: int, file: Path) -> Halves:
    with waiting_back(draft, lead, folder) as join:
        return write_halves(lead, file, n_tokens, join)


def _killed(lead: LeadProcess, draft: Path, n_tokens: int, file: Path) -> Halves:
    with BackProcess(draft, lead.port) as back:
        back.wait_for("joined")
        halves = write_halves(lead, file, n_tokens, lambda: back.send(signal.SIGKILL))
    _wait_until_gone(lead)
    return halves


def _wait_until_gone(lead: LeadProcess) -> None:
    lead.wait_for("has gone", sum("has joined" in line for line in lead.lines))
