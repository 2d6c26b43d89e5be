"""`duo check`: what it finds, and what it says about it."""

from __future__ import annotations

import re
from pathlib import Path

from tests.command import ONE_EACH, assert_refused, duo, models

# Code for `before`: the verifier believes the draft.
CREDULOUS = """
from duo.spec import verify
from duo.spec.types import Acceptance
right = verify.Matching.verify
def wrong(self, logits, candidates, position, recent=()):
    found = right(self, logits, candidates, position, recent)
    return Acceptance(candidates.tokens, found.token) if candidates else found
verify.Matching.verify = wrong
"""
DYING = """
from duo.engine.drafter import Drafter
def step(self):
    raise RuntimeError("a wire came loose")
Drafter.step = step
"""


def test_texts_are_identical_with_and_without_the_draft(demo_pair: tuple[Path, Path]) -> None:
    target, draft = demo_pair
    run = duo("check", *models(target, draft), "-n", "12", "--exact", *ONE_EACH, "--temp", "0.8")
    assert (run.status, run.warnings) == (0, [])
    *lines, verdict = run.text.splitlines()
    assert len(lines) == 5
    assert all(re.match(r"prompt \d: identical, \d+ tokens, \d+ of them the draft's guesses$", line) for line in lines)
    assert verdict == "All 5 texts are identical: the draft changes nothing but the speed."


def test_a_text_that_differs_where_it_must_not_is_found(demo_pair: tuple[Path, Path]) -> None:
    target, draft = demo_pair
    arguments = ("-n", "16", "--exact", *ONE_EACH, "--schedule", "sync", "-p", "Dear neighbours,", "-p", "The")
    run = duo("check", *models(target, draft), *arguments, before=CREDULOUS)
    assert run.status == 1
    said = r"prompt 1: differs from token \d+ on: '.*' without the draft, '.*' with it; the two best are"
    assert re.search(said, run.text)
    assert "differ where they must not: please report this" in run.text.splitlines()[-1]


def test_a_draft_that_dies_is_no_proof(tiny: Path) -> None:
    run = duo("check", *models(tiny, tiny), *ONE_EACH, "--schedule", "sync", before=DYING)
    assert run.status == 1
    assert "the draft failed (a wire came loose): nothing can be checked" in run.stderr


def test_what_cannot_be_checked(tiny: Path, recurrent: Path) -> None:
    assert_refused(duo("check", "-m", tiny), "nothing to check without a draft: name one with -md or -hfd", status=2)
    run = duo("check", *models(tiny, tiny), "--schedule", "off")
    assert_refused(run, "nothing to check where nothing is drafted: leave out --schedule off and --draft 0", status=2)
    run = duo("check", *models(tiny, tiny), "-n", "5000")
    assert_refused(run, "take a smaller -n", status=1)
    rejection = ("--verify", "rejection", "--temp", "1")
    run = duo("check", *models(tiny, tiny), *rejection)
    assert_refused(run, "rejection sampling writes another text with a draft, so there is nothing to compare", status=2)
    run = duo("check", *models(tiny, recurrent))
    assert run.status == 2
    assert "nothing to check" in run.stderr
