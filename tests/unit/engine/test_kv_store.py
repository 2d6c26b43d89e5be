import pytest
from hypothesis import given
from hypothesis import strategies as st

from duo.config import LARGE_BATCH
from duo.engine.kv_store import Cache, kept_exactly
from duo.speculation.types import TokenLogprobs
from tests.fakes import FakeContext


def cache(n_rollback: int | None = None) -> Cache:
    """After a text 1 2 3 4 5, the last token of which was not decoded."""
    held = Cache(FakeContext(n_rollback=n_rollback))
    assert held.begin([1, 2, 3, 4]) == 0
    held.context.decode([1, 2, 3, 4])
    held.end([1, 2, 3, 4, 5])
    return held


@pytest.mark.parametrize(
    ("n_rollback", "text", "kept"),
    [
        (None, [1, 2, 9, 9], 2),
        (None, [1, 2, 3, 4], 3),  # the last token is decoded again: its logits are wanted
        (None, [1, 2, 3, 4, 5, 6], 4),
        *((n_rollback, [1, 2, 9], 2 * (n_rollback == 2)) for n_rollback in (0, 1, 2)),  # kept whole or cleared
        (0, [1, 2, 3, 4, 9], 4),
    ],
)
def test_the_common_prefix_is_kept(n_rollback: int | None, text: list[int], kept: int) -> None:
    held = cache(n_rollback)
    assert held.begin(text) == held.context.n_past == kept
    assert held.begin(text) == held.context.n_past == 0, "nothing is known after a text that was interrupted"


def test_a_text_that_there_is_no_memory_to_copy_is_read_again() -> None:
    class Full(FakeContext):
        can_save, is_windowed, n_state_bytes = True, False, 1

        def save(self) -> None:
            raise MemoryError

        def load(self, state: object) -> bool:
            raise AssertionError(state)

    held = Cache(Full())
    held.context.decode([1, 2, 3, 4])
    held.end([1, 2, 3, 4, 5])
    saved = held.save()
    assert (saved.state, saved.n_bytes) == (None, 0)
    held.load(saved)
    assert (held.context.n_past, held.tokens) == (0, ())


def read(n_kept: int, n_prompt: int, n_batch: int) -> list[bool]:
    """Whether each token of a prompt that is read after `n_kept` tokens is in a large batch."""
    sizes = [min(n_batch, n_prompt - first) for first in range(n_kept, n_prompt, n_batch)]
    return [size >= LARGE_BATCH for size in sizes for _ in range(size)]


@given(st.sampled_from((8, 64, 100, 512)), st.lists(st.tuples(st.integers(1, 1300), st.integers(0, 1300)), min_size=2))
def test_with_exact_each_token_is_kept_or_read_as_in_a_new_context(n_batch: int, texts: list[tuple[int, int]]) -> None:
    kinds: list[bool] = []  # of the tokens in the cache
    held = Cache(FakeContext(n_ctx=3000, n_batch=n_batch), exact=True)
    for n_prompt, n_written in texts:
        n = held.begin([1] * n_prompt)
        kinds = kinds[:n] + read(n, n_prompt, n_batch)
        assert kinds == read(0, n_prompt, n_batch)
        for first in range(n, n_prompt, n_batch):
            held.context.decode([1] * min(n_batch, n_prompt - first), n_rows=0)
        for _ in range(min(n_written, 3)):
            held.context.decode([1])
            kinds.append(False)
        held.end([1] * len(kinds))


def test_with_exact_a_prompt_with_logprobs_was_read_in_small_batches() -> None:
    prompt, held = [1] * 200, Cache(FakeContext(n_ctx=300, n_batch=100), exact=True)
    for n_top, n_kept in ((None, 0), (0, 0), (None, 0)):
        assert held.begin(prompt, n_top) == n_kept
        for first in range(0, 200, 100):
            held.context.decode(prompt[first : first + 100], n_rows=0)
        held.end(prompt)
        assert not held.scored, "what is read again has none"
        held.scored += [TokenLogprobs(1, 0.0, ())] * 199 * (n_top == 0)
    assert held.begin(prompt) == 136, "it was read in large batches"


def test_with_exact_a_long_prefix_is_kept_except_for_a_last_batch() -> None:
    assert kept_exactly(1023, 1023, 1024, 512) == 1024 - LARGE_BATCH
    assert kept_exactly(600, 600, 1500, 512) == 600
    assert kept_exactly(50, 0, 60, 512) == 50
