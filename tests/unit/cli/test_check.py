"""`duo check`: whether the draft changes the text."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from duo.engine.drafter import Drafter
from duo.speculation import verify
from duo.speculation.types import Candidate, Logits
from tests.command import ONE_EACH, models
from tests.unit.cli.runner import duo

EXACT = ("-n", "12", "--exact", *ONE_EACH, "--schedule", "sync")


@pytest.mark.usefixtures("slow_target")
@pytest.mark.parametrize("temperature", ["0", "0.8"])
def test_identical_texts(kin: dict[str, Path], temperature: str) -> None:
    options = ("-n", "24", "--exact", *ONE_EACH, "--schedule", "async", "--branches", "4", "--temp", temperature)
    run = duo("check", *models(kin["lfm2"], kin["llama"]), *options)
    assert (run.status, run.warnings) == (0, [])
    *lines, verdict = run.text.splitlines()
    said = r"prompt \d: identical, \d+ tokens, of which \d+ accepted candidates(; \d+ outcomes prepared)?"
    found = [re.fullmatch(said, line) for line in lines]
    assert (len(found), all(found), any(match and match[1] for match in found)) == (5, True, True)
    assert verdict == "All 5 texts are identical: the draft changes only the speed."


def test_a_wrong_verification_is_found(kin: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    right = verify.Matching.verify

    def accept_all(
        self: verify.Matching,
        logits: Logits,
        candidates: Sequence[Candidate],
        position: int,
        recent: tuple[int, ...] = (),
    ) -> tuple[int, ...]:
        found = right(self, logits, candidates, position, recent)
        return (*(candidate.token for candidate in candidates), found[-1])

    monkeypatch.setattr(verify.Matching, "verify", accept_all)
    run = duo("check", *models(kin["lfm2"], kin["llama"]), *EXACT, "-n", "24", "-p", "Dear neighbours,", "-p", "The")
    assert run.status == 1
    said = r"prompt \d: differs from token \d+ on: '.*' without the draft, '.*' with it; the two best scores differ by"
    assert re.search(said, run.text)
    assert "not at a near-tie: this is a bug, please report it" in run.text.splitlines()[-1]


def test_a_draft_that_fails_proves_nothing(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Drafter) -> None:
        raise RuntimeError("a wire came loose")

    monkeypatch.setattr(Drafter, "_reconcile", fail)
    run = duo("check", *models(tiny, tiny), *EXACT)
    assert run.status == 1
    assert "the draft failed (a wire came loose): nothing can be compared" in run.stderr
