"""Joint decodes: which candidates of which text they verify, and how much of a prompt they read."""

import math
from collections.abc import Sequence

import pytest

from duo.speculation.joint import JointDecodes
from duo.speculation.target_costs import TargetCosts
from duo.speculation.types import Candidate, Origin, Proposal


def measured(times: Sequence[float]) -> JointDecodes:
    """Two texts have shared decodes of 2, 3, … rows, which took these seconds."""
    made = JointDecodes(TargetCosts())
    for _ in range(4):
        for n, seconds in enumerate(times, 2):
            made.learn(2, n, 0, 2, seconds)
    made.begin()
    return made


def found(*chances: float) -> Proposal:
    return Proposal(
        [Candidate(i, c) for i, c in enumerate(chances)], math.inf, Origin.LOOKUP, [(c, 99) for c in chances]
    )


NEW = Proposal()
FLAT, STEEP = [1.0, 1.02, 1.04, 1.06, 1.08, 1.1, 1.12], [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0]


def test_nothing_is_verified_while_nothing_is_known() -> None:
    made = JointDecodes(TargetCosts())
    assert made.plan([found(1.0), NEW], [9, 9], 30) == [0, 0]
    assert made.n_beside(2) > 0


def test_what_was_not_measured_is_as_with_one_text() -> None:
    target = TargetCosts()
    for n, seconds in ((1, 1.0), (2, 1.1), (4, 1.3)):
        target.alone.add(n, seconds)
    made = JointDecodes(target)
    assert made.curve(4) == pytest.approx([1.0, 1.1, 1.2, 1.3])
    made.begin()
    for _ in range(9):
        made.learn(2, 2, 0, 2, 1.25)
    assert made.curve(4) == pytest.approx([1.0, 1.25, 1.275, 1.3])
    assert target.alone.curve(4) == pytest.approx([1.0, 1.1, 1.2, 1.3]), "not learned from several texts"


def test_more_rows_than_were_measured_add_what_those_have_added() -> None:
    assert measured(STEEP).curve(12)[7:] == pytest.approx([4.0, 4.5, 5.0, 5.5, 6.0])
    assert measured(FLAT).curve(12)[-1] == pytest.approx(1.2)


def test_a_decode_during_which_something_else_computed_is_not_believed_at_once() -> None:
    made = measured([1.0, 1.1, 1.2])
    made.learn(2, 5, 0, 5, 4.0)
    assert made.plan([found(0.95, 0.95, 0.95), NEW], [9, 9], 30) == [3, 0], "it is tried again"
    made.learn(2, 5, 0, 5, 4.0)
    assert made.plan([found(0.95, 0.95, 0.95), NEW], [9, 9], 30) == [2, 0]


@pytest.mark.parametrize(
    ("times", "chances", "expected"),
    [
        (FLAT, [(0.9, 0.9), (0.3,)], [2, 1]),
        (FLAT, [(0.9, 0.01), (0.01,)], [1, 0]),
        (STEEP, [(0.9, 0.9), (0.3,)], [0, 0]),
        ([1.0, 1.3, 1.6, 1.9, 2.2], [(0.95, 0.2), (0.4, 0.9)], [1, 0]),  # the likeliest alone
        ([1.0, 1.9, 1.1, 1.2, 1.3], [(0.9,), (0.9,)], [1, 1]),  # no candidate would pay alone
    ],
)
def test_candidates_of_all_texts_compete(
    times: list[float], chances: list[tuple[float, ...]], expected: list[int]
) -> None:
    assert measured(times).plan([found(*one) for one in chances], [9, 9], 30) == expected


def test_the_limits_hold() -> None:
    made, sure = measured(FLAT), found(*[0.99] * 5)
    assert made.plan([sure, sure], [1, 0], 30) == [1, 0]
    assert sum(made.plan([sure, sure], [9, 9], 3)) == 3


def test_candidates_that_turn_out_to_be_wrong_are_doubted() -> None:
    made, likely = measured([1.0, 1.25, 1.5]), Proposal([Candidate(1, 0.7)], math.inf, Origin.LOOKUP, [(0.7, 4)])
    assert made.plan([likely, NEW], [9, 9], 30) == [1, 0]
    for _ in range(40):
        made.learn(2, 3, 0, 2, 1.25)  # none was right
    assert made.plan([likely, NEW], [9, 9], 30) == [0, 0]


