"""What the engine requires of a context, on a real model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest

from duo.config import ContextConfig, ModelConfig
from duo.errors import DecodeAborted, DecodeError
from duo.llama.context import Context
from duo.llama.model import Model
from duo.llama.model_size import BRANCH_CELLS
from tests.process.llama.helpers import calling

TEXT = "Once upon a time there was a lighthouse keeper who had never seen the sea, because the fog never lifted. " * 10

Make = Callable[..., Context]


@pytest.fixture(scope="module")
def model(demo_pair: tuple[Path, Path]) -> Iterator[Model]:
    with closing(Model(ModelConfig(demo_pair[1]))) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def text(model: Model) -> list[int]:
    """256 tokens."""
    return (model.tokenize(TEXT) * 2)[:256]


@pytest.fixture
def make(model: Model) -> Iterator[Make]:
    """Makes contexts of 256 tokens."""
    with ExitStack() as stack:
        yield lambda **more: stack.enter_context(closing(Context(model, ContextConfig(256, 1, 1, **more))))


@pytest.mark.parametrize("exact", [False, True])
def test_the_full_context_can_be_used_and_no_more(text: list[int], make: Make, exact: bool) -> None:
    context = make(exact=exact)
    context.decode(text[: context.n_ctx - 1])
    context.decode(text[:1])
    assert context.n_past == context.n_ctx
    with pytest.raises(DecodeError, match="rejected 2 tokens after"):
        context.decode(text[:2])


def test_cancel_and_abort_end_a_decode_from_another_thread(text: list[int], make: Make) -> None:
    context = make()
    for end in (context.cancel, context.abort):
        with calling(end), pytest.raises(DecodeAborted):  # noqa: PT012 - a decode may end before it is called
            for _ in range(100_000):
                context.decode(text[:200])
                context.rollback(0)
        assert context.n_past == 0
        context.resume()
        context.decode(text[:1])
        context.rollback(0)
    context.abort()
    with pytest.raises(DecodeAborted):
        context.decode(text[:1])


@pytest.mark.parametrize("kind", ["f16", "q8_0"])
def test_cache_size_is_what_llama_cpp_takes(model: Model, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    config = ContextConfig(512, 1, 1, type_k=kind, type_v=kind, flash_attn="on")
    with caplog.at_level("INFO", logger="duo.llama"):
        Context(model, config).close()
    (line,) = [record.message for record in caplog.records if "KV buffer size" in record.message]
    assert float(line.split("=")[1].split()[0]) == pytest.approx(sum(model.size.cache_bytes(config)) / 2**20, abs=0.01)


def test_the_first_decode_of_a_size_on_a_device_is_marked(
    model: Model, text: list[int], make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {2: True, 1: True, 5: True, 70: True, 80: False, 100: False}
    for on_device in (False, True):
        monkeypatch.setattr(model, "places", frozenset({"GPU0" if on_device else "CPU"}))
        context = make()
        for n, is_first in [*sizes.items(), (2, False), (5, False)]:
            context.decode(text[:n])
            assert context.was_first == (on_device and is_first), n
            context.rollback(0)


# Branches


def test_a_branch_becomes_the_text(text: list[int], make: Make) -> None:
    """After branches, a batch belongs to the text, although its memory is reused."""
    context, other = make(n_branches=2), make()
    context.decode(text[:20])
    context.branch(1, 15)
    context.branch(2, 12)
    context.decode_each([(0, 60), (1, 70), (2, 80)])
    context.decode_each([(2, 81), (1, 71)])
    context.adopt(1)
    assert context.n_past == 17
    other.decode([*text[:15], 70, 71])
    assert np.abs(context.decode([72]) - other.decode([72])).max() < 1.0, "other kernels, the same text"
    context.drop(2)
    for each in (context, other):
        each.rollback(10)
    assert (context.decode(text[10:14], n_rows=4) == other.decode(text[10:14], n_rows=4)).all()


def test_the_cells_of_dropped_branches_are_free(text: list[int], make: Make) -> None:
    """A cache full of text has room for all branches, again and again."""
    context, branches = make(n_branches=8), range(1, 9)
    context.decode(text)
    for _ in range(3):
        for sequence in branches:
            context.branch(sequence, 200)
        for i in range(BRANCH_CELLS):
            context.decode_each([(sequence, 100 + i) for sequence in branches])
        for sequence in branches:
            context.drop(sequence)
