import pytest

from duo.engine.cache import Cache
from tests.fakes import FakeContext


def cache(n_rollback: int | None = None) -> Cache:
    """After a text 1 2 3 4 5, the last token of which was not decoded."""
    held = Cache(FakeContext(n_rollback=n_rollback))
    assert held.begin([1, 2, 3, 4]) == 0
    held.context.decode([1, 2, 3, 4])
    held.end([1, 2, 3, 4, 5])
    return held


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ([1, 2, 9, 9], 2),
        ([1, 2, 3, 4], 3),  # the last token is decoded again: its logits are wanted
        ([1, 2, 3, 4, 5, 6], 4),
    ],
)
def test_the_common_prefix_is_kept(text: list[int], kept: int) -> None:
    held = cache()
    assert held.begin(text) == held.context.n_past == kept
    assert held.begin(text) == held.context.n_past == 0, "nothing is known after a text that was interrupted"


@pytest.mark.parametrize(("n_rollback", "kept"), [(0, 0), (1, 0), (2, 2), (None, 2)])
def test_a_cache_that_cannot_be_rolled_back_so_far_is_kept_whole_or_cleared(n_rollback: int | None, kept: int) -> None:
    assert cache(n_rollback).begin([1, 2, 9]) == kept
    assert cache(n_rollback).begin([1, 2, 3, 4, 9]) == 4
