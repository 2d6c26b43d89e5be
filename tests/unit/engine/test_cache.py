import pytest

from duo.engine.cache import Cache
from tests.fakes import FakeContext


def cache(n_rollback: int | None = None) -> Cache:
    held = Cache(FakeContext(n_rollback=n_rollback))
    assert held.begin([1, 2, 3, 4]) == 0
    held.context.decode([1, 2, 3, 4])
    held.end([1, 2, 3, 4, 5])
    return held


def test_the_common_beginning_stays() -> None:
    held = cache()
    assert held.begin([1, 2, 9, 9]) == 2
    assert held.context.n_past == 2


def test_the_last_token_is_decoded_again_because_its_logits_are_wanted() -> None:
    held = cache()
    assert held.begin([1, 2, 3, 4]) == 3
    assert held.context.n_past == 3


def test_tokens_that_were_not_decoded_are_not_in_the_cache() -> None:
    assert cache().begin([1, 2, 3, 4, 5, 6]) == 4


def test_after_a_text_that_was_broken_off_nothing_is_known() -> None:
    held = cache()
    held.begin([1, 2, 3])
    assert held.begin([1, 2, 3]) == 0
    assert held.context.n_past == 0


@pytest.mark.parametrize(("n_rollback", "kept"), [(0, 0), (1, 0), (2, 2), (None, 2)])
def test_what_cannot_be_rolled_back_so_far_is_kept_whole_or_not_at_all(n_rollback: int | None, kept: int) -> None:
    assert cache(n_rollback).begin([1, 2, 9]) == kept
    assert cache(n_rollback).begin([1, 2, 3, 4, 9]) == 4
