"""What options do to the text, and that a draft changes nothing. Real pairs in all schedules: tests/proof."""

import re
from pathlib import Path

import pytest

from duo.config import CACHE_TYPES
from duo.engine.drafter import Drafter
from tests.command import ONE_EACH, Argument, models
from tests.unit.cli.runner import duo

TEXT = ("-p", "the cat sat on the mat and", "-n", "32", "--ignore-eos", "--exact", "--lookup", "off", *ONE_EACH)


def plain(target: Path, *more: Argument) -> bytes:
    return duo("-m", target, *TEXT, *more).stdout


@pytest.mark.parametrize("kind", CACHE_TYPES)
def test_every_cache_type_decodes(tiny: Path, kind: str) -> None:
    run = duo(*models(tiny, tiny), "-p", "the cat", "-n", "4", "-ctk", kind, "-ctv", kind, "-fa", "on")
    assert (run.status, run.n_tokens, run.warnings) == (0, 4, [])


@pytest.mark.parametrize("options", [("-ub", "3"), ("-n", "8", "-c", "40", "--draft", "45")])
def test_batches_too_small_for_llama_cpp(kin: dict[str, Path], options: tuple[str, ...]) -> None:
    """It aborts the process where the tokens that may be rolled back do not fit a batch or the context."""
    run = duo(*models(kin["lfm2"], kin["llama"]), *TEXT, *options)
    assert (run.status, run.stdout) == (0, plain(kin["lfm2"], *options))


@pytest.mark.usefixtures("slow_target")
def test_a_draft_that_fails(kin: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """After one candidate; with -v the traceback is shown."""
    reconcile, left = Drafter._reconcile, iter([True])

    def fail(self: Drafter) -> None:
        if next(left, None) is None:
            raise ValueError("out of ink")
        reconcile(self)

    monkeypatch.setattr(Drafter, "_reconcile", fail)
    run = duo(*models(kin["llama"], kin["llama"]), *TEXT, "--schedule", "async")
    warning = "duo: warning: the draft failed (out of ink): the target continues alone"
    assert run.warnings == [warning]
    assert (run.status, run.n_tokens, run.stdout) == (0, 32, plain(kin["llama"]))
    assert "; failed: " in run.stderr
    assert "Traceback" not in run.stderr
    run = duo(*models(kin["llama"], kin["llama"]), *TEXT, "-v", "--schedule", "async")
    assert f"{warning}\nTraceback (most recent call last):\n" in run.stderr
    assert "\nValueError: out of ink\n" in run.stderr


# Sampling: what options do to the text, and that a draft does nothing to it


PROMPT = ("-p", "Once upon a time", "-n", "24", "--ignore-eos", "--exact", *ONE_EACH)
HOT = ("--temp", "3", "--top-k", "0", "--top-p", "1", "--min-p", "0")


def text(*arguments: Argument) -> bytes:
    run = duo(*PROMPT, *arguments)
    assert (run.status, run.warnings) == (0, []), run.stderr
    return run.stdout


def test_the_seed_of_a_run_is_reported_and_repeats_its_text(tiny: Path) -> None:
    first = duo("-m", tiny, *PROMPT, *HOT)
    (seed,) = re.findall(r"; seed (\d+)$", first.stderr, re.MULTILINE)
    assert text("-m", tiny, *HOT, "-s", seed) == first.stdout
    assert text("-m", tiny, *HOT) != first.stdout, "each run takes a new seed"
    assert "seed" not in duo("-m", tiny, *PROMPT).stderr, "greedy text needs none"


def test_rejection_sampling_at_temperature_0_is_greedy(tiny: Path) -> None:
    assert text(*models(tiny, tiny), "--verify", "rejection") == text("-m", tiny)


@pytest.mark.parametrize("change", ["--repeat-penalty 2", "--presence-penalty 9", "--frequency-penalty 5"])
def test_penalties_change_the_text_and_the_draft_follows(tiny: Path, change: str) -> None:
    plain, changed = text("-m", tiny), text("-m", tiny, *change.split())
    assert changed != plain
    assert text(*models(tiny, tiny), *change.split()) == changed
    assert text("-m", tiny, *change.split(), "--repeat-last-n", "0") == plain
