"""How a draft predicts a text of its target, token by token, for simulations and for the limit of all schedules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from duo.engine.slot import Slot
from duo.spec.constants import DEFAULT
from duo.spec.sampling import Greedy

N_RANKS = len(DEFAULT.ranks)
_ROWS = DEFAULT.probe_tokens  # of logits that the draft's context has room for


@dataclass(frozen=True, slots=True)
class Trace:
    """How the draft predicts the target's text."""

    n_prompt: int
    scores: Sequence[tuple[float, bool]]  # confidence, and whether the prediction is right
    ranks: Sequence[int]  # of the target's token among the alternatives of each wrong one; -1: none of them

    def expected(self, k: int) -> float:
        """Mean tokens per verification if each has k candidates."""
        right, i, n_steps = [is_right for _, is_right in self.scores], 0, 0
        while i + k < len(right):
            i += next((n for n, is_right in enumerate(right[i : i + k]) if not is_right), k) + 1
            n_steps += 1
        return i / max(1, n_steps)


def traced(slot: Slot, prompt: Sequence[int], n_tokens: int) -> Trace:
    """Generate with the target alone, and let the draft predict each token. On the engine's thread, without emulation.

    Raises DecodeError.
    """
    assert slot.target_cache is not None
    assert slot.draft_cache is not None
    target, draft = slot.target_cache.context, slot.draft_cache.context
    banned = slot.target.end_tokens()
    sampler, guesser = Greedy(banned), Greedy(banned, N_RANKS)
    tokens, given = list[int](), list(prompt)
    while len(tokens) < n_tokens:
        logits = target.decode(given)
        tokens.append(sampler.sample(logits[-1], 0))
        given = tokens[-1:]
    draft.decode(prompt[:-1], 0)
    scores, ranks = [], []
    given = [prompt[-1], *tokens[:-1]]
    for start in range(0, n_tokens, _ROWS):
        batch = given[start : start + _ROWS]
        for row, token in zip(draft.decode(batch, len(batch)), tokens[start:], strict=False):
            guess = guesser.guess(row[: target.n_vocab], 0)
            scores.append((guess.confidence, guess.token == token))
            if guess.token != token:
                ranks.append(guess.alternatives.index(token) if token in guess.alternatives else -1)
    slot.forget()
    return Trace(len(prompt), scores, ranks)