SURE, LIKELY, OPEN = (1.0, 0.9), (1.0, 0.7), (0.6, 0.7)  # texts, by what their candidates and further ones promise


@pytest.mark.parametrize(
    ("times", "chances", "draft_s", "expected"),
    [
        (FLAT, [LIKELY, LIKELY], 0.05, (2, 3)),
        (FLAT, [LIKELY, LIKELY], 0.2, (2, 2)),
        (FLAT, [SURE, LIKELY], 0.3, (1, 3)),
        (FLAT, [SURE, OPEN], 0.1, (2, 3)),
        (FLAT, [SURE, OPEN], 0.2, (1, 3)),  # not for the one whose candidates may be wrong already
        (FLAT, [LIKELY, LIKELY], 1.0, (0, 0)),  # a slow draft
        (STEEP, [SURE, SURE], 0.05, (0, 0)),
        ([1.0, *[1.5] * 6], [LIKELY], 0.05, (1, 3)),  # no candidate would pay alone
        (FLAT, [], 0.1, (0, 0)),
    ],
)
def test_a_draft_goes_on_where_that_is_worth_its_time_and_what_is_added_to_the_decode(
    times: list[float], chances: list[tuple[float, float]], draft_s: float, expected: tuple[int, int]
) -> None:
    made = measured(times)
    n, depth, saved_s = made.drafting(2, 2, chances, [(draft_s, draft_s), (2 * draft_s, 2 * draft_s)], 6, 3)
    assert (n, depth) == expected
    assert (saved_s > 0) == (n > 0)


def test_the_limits_of_a_draft_hold() -> None:
    made, step_s = measured(FLAT), [(0.01, 0.01)] * 2
    assert made.drafting(2, 2, [SURE, SURE], step_s, 5, 1)[:2] == (2, 1)
    assert made.drafting(2, 2, [SURE, SURE], step_s, 1, 3)[:2] == (1, 1)
    assert made.drafting(2, 2, [SURE, SURE], step_s, 0, 3)[:2] == (0, 0)
    assert made.drafting(2, 2, [SURE, SURE], [(0.0, 0.0)] * 2, 5, 3)[:2] == (0, 0), "its time is not known"
    assert JointDecodes(TargetCosts()).drafting(2, 2, [SURE, SURE], step_s, 5, 3)[:2] == (0, 0)


def test_the_first_step_of_a_draft_may_take_longer() -> None:
    made = measured(FLAT)
    assert made.drafting(2, 2, [LIKELY], [(0.1, 0.1)], 5, 1)[0] == 1
    assert made.drafting(2, 2, [LIKELY], [(0.5, 0.1)], 5, 1)[0] == 0


def test_what_a_draft_takes_counts() -> None:
    """In the rate, and for the doubts about candidates, but not as the time of a decode."""
    slow, fast = measured(FLAT), measured(FLAT)
    for _ in range(40):
        slow.learn(2, 4, 0, 4, 1.04, 2.0)
        fast.learn(2, 4, 0, 4, 1.04)
    assert slow.curve(4) == fast.curve(4)
    assert slow.drafting(2, 2, [LIKELY, LIKELY], [(0.35, 0.35)] * 2, 5, 1)[0] == 2
    assert fast.drafting(2, 2, [LIKELY, LIKELY], [(0.35, 0.35)] * 2, 5, 1)[0] == 0, "the time brings more without it"


@pytest.mark.parametrize("n_rows", [1, 2])
def test_a_piece_of_a_prompt_doubles_the_time_of_a_decode(n_rows: int) -> None:
    made = measured(FLAT)
    for _ in range(20):
        made.learn(n_rows, n_rows, 10, n_rows, 1.0 + 10 * 0.05)
    assert made.n_beside(n_rows) == pytest.approx(made.curve(n_rows)[-1] / 0.05, abs=1)
    assert made.curve(2)[1] == pytest.approx(1.0), "it teaches nothing about decodes without one"
