"""Branches: which outcomes a draft prepares, and what becomes of them."""

from __future__ import annotations

import pytest

from duo.engine.branches import Branches, Preparation
from duo.llama.model_size import BRANCH_CELLS
from duo.spec.outcomes import MOST_DEEP
from duo.spec.policy import Lookahead
from duo.spec.schedule import Schedule
from duo.spec.types import Guess, Outcome
from tests.fakes import CERTAIN, Eager, FakeContext, Preparing
from tests.unit.engine.helpers import PROMPT, begun

HALF = (0.5,) * len(CERTAIN)
RANKS = (0.6, 0.2)


def may(n_branches: int = 8, n_verified: int = 5, least: float = 0.0, n_ahead: int = 100) -> Preparation:
    return Preparation(Lookahead(n_ahead, least, HALF, n_branches, RANKS), n_verified)


def branches(n_text: int = 6) -> tuple[Branches, FakeContext]:
    """Three tokens are accepted; the chain has others at positions 3 to n_text - 1, of which all but the last are
    decoded."""
    context = FakeContext(n_branches=8)
    context.tokens = list(range(n_text - 1))
    made = Branches(context)
    made.chain = {n: Guess(n, 1.0, alternatives=(10 + n, 20 + n)) for n in range(3, n_text)}
    return made, context


def outcomes(made: Branches, preparation: Preparation) -> list[tuple[int, int]]:
    return [branch.outcome for branch in made.plan(3, 0, preparation)[0]]


def test_the_most_likely_outcomes_are_prepared_first() -> None:
    """An outcome: the candidates before are right (0.5 each), this is wrong, and the alternative is the target's."""
    made, context = branches()
    assert outcomes(made, may(4)) == [(3, 13), (4, 14), (3, 23), (5, 15)]
    assert context.branches == {1: [0, 1, 2], 2: [0, 1, 2, 3], 3: [0, 1, 2], 4: [0, 1, 2, 3, 4]}


def test_those_that_are_unlikely_are_not() -> None:
    made, _ = branches(12)
    assert max(position for position, _ in outcomes(made, may(n_verified=12))) == 7, "0.5 ^ 6 * 0.6 < 0.01"


def test_only_outcomes_of_the_candidates_that_are_verified_and_of_the_bonus() -> None:
    made, _ = branches()
    assert outcomes(made, may(n_verified=0)) == []
    assert outcomes(made, may(n_verified=3)) == [(3, 13), (3, 23)]
    assert outcomes(made, may(n_verified=4)) == [(3, 13), (3, 23), (4, 14), (4, 24)]


def test_the_chain_may_not_have_reached_the_bonus() -> None:
    made, _ = branches(4)
    assert outcomes(made, may()) == [(3, 13), (3, 23)]
    made.chain[4] = Guess(4, 1.0, alternatives=(14,))
    made._draft.tokens.append(3)  # type: ignore[attr-defined]
    assert made.plan(3, 0, may()) == (made._open, 1)


def test_a_branch_goes_on_while_it_is_worth_it() -> None:
    made, _ = branches()
    ((branch, *_), _) = made.plan(3, 0, may(1, least=0.2))
    for survival in (0.5, 0.25):
        made.extend(branch, Guess(1, 1.0), may().lookahead)
        assert branch.survival == survival
        assert made.due(may(least=0.2).lookahead) == [branch]
    made.extend(branch, Guess(2, 1.0), may().lookahead)
    assert made.due(may(least=0.2).lookahead) == []
    assert (branch.tokens, branch.position) == ([13, 1, 1, 2], 7)


@pytest.mark.parametrize("n_ahead", [3, 1000])
def test_a_branch_does_not_outgrow_its_cells(n_ahead: int) -> None:
    made, _ = branches()
    ((branch, *_), _) = made.plan(3, 0, may(1))
    while made.due(may(n_ahead=n_ahead).lookahead):
        made.extend(branch, Guess(1, 1.0), may().lookahead)
    assert len(branch.guesses) == min(n_ahead, MOST_DEEP) < BRANCH_CELLS, "the outcome's own token has one, too"


def test_what_was_decided_is_dropped() -> None:
    made, context = branches()
    made.plan(3, 0, may(4))
    made.prune(4)
    assert sorted(context.branches) == [2, 4]
    assert sorted(made.chain) == [4, 5]
    assert outcomes(made, may(2)) == [(4, 14), (5, 15)], "there is no room for more"


def test_the_outcome_that_comes_true_is_the_chain() -> None:
    made, context = branches()
    (_, branch, *_), _ = made.plan(3, 0, may(4))
    context.branches[2] += [14, 7]
    made.extend(branch, Guess(7, 1.0, alternatives=(8,)), may().lookahead)
    assert made.take(Outcome(4, 14)) is branch
    assert (context.tokens, context.branches) == ([0, 1, 2, 3, 14, 7], {})
    assert made.chain == {5: Guess(7, 1.0, alternatives=(8,))}


def test_no_outcome_that_was_prepared_comes_true() -> None:
    made, context = branches()
    made.plan(3, 0, may(4))
    assert made.take(Outcome(4, 99)) is None
    assert (made.chain, context.branches, made.due(may().lookahead)) == ({}, {}, [])
    assert len(context.tokens) == 5, "the drafter rolls it back"


def test_outcomes_before_the_beginning_of_the_context_or_after_its_end_are_left_out() -> None:
    made, context = branches()
    context.tokens = [3, 4]
    assert sorted(branch.outcome.position for branch in made.plan(3, 4, may())[0]) == [4, 4, 5, 5]
    made, context = branches()
    context.tokens = [0, 1, 2]
    assert sorted(branch.outcome.position for branch in made.plan(3, 0, may())[0]) == [3, 3]


def test_positions_in_a_context_that_begins_later() -> None:
    made, context = branches()
    context.tokens = [2, 3, 4]
    made.plan(3, 2, may(1))
    assert context.branches == {1: [2]}


# The drafter


@pytest.mark.parametrize("policy", [Eager(4, 6, Schedule.SYNC), Eager(4, 6)], ids=["sync", "async"])
def test_without_branches_a_draft_that_could_have_some_drafts(policy: Eager) -> None:
    draft = begun(FakeContext(n_branches=4), policy)
    assert draft.drafter.step()
    draft.commit((), None)
    assert draft.session.n_pending == 1


def test_after_an_outcome_came_true_the_draft_goes_on_where_its_branch_ends() -> None:
    """Nothing of the branch is decoded again, or drafted again."""
    context = FakeContext(lambda _: 5, n_branches=2, others=lambda _: [7, 8])
    draft = begun(context, Preparing(4, 6, 2))
    draft.start()
    draft.drafter.step()
    assert draft.candidates(100).tokens == (5,)
    for _ in range(2):
        draft.drafter.step()
    draft.commit((7,), None)
    assert draft.session.candidates(9).tokens == (5, 5)
    n = len(context.batches)
    draft.drafter.step()
    assert (context.tokens, context.batches[n:], context.branches) == ([*PROMPT, 7, 5, 5], [1], {})
    draft.commit((), None)
    assert draft.session.candidates(9).tokens == (5, 5, 5)
