import numpy as np
import pytest

from duo.spec.noise import Purpose, gumbel, uniform, uniforms
from tests.goodness import chi_square

IDS = np.arange(200_000)


def test_it_is_a_function_of_what_it_is_for() -> None:
    assert (uniforms(1, Purpose.OWN, 5, IDS) == uniforms(1, Purpose.OWN, 5, IDS)).all()
    some = np.array([7, 199_999, 3])
    assert (uniforms(1, Purpose.OWN, 5, some) == uniforms(1, Purpose.OWN, 5, IDS)[some]).all(), (
        "not of what is asked with it"
    )
    assert uniform(1, Purpose.COIN, 5) == uniforms(1, Purpose.COIN, 5, np.array([0]))[0]


def test_its_values_are_fixed_for_ever() -> None:
    """Another function would change every text that was ever written with a seed."""
    found = uniforms(42, Purpose.OWN, 7, np.array([0, 1, 49_151]))
    assert found.tolist() == [0.21707728872515164, 0.9396906519955153, 0.04203083003603891]


@pytest.mark.parametrize("other", [(2, Purpose.OWN, 5), (1, Purpose.DRAFT, 5), (1, Purpose.OWN, 6)])
def test_each_of_seed_purpose_and_position_makes_it_independent(other: tuple[int, Purpose, int]) -> None:
    """Pairs fall evenly into a grid of squares, also shifted against each other."""
    first, second = uniforms(1, Purpose.OWN, 5, IDS), uniforms(*other, IDS)
    for shift in (0, 1, 2):
        cells = (first * 20).astype(int) * 20 + (np.roll(second, shift) * 20).astype(int)
        assert chi_square(np.bincount(cells, minlength=400), np.full(400, 1 / 400)) > 1e-4


def test_it_is_uniform_and_gumbel_noise_is_gumbel() -> None:
    numbers = uniforms(9, Purpose.OWN, 1, IDS)
    assert 0 < numbers.min() < 1e-4 < 1 - 1e-4 < numbers.max() < 1
    assert chi_square(np.bincount((numbers * 1000).astype(int), minlength=1000), np.full(1000, 1e-3)) > 1e-4
    noise = gumbel(9, Purpose.OWN, 1, IDS)
    assert noise.mean() == pytest.approx(0.5772, abs=0.01)
    assert noise.var() == pytest.approx(np.pi**2 / 6, rel=0.02)
    assert len(np.unique(numbers)) == len(IDS), "53 bits"


def test_positions_and_seeds_run_on_without_a_pattern() -> None:
    """The same token over many positions, and over many seeds."""
    for numbers in (
        [uniform(3, Purpose.OWN, position) for position in range(20_000)],
        [uniform(seed, Purpose.OWN, 3) for seed in range(20_000)],
    ):
        values = np.array(numbers)
        assert chi_square(np.bincount((values * 200).astype(int), minlength=200), np.full(200, 1 / 200)) > 1e-4
        assert abs(np.corrcoef(values[1:], values[:-1])[0, 1]) < 0.03
