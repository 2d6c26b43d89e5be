import numpy as np
import pytest

from duo.speculation.noise import Purpose, gumbel, uniform, uniforms
from tests.goodness import chi_square

IDS = np.arange(200_000)
LIMIT = 1e-4  # of a p-value


def test_noise_is_a_function_of_seed_purpose_position_and_token() -> None:
    """Another function would change every text that was ever written with a seed."""
    some = np.array([0, 1, 49_151])
    assert uniforms(42, Purpose.OWN, 7, some).tolist() == [0.21707728872515164, 0.9396906519955153, 0.04203083003603891]
    assert (uniforms(1, Purpose.OWN, 5, some) == uniforms(1, Purpose.OWN, 5, IDS)[some]).all()
    assert uniform(1, Purpose.COIN, 5) == uniforms(1, Purpose.COIN, 5, np.array([0]))[0]


@pytest.mark.parametrize("other", [(2, Purpose.OWN, 5), (1, Purpose.DRAFT, 5), (1, Purpose.OWN, 6)])
def test_noise_of_another_seed_purpose_or_position_is_independent(other: tuple[int, Purpose, int]) -> None:
    """Pairs are uniform in a grid of squares, also shifted against each other."""
    first, second = uniforms(1, Purpose.OWN, 5, IDS), uniforms(*other, IDS)
    for shift in (0, 1, 2):
        cells = (first * 20).astype(int) * 20 + (np.roll(second, shift) * 20).astype(int)
        assert chi_square(np.bincount(cells, minlength=400), np.full(400, 1 / 400)) > LIMIT


def test_noise_is_uniform_and_gumbel_noise_has_the_moments_of_gumbel() -> None:
    numbers = uniforms(9, Purpose.OWN, 1, IDS)
    assert 0 < numbers.min() < 1e-4 < 1 - 1e-4 < numbers.max() < 1
    assert chi_square(np.bincount((numbers * 1000).astype(int), minlength=1000), np.full(1000, 1e-3)) > LIMIT
    assert len(np.unique(numbers)) == len(IDS), "53 bits"
    noise = gumbel(9, Purpose.OWN, 1, IDS)
    assert noise.mean() == pytest.approx(0.5772, abs=0.01)
    assert noise.var() == pytest.approx(np.pi**2 / 6, rel=0.02)
