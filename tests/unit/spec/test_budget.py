"""What finding out may cost. The target alone takes 0.1 s per token."""

import pytest

from duo.spec.constants import DEFAULT
from duo.spec.schedule import Budget

ALONE_S = 0.1


def begun(n_room: int | None = None, *, is_first: bool = False) -> Budget:
    """After a first step without cost, gain or loss."""
    budget = Budget(DEFAULT.first, DEFAULT.later)
    budget.begin(n_room, is_first=is_first)
    budget.step(0.0, 0.0, ALONE_S)
    return budget


@pytest.mark.parametrize(
    ("is_first", "n_room", "tokens"),
    [(True, None, 9.5), (False, None, 2.0), (True, 4096, 9.5), (True, 100, 5.0), (False, 20, 1.0), (False, 40, 2.0)],
)
def test_a_text_begins_with_a_number_of_tokens_and_at_most_a_share_of_a_limited_one(
    is_first: bool, n_room: int | None, tokens: float
) -> None:
    assert begun(n_room, is_first=is_first).credit_s == pytest.approx(tokens * ALONE_S)


def test_there_is_no_credit_while_the_time_of_a_token_is_unknown() -> None:
    budget = Budget(DEFAULT.first, DEFAULT.later)
    budget.begin(None, is_first=True)
    budget.spend(5.0)
    budget.step(5.0, 0.0, 0.0)
    assert budget.credit_s == 0
    budget.step(0.0, 0.0, ALONE_S)
    assert budget.credit_s == pytest.approx(9.5 * ALONE_S)


@pytest.mark.parametrize(
    ("gains_s", "change_s"), [([0.0], 0.0), ([1.0], 0.1), ([-0.3], -0.3), ([-0.3, 0.5], 0.02), ([0.5, -0.7], -0.2)]
)
def test_a_share_of_the_time_and_of_what_was_gained_is_added_and_what_was_lost_is_subtracted(
    gains_s: list[float], change_s: float
) -> None:
    budget = begun()
    for gained_s in gains_s:
        budget.step(3.0, gained_s, ALONE_S)
    assert budget.credit_s == pytest.approx(0.2 + 0.002 * 3.0 * len(gains_s) + change_s)


def test_a_text_in_which_earlier_knowledge_is_wrong_counts_as_the_first_once() -> None:
    budget = begun()
    budget.spend(0.1)
    for _ in range(3):
        budget.begin_again()
        assert budget.credit_s == pytest.approx(9.5 * ALONE_S - 0.1)
    first = begun(is_first=True)
    first.begin_again()
    assert first.credit_s == pytest.approx(9.5 * ALONE_S)
