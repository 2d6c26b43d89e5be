"""Branches: which outcomes a draft prepares, and what becomes of them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from duo.engine.branches import Branch, BranchingDrafter
from duo.engine.metrics import Metrics
from duo.engine.queue import DraftUpdate
from duo.llama.model_size import BRANCH_CELLS
from duo.spec.calibration import MAX_DEEP, Lookahead
from duo.spec.sampling import Greedy
from duo.spec.types import Guess
from tests.fakes import CERTAIN, N_VOCAB, FakeContext, Preparing
from tests.unit.engine.helpers import PROMPT, begun, make_queue, take

HALF = (0.5,) * len(CERTAIN)
RANKS = (0.6, 0.2)
TEXT = range(20)


def may(
    n_branches: int = 8,
    n_verified: int = 5,
    least: float = 0.0,
    n_ahead: int = 100,
    n_text: int = 6,
    n_accepted: int = 3,
) -> DraftUpdate:
    chain = [Guess(n, 1.0, alternatives=(10 + n, 20 + n)) for n in range(n_accepted, n_text)]
    lookahead = Lookahead(n_ahead, least, HALF, n_branches, RANKS)
    return DraftUpdate(0, [], lookahead=lookahead, n_verified=n_verified, chain=chain)


class Planner(BranchingDrafter):
    def plan(self, text: Sequence[int], n_seen: int, first: int, update: DraftUpdate) -> tuple[list[Branch], int]:
        """The branches to continue in the next decode, and how many of them are new."""
        self._tokens, self._n_seen, self._first, self._update = list(text), n_seen, first, update
        n_new = self._open()
        return self._due(), n_new

    def due(self, update: DraftUpdate) -> list[Branch]:
        self._update = update
        return self._due()


def branches(n_text: int = 6) -> tuple[Planner, FakeContext]:
    """Three tokens are accepted; the chain has others at positions 3 to n_text - 1, of which all but the last are
    decoded."""
    context = FakeContext(n_branches=8)
    context.tokens = list(range(n_text - 1))
    return Planner(context, make_queue(), Greedy(), N_VOCAB, Metrics()), context


def outcomes(made: Planner, update: DraftUpdate) -> list[tuple[int, int]]:
    return [branch.outcome for branch in made.plan(TEXT, 3, 0, update)[0]]


def test_the_most_likely_outcomes_are_prepared_first() -> None:
    """An outcome: the candidates before are right (0.5 each), this is wrong, and the alternative is the target's."""
    made, context = branches()
    assert outcomes(made, may(4)) == [(3, 13), (4, 14), (3, 23), (5, 15)]
    assert context.branches == {1: [0, 1, 2], 2: [0, 1, 2, 3], 3: [0, 1, 2], 4: [0, 1, 2, 3, 4]}


def test_only_outcomes_of_the_candidates_that_are_verified_and_of_the_bonus() -> None:
    made, _ = branches()
    assert outcomes(made, may(n_verified=0)) == []
    assert outcomes(made, may(n_verified=3)) == [(3, 13), (3, 23)]
    assert outcomes(made, may(n_verified=4)) == [(3, 13), (3, 23), (4, 14), (4, 24)]


@pytest.mark.parametrize("n_ahead", [3, 1000])
def test_a_branch_does_not_outgrow_its_cells(n_ahead: int) -> None:
    made, _ = branches()
    ((branch, *_), _) = made.plan(TEXT, 3, 0, may(1))
    while made.due(may(n_ahead=n_ahead)):
        branch.extend(Guess(1, 1.0), may().lookahead)
    assert len(branch.tokens) - 1 == min(n_ahead, MAX_DEEP) < BRANCH_CELLS, "the outcome's own token has one, too"


def test_what_was_decided_is_dropped() -> None:
    made, context = branches()
    made.plan(TEXT, 3, 0, may(4))
    made._prune(4)
    assert sorted(context.branches) == [2, 4]
    due, n_new = made.plan(TEXT, 4, 0, may(2, n_accepted=4))
    assert ([branch.outcome for branch in due], n_new) == ([(4, 14), (5, 15)], 0), "there is no room for more"


def test_outcomes_before_the_beginning_of_the_context_or_after_its_end_are_left_out() -> None:
    made, context = branches()
    context.tokens = [3, 4]
    assert sorted(branch.outcome.position for branch in made.plan(TEXT, 3, 4, may())[0]) == [4, 4, 5, 5]
    made, context = branches()
    context.tokens = [0, 1, 2]
    assert sorted(branch.outcome.position for branch in made.plan(TEXT, 3, 0, may())[0]) == [3, 3]


# The drafter


def test_after_an_outcome_came_true_the_draft_goes_on_where_its_branch_ends() -> None:
    """Nothing of the branch is decoded again, or drafted again."""
    context = FakeContext(lambda _: 5, n_branches=2, others=lambda _: [7, 8])
    draft = begun(context, Preparing(4, 6, 2))
    draft.start()
    draft.drafter.step()
    assert take(draft, 100).tokens == (5,)
    for _ in range(2):
        draft.drafter.step()
    draft.commit((7,), None)
    assert [guess.token for guess in draft.session.pending] == [5, 5]
    n = len(context.batches)
    draft.drafter.step()
    assert (context.tokens, context.batches[n:], context.branches) == ([*PROMPT, 7, 5, 5], [1], {})
    draft.commit((), None)
    assert [guess.token for guess in draft.session.pending] == [5, 5, 5]
