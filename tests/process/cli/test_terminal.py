"""What a run looks like on a terminal."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

from tests.command import ONE_EACH, SLOW_TARGET, models
from tests.process.cli.terminal import Terminal
from tests.unit.cli import runner


def test_accepted_tokens_are_green_and_steps_alternate(demo_pair: tuple[Path, Path]) -> None:
    text = ("-p", "The capital of France is", "-n", "24", "--exact", *ONE_EACH)
    with Terminal(*models(*demo_pair), *text, "--schedule", "async", "--lookup", "off", before=SLOW_TARGET) as terminal:
        assert terminal.finish() == 0
    shown, _, said = terminal.shown.partition(b"\nspeed ")
    _, _, shown = shown.rpartition(b"uses it\n")  # what is said about the chat template
    found = list(re.finditer(rb"(\x1b\[1m)?(\x1b\[32m)?([^\x1b]+)\x1b\[0m", shown))
    assert b"".join(match[0] for match in found) == shown, "nothing is outside the marks"
    assert b"".join(match[3] for match in found) == runner.duo("-m", demo_pair[0], *text).stdout
    accepted = re.search(rb" (\d+) accepted ", said)
    assert accepted is not None
    assert sum(bool(match[2]) for match in found) == int(accepted[1]) > 0
    # A step ends with the target's own token, and the next one looks different.
    assert not found[0][1]
    for token, following in pairwise(found):
        assert (token[1] != following[1]) == (not token[2])
    assert b"\x1b" not in said


def test_without_colours_the_text_is_followed_by_the_report_on_its_own_line(kin: dict[str, Path]) -> None:
    # A prompt of several batches, for which there is a progress bar.
    text = ("-p", "the cat sat " * 4, "-ub", "16", "-n", "32", "--ignore-eos", "--exact", *ONE_EACH)
    expected = runner.duo("-m", kin["lfm2"], *text).stdout
    with Terminal("-m", kin["lfm2"], *text, env={"NO_COLOR": "1"}) as terminal:
        assert terminal.finish() == 0
    progress, _, shown = terminal.shown.rpartition(b"\x1b[2K")
    assert b"%" in progress, "of the prefill; it is wiped out at the end"
    written, _, report = shown.partition(b"\nspeed ")
    assert b"\x1b[1m" not in written
    # A terminal does not get control characters.
    assert written.endswith(re.sub(rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]", b"", expected))
    assert re.search(rb"\ntokens: 32 tps: [0-9.]+\n$", report)
