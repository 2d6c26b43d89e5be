"""How far the caches of hybrid, recurrent and sliding-window models roll back, and that nothing is left behind."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest

from duo.config import ContextConfig, ModelConfig
from duo.errors import DecodeAborted, RollbackError
from duo.llama.context import Context
from duo.llama.model import Model
from duo.spec.types import Logits
from tests.gguf_files import tiny_gemma, tiny_hybrid, tiny_mamba, tiny_qwen35
from tests.process.llama.helpers import calling

HYBRIDS = {"lfm2": tiny_hybrid, "qwen35": tiny_qwen35}
WINDOW = 16

dice = random.Random(3)
TEXT = [dice.randrange(3, 270) for _ in range(400)]
WRONG = [dice.randrange(3, 270) for _ in range(16)]

Make = Callable[..., Context]


@contextmanager
def contexts(path: Path) -> Iterator[Make]:
    """Makes contexts of a model."""
    with closing(Model(ModelConfig(path))) as model, ExitStack() as stack:

        def make(n_outputs_max: int = 9, n_ctx: int = 512, *, exact: bool = True, **more: Any) -> Context:
            config = ContextConfig(n_ctx, 1, 1, n_outputs_max=n_outputs_max, exact=exact)
            return stack.enter_context(closing(Context(model, replace(config, **more))))

        yield make


@pytest.fixture(params=HYBRIDS)
def hybrid(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    with contexts(HYBRIDS[request.param](tmp_path / "hybrid.gguf")) as make:
        yield make


def read(context: Context, sizes: list[int], n_wrong: int = 0) -> Logits:
    """The logits of TEXT in batches of these sizes; so many wrong tokens come with each and are rolled back."""
    rows = []
    for size in sizes:
        n_past = context.n_past
        text = TEXT[n_past : n_past + size]
        rows.append(context.decode(text + WRONG[:n_wrong], size + n_wrong)[:size].copy())
        context.rollback(n_past + size)
    return np.concatenate(rows)


@pytest.mark.parametrize("sizes", [[1] * 24, [2, 1, 4, 1] * 3])
@pytest.mark.parametrize("n_wrong", [0, 1, 4])
def test_rolled_back_tokens_leave_no_trace_in_a_hybrid(hybrid: Make, sizes: list[int], n_wrong: int) -> None:
    """Bit by bit: with `exact`, a single token is decoded twice, and the second one is rolled back."""
    assert (read(hybrid(), sizes, n_wrong) == hybrid(24).decode(TEXT[:24], 24)).all()


@pytest.mark.parametrize(
    ("batches", "n_back"),
    [
        ([20, 9], 9),  # the state before the batch is not kept
        ([20, 9], 7),  # more than is granted
        ([20, 9, 2, 2, 2], 3),  # llama.cpp would take the state of an earlier batch for it
        ([20, 9, 1], 1),  # the same, of a single token
    ],
)
def test_more_than_is_kept_is_refused(hybrid: Make, batches: list[int], n_back: int) -> None:
    context = hybrid(exact=batches[-1] > 1)
    for n in batches:
        context.decode(TEXT[context.n_past : context.n_past + n])
    n_past = context.n_past
    with pytest.raises(RollbackError):
        context.rollback(n_past - n_back)
    assert context.n_past == n_past
    expected = hybrid(exact=context.exact)
    for n in [*batches, 3]:
        expected_row = expected.decode(TEXT[expected.n_past : expected.n_past + n])
    assert (context.decode(TEXT[n_past : n_past + 3]) == expected_row).all(), "it is as if nothing had been asked"


@pytest.mark.parametrize(("n_outputs_max", "n_ctx"), [(2, 2), (9, 8), (9, 512), (300, 512)])
def test_the_probe_rolls_back_all_that_is_granted(hybrid: Make, n_outputs_max: int, n_ctx: int) -> None:
    context = hybrid(n_outputs_max, n_ctx, n_ubatch=n_outputs_max)
    assert context.probe_rollback()
    assert context.n_past == 0
    n = min(9, context.n_ctx)
    assert (read(context, [1] * n) == read(hybrid(), [n])).all(), "and leaves nothing behind"


@pytest.mark.parametrize("n_past", [1, 20])
def test_after_a_decode_that_was_cancelled_nothing_is_left(hybrid: Make, n_past: int) -> None:
    """The state may have taken in a part of the batch."""
    context, was_cancelled = hybrid(), False
    with calling(context.cancel):
        while not was_cancelled:
            context.rollback(0)
            with suppress(DecodeAborted):
                context.decode(TEXT[:n_past])
                try:
                    context.decode(TEXT[n_past:])
                except DecodeAborted:
                    was_cancelled = True
    assert context.n_past == 0
    assert (read(context, [9]) == read(hybrid(), [9])).all()


def test_a_recurrent_model_rolls_back_everything_or_nothing(tmp_path: Path) -> None:
    with contexts(tiny_mamba(tmp_path / "recurrent.gguf")) as make:
        context = make(exact=False)
        assert context.n_rollback == 0
        assert not context.probe_rollback()
        context.decode(TEXT[:12])
        with pytest.raises(RollbackError):
            context.rollback(11)
        context.rollback(0)
        assert (read(context, [9]) == read(make(exact=False), [9])).all()


def test_a_window_is_rolled_back_with_what_is_in_front_of_it(tmp_path: Path) -> None:
    with contexts(tiny_gemma(tmp_path / "sliding.gguf", window=WINDOW)) as make:
        context, other = make(40, n_ubatch=40), make(40, n_ubatch=40)
        assert context.n_rollback is None
        read(context, [40] * 9)
        context.rollback(40 * 9 - 5 * WINDOW)
        read(other, [40] * 7)
        assert context.n_past == other.n_past
        assert (read(context, [40]) == read(other, [40])).all()


def test_a_cache_that_has_lost_its_beginning_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with contexts(tiny_gemma(tmp_path / "sliding.gguf", window=WINDOW)) as make:
        context = make()
        context.decode(TEXT[:9])
        monkeypatch.setattr(llama_cpp, "llama_memory_seq_pos_min", lambda *_: 5)
        with pytest.raises(RollbackError):
            context.rollback(7)
