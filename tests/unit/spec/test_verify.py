from collections.abc import Sequence

import numpy as np
import pytest

from duo.spec.sampling import Greedy, confidence
from duo.spec.types import Candidates, Guess, Logits
from duo.spec.verify import Matching


def rows(*choices: int) -> Logits:
    logits = np.zeros((len(choices), 8), np.float32)
    logits[range(len(choices)), choices] = 1.0
    return logits


def chain(*tokens: int) -> Candidates:
    return Candidates(tuple(Guess(token, 0.0) for token in tokens))


@pytest.mark.parametrize(
    ("target", "guesses", "accepted", "own"),
    [
        ((3,), (), (), 3),
        ((3, 4), (3,), (3,), 4),
        ((3, 4), (5,), (), 3),
        ((3, 4, 5), (3, 4), (3, 4), 5),
        ((3, 4, 5), (3, 7), (3,), 4),
        ((3, 4, 5), (7, 4), (), 3),
    ],
)
def test_accepts_up_to_the_first_difference(
    target: tuple[int, ...], guesses: tuple[int, ...], accepted: tuple[int, ...], own: int
) -> None:
    acceptance = Matching(Greedy()).verify(rows(*target), chain(*guesses), position=10)
    assert acceptance.accepted == accepted
    assert acceptance.token == own
    assert acceptance.tokens == (*accepted, own)


def test_rows_after_a_rejection_are_not_sampled() -> None:
    asked = []

    class Recorder(Greedy):
        def sample(self, logits: Logits, position: int, recent: Sequence[int] = ()) -> int:
            asked.append(position)
            return super().sample(logits, position)

    Matching(Recorder()).verify(rows(1, 2, 3, 4), chain(1, 7, 3), position=10)
    assert asked == [10, 11]


def test_greedy_takes_the_first_of_equals_and_never_a_banned_token() -> None:
    logits = np.array([1, 5, 5, 0], np.float32)
    assert Greedy().sample(logits, 0) == 1
    assert Greedy(banned=[1, 99]).sample(logits, 0) == 2


def test_confidence_is_the_gap_to_the_second_best_and_leaves_no_trace() -> None:
    logits = np.array([1.0, 5.0, 3.5, 0.0], np.float32)
    before = logits.copy()
    assert confidence(logits, 1) == 1.5
    assert (logits == before).all()
