import numpy as np
import pytest

from tests.goodness import chi_square, chi_square_tail, total_variation, variation_bound

FOUR = np.array([0.4, 0.3, 0.2, 0.1])


def test_the_tail_agrees_with_tables() -> None:
    for value, n_free, expected in ((3.841, 1, 0.05), (18.307, 10, 0.05), (149.449, 100, 0.001), (10.828, 1, 0.001)):
        assert chi_square_tail(value, n_free) == pytest.approx(expected, rel=0.2)
    assert chi_square_tail(0.0, 0) == 1


def test_chi_square_accepts_the_right_distribution_and_rejects_another() -> None:
    dice = np.random.default_rng(1)
    p_values = [chi_square(dice.multinomial(2000, FOUR), FOUR) for _ in range(400)]
    assert np.mean(np.array(p_values) < 0.1) == pytest.approx(0.1, abs=0.04)
    assert chi_square(dice.multinomial(20_000, [0.42, 0.28, 0.2, 0.1]), FOUR) < 1e-6
    assert chi_square(np.array([10, 1]), np.array([1.0, 0.0])) == 0, "an impossible draw"
    rare = np.append(FOUR * 0.99, np.full(100, 1e-4))  # cells that are merged
    assert chi_square(dice.multinomial(1000, rare), rare) > 1e-3
    assert chi_square(np.array([3, 0]), np.array([0.9, 0.1])) == 1, "too few to say anything"


def test_total_variation_stays_within_its_bound() -> None:
    dice = np.random.default_rng(3)
    found = [total_variation(dice.multinomial(500, FOUR), FOUR) for _ in range(500)]
    assert max(found) < variation_bound(FOUR, 500) < 0.3
    assert total_variation(np.array([0, 0, 0, 5]), FOUR) == pytest.approx(0.9)
