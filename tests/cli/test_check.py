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
GENEROUS = """
from duo.spec import verify
verify.Rejection._judge = lambda self, target, guess, position: guess.token
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


def test_the_distribution_of_a_token(demo_pair: tuple[Path, Path]) -> None:
    target, draft = demo_pair
    arguments = ("--distribution", "--draws", "300", *ONE_EACH, "-p", "Once upon a", "--temp", "1")
    for verify in ("coupled", "rejection"):
        run = duo("check", *models(target, draft), *arguments, "--verify", verify)
        assert run.status == 0, run.text + run.stderr
        assert "300 draws, 300 with a candidate" in run.text
        assert run.text.splitlines()[-1].startswith("The tokens come as often as the target says")


def test_the_distribution_of_a_generous_verifier_is_found_out(tiny: Path, tmp_path: Path) -> None:
    from tests.gguf_files import tiny_llama

    other = tiny_llama(tmp_path / "other.gguf", seed=5)
    arguments = ("--distribution", "--draws", "400", *ONE_EACH, "-p", "the cat", "--verify", "rejection", "--temp", "1")
    assert duo("check", *models(tiny, other), *arguments).status == 0
    wrong = duo("check", *models(tiny, other), *arguments, before=GENEROUS)
    assert wrong.status == 1, wrong.text
    assert "The draft changes the distribution after 1 of 1 prompts" in wrong.text


def test_a_draft_that_dies_is_no_proof(tiny: Path) -> None:
    for more in ((), ("--distribution",)):
        run = duo("check", *models(tiny, tiny), *ONE_EACH, "--schedule", "sync", *more, before=DYING)
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
    assert_refused(run, "rejection sampling writes another text with a draft: check it with --distribution", status=2)
    run = duo("check", *models(tiny, recurrent))
    assert run.status == 2
    assert "nothing to check" in run.stderr
