"""What a draft with another vocabulary is told and offers: tests/proof/test_sources.py has whole texts."""

from __future__ import annotations

import numpy as np

from duo.engine.metrics import Metrics
from duo.engine.queue import DraftUpdate
from duo.engine.translated import TranslatedTarget
from duo.spec.translation import Translator
from duo.spec.types import Guess
from tests.tokenizers import Words
from tests.unit.engine.helpers import PROMPT

TARGET = Words("a", "b", "ab", " a", " b", " ", "é", b"\xc3", b"\xa9", "aba", "\n", "bb", " ab", "é a", "b a")
DRAFT = Words(" aba", "bab", "a b", "abab", " bé", "éa", "b\n", " ", all_bytes=True)
DRAFT_PROMPT = [7, 7]


class OneSide:
    """A target's side that has accepted these tokens after the prompt, and notes what is offered."""

    def __init__(self, *pieces: str) -> None:
        self.fresh = [*PROMPT, *TARGET.of(*pieces)]
        self.epoch = 0
        self.offers: list[tuple[int, Guess, int, float]] = []

    def begin(self) -> DraftUpdate:
        tokens, self.fresh = self.fresh, []
        return DraftUpdate(self.epoch, tokens)

    def publish(self, epoch: int, position: int, guess: Guess, n_tokens: int, seconds: float) -> bool:
        assert epoch == self.epoch
        self.offers.append((position, guess, n_tokens, seconds))
        return True


def translated(side: OneSide) -> TranslatedTarget:
    translator = Translator(TARGET, DRAFT, len(PROMPT), DRAFT_PROMPT)
    return TranslatedTarget(side, translator, Metrics(), tentative=True)


def test_what_is_left_of_the_drafted_text_after_a_rejection_is_offered_again() -> None:
    side = OneSide()
    made = translated(side)
    made.begin()
    made.publish(0, 2, Guess(DRAFT.of("abab")[0], 1.0), 1, 0.5)
    assert [TARGET.piece(guess.token) for _, guess, *_ in side.offers] == [b"aba", b"b"]
    side.fresh, side.epoch = TARGET.of("ab"), 1
    side.offers.clear()
    assert made.begin()[:4] == (0, [], 0, None)
    assert [(position, TARGET.piece(one.token), n) for position, one, n, _ in side.offers] == [(4, b"ab", 0)]


def test_a_token_that_the_target_split_becomes_a_longer_one() -> None:
    side = OneSide("ab")
    made = translated(side)
    found = made.begin()
    assert found.tokens == [*DRAFT_PROMPT, *DRAFT.of("a", "b")]
    assert found.longer is not None
    logits = np.full(DRAFT.n_vocab, -9.0, np.float32)
    b, longer = DRAFT.of("b", "b\n")
    logits[b], logits[longer], logits[DRAFT.of("a")] = 2.0, 1.0, 7.0
    assert found.longer(logits, b) is None, "it is less likely"
    logits[longer] = 3.5
    guess = found.longer(logits, b)
    assert guess == Guess(longer, 1.5)
    made.publish(0, 3, guess, 1, 0.5)
    assert [TARGET.piece(one.token) for _, one, *_ in side.offers] == [b"\n"]
