"""Values exchanged between proposers, target and controller."""

import codecs
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.floating[Any]]
Floats = npt.NDArray[np.float64]
TokenIds = npt.NDArray[np.int64]


class Distribution(NamedTuple):
    """Probabilities `[n]` of the tokens ids `[n]`, ascending; they sum to 1, all other tokens have probability 0."""

    ids: TokenIds
    probabilities: Floats

    def of(self, token: int) -> float:
        """The probability of `token`."""
        return float(self.probabilities[self.ids == token].sum())


class Origin(str, Enum):
    """Where candidates come from."""

    DRAFT = "draft"  # a draft model
    LOOKUP = "lookup"  # an earlier part of the text: see duo/speculation/prompt_lookup.py
    ANY = "any"  # arbitrary tokens, so that a batch of some size is measured


Source = Origin  # its public name: a Proposer is what proposes candidates


class Candidate(NamedTuple):
    """A drafted token: a candidate, once its sequence has taken it."""

    token: int
    confidence: float  # a draft's: gap between the two best scores, of which the token's is the best
    distribution: Distribution | None = None  # that it was drawn from, if verification needs it
    alternatives: tuple[int, ...] = ()  # the next-best tokens, best first


class Outcome(NamedTuple):
    """The draft is wrong at `position`, or that is after the last candidate; the target's token there is `token`."""

    position: int
    token: int


class Probe(NamedTuple):
    """What a draft would have drafted for a piece of the text, decoded in one batch."""

    scores: Sequence[tuple[float, bool]]  # (confidence, whether it equals the text) of each position
    n_tokens: int  # decoded; 0: not possible
    seconds: float  # 0: the time is not representative
    whole: bool  # whether the draft has now decoded all of the text


class Proposal(NamedTuple):
    """What a source has for the next batch."""

    candidates: Sequence[Candidate] = ()  # they continue the accepted tokens
    next_s: float = math.inf  # seconds until it has one more; infinity: it will not in this step
    origin: Origin = Origin.DRAFT
    # Of each candidate: the probability that it is right if those before it are, and from how many observations this is
    # known. Empty: the draft's estimates know it by confidence.
    chances: Sequence[tuple[float, float]] = ()
    draft: str = ""  # its name; empty: the proposer is no draft
    probe: Probe | None = None  # since the last proposal


class Plan(NamedTuple):
    """Verify these candidates now or, if `wait_s` is not None, wait that long for one more and plan again.

    Candidates of a plan to wait are what another proposer expects, which the draft may decode at once.
    """

    candidates: Sequence[Candidate] = ()
    proposer: int = -1  # the index of the proposal that they are from, or to wait for; -1: none
    origin: Origin = Origin.DRAFT
    wait_s: float | None = None
    alternatives: Sequence[Outcome] = ()  # to verify beside candidates; their positions count from the first of these


class StepCost(NamedTuple):
    """Seconds that a step of the target took: the decode alone, and in total with waits and sequential drafting."""

    n_candidates: int
    decode_s: float
    total_s: float
    source: Origin = Origin.DRAFT
    cpu_s: float = 0.0  # processor time of this process during the decode, per thread of the target


class Planned(Protocol):
    """What the controller knows of a text whose next step it plans."""

    tokens: list[int]
    n_room: int  # tokens that the step may add


class SizedResult(Protocol):
    """What a step adds to a text."""

    @property
    def tokens(self) -> Sequence[int]:
        """The new tokens."""


class TokenLogprobs(NamedTuple):
    """Natural logarithms of probabilities at the position of `token`, before any option of sampling changes them."""

    token: int
    logprob: float  # of `token`; -inf if the model excludes it
    top: tuple[tuple[int, float], ...]  # the most likely tokens and their logprobs, best first; of equals the lowest id


@dataclass(frozen=True, slots=True)
class Step:
    """What one decode of the target adds to the text; its first `n_accepted` tokens were drafted."""

    tokens: tuple[int, ...]
    n_accepted: int
    pieces: tuple[bytes, ...]  # bytes of each token; a character that spans tokens is in the piece of its last one
    rejected: tuple[int, ...] = ()  # candidates that were verified and rejected
    source: Origin = Origin.DRAFT  # of the drafted tokens
    logprobs: tuple[TokenLogprobs, ...] = ()  # of each of `tokens`, if the request asked for them

    @property
    def text(self) -> str:
        """The added text: whole characters, U+FFFD for bytes that are not UTF-8."""
        return b"".join(self.pieces).decode("utf-8", "replace")


def common_prefix(a: Sequence[object], b: Sequence[object]) -> int:
    """Length of the longest common prefix."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def whole(text: bytes | bytearray, end: int | None = None) -> int:
    """Length of `text[:end]` without an incomplete UTF-8 character at its end."""
    end = len(text) if end is None else end
    start = max(0, end - 3)
    return start + codecs.utf_8_decode(text[start:end], "replace", False)[1]
