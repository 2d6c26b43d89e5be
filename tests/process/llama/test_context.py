"""What the engine requires of contexts, on real models and tiny ones of every kind."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest

from duo.config import ContextConfig, ModelConfig
from duo.errors import DecodeAborted, DecodeError, RollbackError
from duo.llama.context import Context
from duo.llama.model import BRANCH_CELLS, Model
from duo.speculation.types import Logits
from tests.gguf_files import tiny_gemma, tiny_hybrid, tiny_mamba, tiny_qwen35

STORY = "Once upon a time there was a lighthouse keeper who had never seen the sea, because the fog never lifted. " * 10

Make = Callable[..., Context]


@contextmanager
def calling(function: Callable[[], None]) -> Iterator[None]:
    """Meanwhile, another thread calls `function` again and again."""
    over = threading.Event()

    def call() -> None:
        while not over.wait(0.001):
            function()

    thread = threading.Thread(target=call)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.fixture(scope="module")
def model(demo_pair: tuple[Path, Path]) -> Iterator[Model]:
    with closing(Model(ModelConfig(demo_pair[1]))) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def text(model: Model) -> list[int]:
    """256 tokens."""
    return (model.tokenize(STORY) * 2)[:256]


@pytest.fixture
def make(model: Model) -> Iterator[Make]:
    """Makes contexts of 256 tokens."""
    with ExitStack() as stack:
        yield lambda **more: stack.enter_context(closing(Context(model, ContextConfig(256, 1, 1, **more))))


@pytest.mark.parametrize(
    ("about", "is_fast", "flash_attn"),
    [({}, False, "off"), ({}, True, "on"), ({"type_v": "q8_0"}, False, "on"), ({"exact": True}, False, "on")], ids=str,
)  # fmt: skip
def test_on_the_cpu_flash_attention_is_off_where_it_is_slow_unless_it_is_needed(
    text: list[int], make: Make, monkeypatch: pytest.MonkeyPatch, about: dict[str, Any], is_fast: bool, flash_attn: str
) -> None:
    monkeypatch.setattr("duo.llama.context_params.flash_is_fast", lambda _: is_fast)
    expected = make(flash_attn=flash_attn, **about).decode(text[:5], 1).copy()
    assert np.array_equal(make(**about).decode(text[:5], 1), expected)


@pytest.mark.parametrize(("name", "value"), [("_MAX_SCORES", 0), ("available_bytes", lambda: 1)])
def test_flash_attention_is_used_where_scores_would_need_much_memory(
    text: list[int], make: Make, monkeypatch: pytest.MonkeyPatch, name: str, value: object
) -> None:
    expected = make(flash_attn="on").decode(text[:5], 1).copy()
    monkeypatch.setattr("duo.llama.context_params.flash_is_fast", lambda _: False)
    monkeypatch.setattr(f"duo.llama.context_params.{name}", value)
    monkeypatch.setattr("duo.llama.context.check_memory", lambda *_: None)
    assert np.array_equal(make().decode(text[:5], 1), expected)


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


# Alternatives to candidates


@pytest.mark.parametrize(("n_right", "came_true"), [(0, 0), (2, 1), (2, -1), (3, -1)])
def test_alternatives_to_candidates_are_decoded_beside_these(
    text: list[int], make: Make, n_right: int, came_true: int
) -> None:
    """The rows after each, and the text that settle() leaves, are those of the same tokens in succession."""
    context, other = make(n_alternatives=3, flash_attn="off"), make(flash_attn="off")
    candidates, alternatives = [60, 61, 62], [(0, 70), (2, 71), (2, 72)]
    context.decode(text[:20])
    rows = context.decode_with([text[20], *candidates], alternatives).copy()
    for row, before in zip(rows, [[], [60], [60, 61], candidates, [70], [60, 61, 71], [60, 61, 72]], strict=True):
        other.rollback(0)
        assert np.abs(row - other.decode([*text[:21], *before])).max() < 1.0, "other kernels, the same text"
    context.settle(21 + n_right, came_true)
    left = [*text[:21], *candidates[:n_right], *([alternatives[came_true][1]] if came_true >= 0 else [])]
    assert context.n_past == len(left)
    other.rollback(0)
    other.decode(left)
    assert np.abs(context.decode(text[30:34], n_rows=4) - other.decode(text[30:34], n_rows=4)).max() < 1.0


def test_the_cells_of_alternatives_are_free_afterwards(text: list[int], make: Make) -> None:
    context, other = make(n_alternatives=8), make()
    context.decode(text[:200])
    for _ in range(40):
        context.decode_with([text[200], 60, 61], [(i % 2, 70 + i) for i in range(8)])
        context.settle(200)
    with calling(context.cancel), suppress(DecodeAborted):
        for _ in range(200):
            context.decode_with([text[200], 60, 61], [(i % 2, 70 + i) for i in range(8)])
            context.settle(200)
    other.decode(text[:200])
    assert (context.decode(text[200:256], n_rows=4) == other.decode(text[200:256], n_rows=4)).all()


# How far the caches of hybrid, recurrent and sliding-window models roll back, and that nothing is left behind

HYBRIDS: dict[str, Callable[..., Path]] = {"lfm2": tiny_hybrid, "qwen35": tiny_qwen35}
WINDOW = 16

dice = random.Random(3)
TEXT = [dice.randrange(3, 270) for _ in range(400)]
WRONG = [dice.randrange(3, 270) for _ in range(16)]


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
