"""A draft with another vocabulary: whatever it does, the text is the target's own."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duo.engine.drafter import DraftUpdate
from duo.engine.kv_store import Cache
from duo.engine.recorder import Recorder
from duo.engine.translated import TranslatedTarget, Translation
from duo.speculation.modes import Schedule
from duo.speculation.sampling import Greedy
from duo.speculation.translation import Translator
from duo.speculation.types import Candidate
from tests.fakes import N_VOCAB, FakeContext, Scripted, text_after
from tests.tokenizers import Words
from tests.unit.engine.helpers import PROMPT, Side, Unthreaded, Writing, make_ending, run

TARGET = Words("a", "b", "ab", " a", " b", " ", "é", b"\xc3", b"\xa9", "aba", "\n", "bb", " ab", "é a", "b a")
assert TARGET.n_vocab == N_VOCAB
DRAFT = Words(" aba", "bab", "a b", "abab", " bé", "éa", "b\n", " ", all_bytes=True)
DRAFT_PROMPT = [7, 7]
TEXT = text_after(PROMPT, 30)
BYTES = b"".join(map(TARGET.piece, TEXT))


class ToyTranslation(Translation):
    def __init__(self) -> None:
        """Without models."""

    def begin(self, text: Sequence[int]) -> tuple[list[int], Translator]:
        return list(DRAFT_PROMPT), Translator(TARGET, DRAFT, len(text), DRAFT_PROMPT)

    def sampler(self, *, ends: bool) -> Greedy:
        return Greedy(() if ends else (DRAFT.end,))


def mostly_right(prefix: Sequence[int]) -> int:
    """What the target writes next, in the draft's tokens, but sometimes any token."""
    text = b"".join(map(DRAFT.piece, prefix[len(DRAFT_PROMPT) :]))
    right = DRAFT.fragment(BYTES[len(text) :]) if sum(prefix) % 4 and BYTES.startswith(text) else []
    return (right or [sum(prefix) * 31 % DRAFT.n_vocab])[0]


@pytest.mark.parametrize("n_ctx", [8, 1000])
@given(
    moves=st.lists(st.integers(0, 4), max_size=30),
    script=st.lists(st.sampled_from(Schedule), min_size=1, max_size=30),
    probes=st.lists(st.booleans(), max_size=30),
)
def test_the_schedule_changes_at_any_step(
    n_ctx: int, moves: list[int], script: list[Schedule], probes: list[bool]
) -> None:
    numbers, context = iter(moves), FakeContext(mostly_right, n_ctx=n_ctx, n_vocab=DRAFT.n_vocab)
    draft = Unthreaded(Cache(context), Scripted(4, 6, iter(script), iter(probes)), ToyTranslation())

    def move() -> None:
        for _ in range(next(numbers, 1) if draft.estimates.schedule is Schedule.ASYNC else 0):
            draft.drafter.step()

    generation = Writing(FakeContext(during=move), draft, make_ending(len(TEXT)))
    assert run(generation, lambda _: move()) == TEXT
    assert generation.metrics.draft_error is None


def translated(side: Side) -> TranslatedTarget:
    translator = Translator(TARGET, DRAFT, len(PROMPT), DRAFT_PROMPT)
    return TranslatedTarget(side, translator, Recorder(), tentative=lambda: True)


def test_what_is_left_of_the_drafted_text_after_a_rejection_is_offered_again() -> None:
    side = Side(DraftUpdate(0, PROMPT))
    made = translated(side)
    made.begin()
    made.publish(0, 2, Candidate(DRAFT.of("abab")[0], 1.0), 1, 0.5)
    assert [TARGET.piece(candidate.token) for _, candidate, *_ in side.offers] == [b"aba", b"b"]
    side.said.append(DraftUpdate(1, TARGET.of("ab")))
    side.offers.clear()
    assert made.begin()[:4] == (0, [], 0, None)
    assert [(position, TARGET.piece(one.token), n) for position, one, n, _ in side.offers] == [(4, b"ab", 0)]


def test_a_token_that_the_target_split_becomes_a_longer_one() -> None:
    side = Side(DraftUpdate(0, [*PROMPT, *TARGET.of("ab")]))
    made = translated(side)
    found = made.begin()
    assert found.tokens == [*DRAFT_PROMPT, *DRAFT.of("a", "b")]
    assert found.longer is not None
    logits = np.full(DRAFT.n_vocab, -9.0, np.float32)
    b, longer = DRAFT.of("b", "b\n")
    logits[b], logits[longer], logits[DRAFT.of("a")] = 2.0, 1.0, 7.0
    assert found.longer(logits, b) is None, "it is less likely"
    logits[longer] = 3.5
    candidate = found.longer(logits, b)
    assert candidate == Candidate(longer, 1.5)
    made.publish(0, 3, candidate, 1, 0.5)
    assert [TARGET.piece(one.token) for _, one, *_ in side.offers] == [b"\n"]
