"""Branches: which outcomes a draft prepares, and what becomes of them."""

from collections.abc import Sequence

import pytest

from duo.engine.drafter import DraftUpdate
from duo.engine.prepared_outcomes import Branch, PreparingDrafter
from duo.engine.recorder import Recorder
from duo.llama.model import BRANCH_CELLS
from duo.speculation.acceptance import MAX_DEEP, Lookahead
from duo.speculation.sampling import Greedy
from duo.speculation.types import Candidate
from tests.fakes import CERTAIN, N_VOCAB, FakeContext, Preparing
from tests.unit.engine.helpers import PROMPT, begun, make_queue, take

HALF = (0.5,) * len(CERTAIN)
RANKS = (0.6, 0.2)
TEXT = range(20)


def may(n_branches: int = 8, n_verified: int = 5, n_ahead: int = 100) -> DraftUpdate:
    chain = [Candidate(n, 1.0, alternatives=(10 + n, 20 + n)) for n in range(3, 6)]
    lookahead = Lookahead(n_ahead, 0.0, HALF, n_branches, RANKS)
    return DraftUpdate(0, [], lookahead=lookahead, n_verified=n_verified, chain=chain)


class Planner(PreparingDrafter):
    """Three tokens of TEXT are accepted; the cache holds some of it, from token `first` on."""

    def plan(self, update: DraftUpdate, first: int = 0) -> list[Branch]:
        """The branches to continue in the next decode."""
        self._tokens, self._n_seen, self._first, self._update = list(TEXT), 3, first, update
        self._open()
        return self._due()


def branches(tokens: Sequence[int] = range(5)) -> tuple[Planner, FakeContext]:
    context = FakeContext(n_branches=8)
    context.tokens = list(tokens)
    return Planner(context, make_queue(), Greedy(), N_VOCAB, Recorder()), context


@pytest.mark.parametrize(
    ("update", "expected"),
    [
        (may(4), [(3, 13), (4, 14), (3, 23), (5, 15)]),  # the most likely ones first
        (may(n_verified=0), []),
        (may(n_verified=3), [(3, 13), (3, 23)]),
        (may(n_verified=4), [(3, 13), (4, 14), (3, 23), (4, 24)]),
    ],
)
def test_likely_outcomes_of_what_is_verified_are_prepared(update: DraftUpdate, expected: list[tuple[int, int]]) -> None:
    """An outcome: the candidates before are right (0.5 each), this is wrong, and the alternative is the target's."""
    made, context = branches()
    assert [branch.outcome for branch in made.plan(update)] == expected
    assert list(context.branches.values()) == [list(range(position)) for position, _ in expected]


@pytest.mark.parametrize(("tokens", "first", "positions"), [([3, 4], 4, {4, 5}), ([0, 1, 2], 0, {3})])
def test_outcomes_outside_of_the_context_are_left_out(tokens: list[int], first: int, positions: set[int]) -> None:
    assert {branch.outcome.position for branch in branches(tokens)[0].plan(may(), first=first)} == positions


@pytest.mark.parametrize("n_ahead", [3, 1000])
def test_a_branch_does_not_outgrow_its_cells(n_ahead: int) -> None:
    update = may(1, n_ahead=n_ahead)
    made, _ = branches()
    (branch,) = made.plan(update)
    while made.plan(update):
        branch.extend(Candidate(1, 1.0), update.lookahead)
    assert len(branch.tokens) - 1 == min(n_ahead, MAX_DEEP) < BRANCH_CELLS, "the outcome's own token has one, too"


def test_after_an_outcome_came_true_the_draft_goes_on_where_its_branch_ends() -> None:
    """Nothing of the branch is decoded again, or drafted again."""
    context = FakeContext(lambda _: 5, n_branches=2, others=lambda _: [7, 8])
    draft = begun(context, Preparing(4, 6, 2))
    draft._start_thread()
    draft.drafter.step()
    assert take(draft) == (5,)
    for _ in range(2):
        draft.drafter.step()
    draft.wrote(7)
    assert draft.pending == [5, 5]
    n = len(context.batches)
    draft.drafter.step()
    assert (context.tokens, context.batches[n:], context.branches) == ([*PROMPT, 7, 5, 5], [1], {})
    draft.wrote()
    assert draft.pending == [5, 5, 5]
