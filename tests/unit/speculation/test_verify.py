from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from duo.config import SamplingConfig
from duo.errors import GrammarError
from duo.speculation.sampling import Coupled, Greedy, softmax
from duo.speculation.types import Candidate, Distribution, Logits, Outcome
from duo.speculation.verify import Constraint, DraftSampler, Matching, Rejection, Verifier

OPEN = SamplingConfig(temp=1.0, top_k=0, top_p=1.0, min_p=0.0)
KINDS = pytest.mark.parametrize("kind", ["matching", "rejection"])


def rows(*choices: int) -> Logits:
    logits = np.full((len(choices), 8), -20.0, np.float32)
    logits[range(len(choices)), choices] = 20.0
    return logits


def chain(*tokens: int) -> list[Candidate]:
    """Candidates of which the draft was certain."""
    return [Candidate(token, 1.0, Distribution(np.arange(8), np.eye(8)[token])) for token in tokens]


def verifier(kind: str, config: SamplingConfig = OPEN, constraint: Constraint | None = None) -> Verifier:
    return Rejection(config, constraint) if kind == "rejection" else Matching(Coupled(config), constraint)


@KINDS
@pytest.mark.parametrize(
    ("target", "candidates", "added"),
    [
        ((3,), (), (3,)),
        ((3, 4), (5,), (3,)),
        ((3, 4, 5), (3, 4), (3, 4, 5)),
        ((3, 4, 5), (3, 7), (3, 4)),
        ((3, 4, 5), (7, 4), (3,)),
    ],
)
def test_candidates_are_accepted_up_to_the_first_difference(
    kind: str, target: tuple[int, ...], candidates: tuple[int, ...], added: tuple[int, ...]
) -> None:
    assert verifier(kind).verify(rows(*target), chain(*candidates), position=10) == added


@pytest.mark.parametrize(
    ("alternatives", "added", "came_true"),
    [
        ((), (3, 4), -1),
        (((0, 4), (1, 5)), (3, 4), -1),  # at another position; another token
        (((1, 5), (1, 4)), (3, 4, 7), 1),
        (((1, 4), (0, 1)), (3, 4, 6), 0),
    ],
)
def test_where_an_alternative_comes_true_the_text_goes_on_after_it(
    alternatives: Sequence[tuple[int, int]], added: tuple[int, ...], came_true: int
) -> None:
    """Candidates 3, 2, 1; the target wants 3, 4. Rows after the alternatives are 6 and 7."""
    logits, recent = rows(3, 4, 0, 0, 6, 7), (1, 2)
    beside = [Outcome(*one) for one in alternatives]
    assert verifier("matching").verify_with(logits, chain(3, 2, 1), beside, 10, recent) == (added, came_true)
    assert logits.argmax(axis=1)[: len(added)].tolist() == list(added), "the rows of the tokens, for logprobs"


def test_after_an_alternative_that_ends_a_grammar_nothing_follows() -> None:
    class Two(Constraint):
        left = 2

        def allows(self, token: int) -> bool:
            return self.left > 0

        def mask(self, logits: Logits) -> Logits:
            raise GrammarError("at its end")

        def accept(self, token: int) -> None:
            self.left -= 1

    made = verifier("matching", constraint=Two())
    assert made.verify_with(rows(3, 4, 0, 6), chain(3, 2), [Outcome(1, 4)], 10) == ((3, 4), -1)


def test_each_position_has_its_own_noise_and_rows_after_a_rejection_are_not_sampled() -> None:
    asked = []

    class Recorder(Greedy):
        def sample(self, logits: Logits, position: int, recent: Sequence[int] = ()) -> int:
            asked.append(position)
            return super().sample(logits, position)

    Matching(Recorder()).verify(rows(1, 2, 3, 4), chain(1, 7, 3), position=10)
    assert asked == [10, 11]


def test_a_proposal_has_its_distribution_and_a_confidence_independent_of_the_draw() -> None:
    logits = np.array([2.0, 1.0, 0.5, 0.0, -1.0, -3.0], np.float32)
    proposals = [DraftSampler(OPEN).candidate(logits, position) for position in range(50)]
    assert len({proposal.token for proposal in proposals}) > 1
    assert {proposal.confidence for proposal in proposals} == {1.0}
    for proposal in proposals:
        assert proposal.distribution is not None
        assert np.allclose(proposal.distribution.probabilities, softmax(logits))


class Only:
    """A constraint that allows even tokens only, `n` of them, and records what it was asked."""

    def __init__(self, n: int = 99) -> None:
        self._n = n
        self.accepted: list[int] = []
        self.n_masks = 0

    def allows(self, token: int) -> bool:
        return token % 2 == 0 and len(self.accepted) < self._n

    def mask(self, logits: Logits) -> Logits:
        self.n_masks += 1
        if len(self.accepted) == self._n:
            raise GrammarError("nothing is left")
        masked: Logits = logits.copy()
        masked[1::2] = -np.inf
        return masked

    def accept(self, token: int) -> None:
        self.accepted.append(token)


@KINDS
def test_a_constraint_is_asked_about_the_chosen_token_only(kind: str) -> None:
    only = Only()
    made = verifier(kind, constraint=only)
    assert made.verify(rows(2, 4, 0), chain(2, 4), 10) == (2, 4, 0)
    assert (only.accepted, only.n_masks) == ([2, 4, 0], 0)
    first, own = made.verify(rows(2, 3, 0), chain(2, 3), 10)
    assert (first, own % 2) == (2, 0)
    assert (only.accepted, only.n_masks) == ([2, 4, 0, 2, own], 1)


@KINDS
@pytest.mark.parametrize("n", [1, 2, 3])
def test_tokens_before_a_constraint_allows_nothing_are_kept(kind: str, n: int) -> None:
    made = verifier(kind, constraint=Only(n))
    assert made.verify(rows(2, 4, 0, 6), chain(2, 4, 0), 10) == (2, 4, 0)[:n]
    with pytest.raises(GrammarError):
        made.verify(rows(5), (), 10 + n)


def test_a_constraint_and_bias_that_leave_no_token_are_an_error() -> None:
    even = (0, 2, 4, 6)
    odd = replace(OPEN, logit_bias=tuple((token, -np.inf) for token in even))
    for made in (Matching(Coupled(odd), Only()), Rejection(odd, Only()), Matching(Greedy(even), Only())):
        with pytest.raises(GrammarError):
            made.verify(rows(1), (), 10)
