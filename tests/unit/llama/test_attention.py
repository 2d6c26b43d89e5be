"""Whether flash attention is fast here: duo/llama/attention.py."""

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from duo.llama import attention
from duo.llama.build import library


@pytest.fixture(autouse=True)
def _anew() -> None:
    attention.flash_is_fast.cache_clear()


@pytest.mark.parametrize(("flash_s", "is_fast"), [(0.4, True), (0.5, False)])
def test_both_kinds_are_compared_at_their_fastest(
    flash_s: float, is_fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = {True: iter([9.0] + 7 * [flash_s]), False: iter([9.0] + 7 * [0.1])}

    def fake(*_: object, is_flash: bool) -> Any:
        return lambda: next(seconds[is_flash])

    monkeypatch.setattr(attention, "_attention", fake)
    assert attention.flash_is_fast(64) is is_fast


@pytest.mark.parametrize("is_flash", [False, True])
@pytest.mark.parametrize("size", [32, 80, 512])
def test_the_kernels_can_be_called(size: int, is_flash: bool) -> None:
    with ExitStack() as stack:
        assert attention._attention(library(), stack, size, is_flash=is_flash)() > 0


def test_it_is_measured_for_the_size_of_the_models_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel may be fast for one size only."""
    sizes = set[int]()

    def fake(_: object, __: object, size: int, *, is_flash: bool) -> Any:
        sizes.add(size)
        return lambda: 9.0 if is_flash and size == 64 else 1.0

    monkeypatch.setattr(attention, "_attention", fake)
    assert [attention.flash_is_fast(size) for size in (64, 128, 0, 9999)] == [False, True, True, True]
    assert sizes == {64, 128, 32, 512}


def test_a_build_that_hides_them_is_as_if_they_were_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "library", lambda: SimpleNamespace(ggml_init=None))
    assert attention.flash_is_fast(64) is False
