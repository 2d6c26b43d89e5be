"""What a lead and a remote draft say to each other, as MessagePack in binary WebSocket messages. Pure.

    draft                                  lead
    Hello ───────────────────────────────►      version, token, vocabulary
          ◄─────────────────────────────── Welcome, or Refused and the end
          ◄─────────────────────────────── Begin       a text, with all its tokens so far
    Guess ───────────────────────────────►      one token, at once when it is made
          ◄─────────────────────────────── Text        what was accepted since; whether to guess on
    Alive ───────────────────────────────►      sign of life while it reads a long text, and after End
    Unable ──────────────────────────────►      it cannot guess in this text any more
          ◄─────────────────────────────── End

`serial` names one Begin. What belongs to another one is stale. `epoch` is the Session's.
"""

from __future__ import annotations

import math
from typing import Annotated, NoReturn, TypeVar

import msgspec

from duo.config import SamplingConfig
from duo.errors import DuoError, LinkError

VERSION = 1
ROUTE = "/v1/draft"  # of the WebSocket, on the lead's port
TRY_LATER = 1013  # why a connection is closed (RFC 6455, registry of close codes)
# Both ends leave out compression: messages are small, and it would cost time and memory.
MAX_FROM_DRAFT = 64 * 1024  # bytes of one message; the largest is a Hello
MAX_FROM_LEAD = 64 * 1024 * 1024  # a Begin may hold a long text
_LONGEST_S = 3600.0
_SUREST = 50.0  # confidence; what is more is as good

Number = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
Word = Annotated[str, msgspec.Meta(max_length=256)]
Tokens = list[Number]


class Message(msgspec.Struct, frozen=True, array_like=True):
    """Base of all messages."""


class Hello(Message, frozen=True, tag=1):
    """The first message of a draft. Its first fields are the same in every version."""

    version: int
    token: Word  # what shows that it may take part
    model: Word  # for people to read
    vocab_type: int
    n_vocab: Number
    bos: int
    eos: int
    blocks: Annotated[tuple[bytes, ...], msgspec.Meta(max_length=4096)]
    tail: Annotated[bytes, msgspec.Meta(max_length=8192)]


class GuessMessage(Message, frozen=True, tag=2):
    """The draft's token for a position, its confidence, and what it took to make; `n_known` tokens were accepted."""

    serial: Number
    epoch: Number
    n_known: Number
    position: Number
    token: Number
    confidence: float
    n_tokens: Number
    seconds: float


class Alive(Message, frozen=True, tag=3):
    """The draft is about to decode much, or has ended a text and is ready for the next."""

    serial: Number


class Unable(Message, frozen=True, tag=4):
    """The draft cannot guess in this text any more."""

    serial: Number


class Welcome(Message, frozen=True, tag=16):
    """The draft may take part."""

    n_ctx: Number  # tokens that a text can have


class Refused(Message, frozen=True, tag=17):
    """The draft may not take part."""

    reason: str


class Begin(Message, frozen=True, tag=18):
    """A text to guess in."""

    serial: Number
    n_vocab: Number  # guesses beyond it are of no use
    n_ahead: Number  # most guesses ahead of the accepted tokens
    sampling: SamplingConfig
    banned: Tokens
    epoch: Number
    tokens: Tokens
    may_draft: bool


class Text(Message, frozen=True, tag=19):
    """What was accepted after the first `position` tokens."""

    serial: Number
    epoch: Number
    position: Number
    tokens: Tokens
    may_draft: bool


class End(Message, frozen=True, tag=20):
    """There is nothing to guess now."""

    serial: Number


FromDraft = Hello | GuessMessage | Alive | Unable
FromLead = Welcome | Refused | Begin | Text | End

_encoder = msgspec.msgpack.Encoder()
_from_draft: msgspec.msgpack.Decoder[FromDraft] = msgspec.msgpack.Decoder(FromDraft)
_from_lead: msgspec.msgpack.Decoder[FromLead] = msgspec.msgpack.Decoder(FromLead)

M = TypeVar("M")


def encode(message: Message) -> bytes:
    """The bytes of a message."""
    return _encoder.encode(message)


def from_draft(data: bytes | str) -> FromDraft:
    """What a draft says, with every value in its range. Raises LinkError."""
    message = _decode(_from_draft, data, MAX_FROM_DRAFT)
    if isinstance(message, GuessMessage):
        if not math.isfinite(message.confidence):
            _reject("a confidence that is no number")
        if not 0 <= message.seconds <= _LONGEST_S:
            _reject("a time out of range")
    return message


def other_version(data: bytes | str) -> int | None:
    """The version of a Hello of another protocol, of which only the beginning is sure; None for all else."""
    try:
        match msgspec.msgpack.decode(data if isinstance(data, bytes) else b""):
            case [1, int(version), *_] if version != VERSION:
                return version
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        pass
    return None


def from_lead(data: bytes | str) -> FromLead:
    """What a lead says. Raises LinkError."""
    return _decode(_from_lead, data, MAX_FROM_LEAD)


def usable_confidence(message: GuessMessage) -> float:
    """The confidence, not beyond what a draft of duo's own would say."""
    return min(max(message.confidence, 0.0), _SUREST)


def _decode(decoder: msgspec.msgpack.Decoder[M], data: bytes | str, limit: int) -> M:
    if isinstance(data, str):
        _reject("text instead of bytes")
    if len(data) > limit:
        _reject(f"{len(data)} bytes at once")
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, DuoError, RecursionError, UnicodeDecodeError) as error:
        raise LinkError(f"not a message of protocol {VERSION}: {error}") from None


def _reject(what: str) -> NoReturn:
    raise LinkError(f"not a message of protocol {VERSION}: {what}")
