"""The protocol between a lead and a remote draft: MessagePack in binary WebSocket messages. Pure.

    draft                                  lead
    Hello ───────────────────────────────►      version, token, vocabulary
          ◄─────────────────────────────── Welcome, or Refused and the end
    Times ───────────────────────────────►      of its decodes
          ◄─────────────────────────────── Begin       a text, with all its tokens so far
    Candidate ───────────────────────────►      what a decode has made, at once: a candidate, and prepared outcomes
          ◄─────────────────────────────── Text        the tokens accepted since; what is verified; how far to draft
    Alive ───────────────────────────────►      sign of life before a long decode, and after End
    Unable ──────────────────────────────►      it can no longer draft for this text
          ◄─────────────────────────────── End

`serial` identifies one Begin; messages about any other are stale. `epoch` is the TokenSequence's.
"""

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any

import msgspec

from duo.config import MAX_BRANCHES, SamplingConfig
from duo.errors import DuoError, LinkError
from duo.llama.fingerprint import Fingerprint
from duo.speculation.acceptance import Lookahead

VERSION = 3
TRY_LATER = 1013  # close code (RFC 6455, registry)
# Neither side compresses: messages are small, and compression costs time and memory.
LONG = 16  # decodes of more tokens are announced, because they may take long: see Alive
MAX_FROM_LEAD = 64 * 1024 * 1024  # bytes of one message: a Begin may contain a long text

Number = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
Word = Annotated[str, msgspec.Meta(max_length=256)]
Tokens = list[Number]
Finite = Annotated[float, msgspec.Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=3600)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Sequences = Annotated[int, msgspec.Meta(ge=1, le=MAX_BRANCHES + 1)]
Alternatives = Annotated[tuple[Number, ...], msgspec.Meta(max_length=8)]


class Message(msgspec.Struct, frozen=True, array_like=True):
    """Base of all messages."""


class TextMessage(Message, frozen=True):
    """Base of those about one text."""

    serial: Number


class Hello(Message, frozen=True, tag=1):
    """The first message of a draft. Its first field is the same in every version."""

    version: int
    token: Word  # authenticates the draft
    model: Word  # name, for logs
    vocabulary: Fingerprint
    process: Word = ""  # random, the same for all connections of a process; "": this is the only one


class PreparedToken(Message, frozen=True):
    """A token for `position` that continues an outcome: the target's token at position `wrong` is `right`."""

    wrong: Number
    right: Number
    position: Number
    token: Number
    confidence: Finite
    alternatives: Alternatives = ()


class CandidateMessage(TextMessage, frozen=True, tag=2):
    """A candidate for `position` and its cost. `n_known`: accepted tokens that it builds on.

    The decode had a token in each of `n_sequences`; in those beside the candidate's it has `prepared` outcomes.
    """

    epoch: Number
    n_known: Number
    position: Number
    token: Number | None  # None: it continued outcomes only
    confidence: Finite
    n_tokens: Number
    seconds: Seconds
    alternatives: Alternatives = ()
    n_sequences: Sequences = 1
    prepared: Annotated[tuple[PreparedToken, ...], msgspec.Meta(max_length=MAX_BRANCHES)] = ()
    late_s: Seconds = 0.0  # from the order of this epoch to its first decode, if this is it


class Alive(TextMessage, frozen=True, tag=3):
    """The draft is about to decode more than LONG tokens, or is ready for the next text."""


class Unable(TextMessage, frozen=True, tag=4):
    """The draft can no longer draft for this text."""


class Times(Message, frozen=True, tag=5):
    """The draft can decode. Seconds for a token in each of so many sequences; none: it prepares no outcomes."""

    seconds: dict[Sequences, Annotated[float, msgspec.Meta(gt=0, le=3600)]]
    aborts: bool = True  # whether its device can abort a decode


class Welcome(Message, frozen=True, tag=16):
    """The draft is accepted."""

    n_ctx: Number  # the target's context size


class Refused(Message, frozen=True, tag=17):
    """The draft is not accepted."""

    reason: str


class Ahead(Message, frozen=True):
    """A Lookahead: how far to draft."""

    n_ahead: Number
    least: Share
    accepted: Annotated[tuple[Share, ...], msgspec.Meta(min_length=9, max_length=36)]
    n_branches: Annotated[int, msgspec.Meta(ge=0, le=MAX_BRANCHES)]
    ranks: Annotated[tuple[Share, ...], msgspec.Meta(max_length=8)]

    @staticmethod
    def of(found: Lookahead) -> "Ahead":
        """As a message has it."""
        return Ahead(found.n_ahead, found.least, tuple(found.accepted), found.n_branches, tuple(found.ranks))

    def lookahead(self) -> Lookahead:
        """As the draft uses it."""
        return Lookahead(self.n_ahead, self.least, self.accepted, self.n_branches, self.ranks)


class Begin(TextMessage, frozen=True, tag=18):
    """A text to draft for."""

    n_vocab: Number  # the target's: tokens beyond it are useless
    sampling: SamplingConfig
    banned: Tokens
    epoch: Number
    tokens: Tokens
    may_draft: bool
    ahead: Ahead | None = None  # None: draft nothing yet


class Text(TextMessage, frozen=True, tag=19):
    """The tokens accepted after the first `position` tokens."""

    epoch: Number
    position: Number
    tokens: Tokens
    may_draft: bool
    n_verified: Number = 0  # tokens in the text if all candidates that are being verified are accepted; 0: none are
    ahead: Ahead | None = None  # None: as before


class End(TextMessage, frozen=True, tag=20):
    """The text has ended, or another draft is in use."""


FromDraft = Hello | CandidateMessage | Alive | Unable | Times
FromLead = Welcome | Refused | Begin | Text | End

encode: Callable[[Message], bytes] = msgspec.msgpack.Encoder().encode


def sendable(name: str) -> str:
    """The name of a file, or one typed, as a message can have it: its bytes need not be UTF-8."""
    return name.encode("utf-8", "replace").decode()


def _decoding(kind: Any) -> Callable[[bytes | str], Any]:
    decoder = msgspec.msgpack.Decoder(kind)

    def decode(data: bytes | str) -> Any:
        try:
            return decoder.decode(data)  # type: ignore[arg-type]  # text is a TypeError
        except (msgspec.DecodeError, DuoError, RecursionError, UnicodeDecodeError, TypeError) as error:
            raise LinkError(f"not a message of protocol {VERSION}: {error}") from None

    return decode


# They raise LinkError.
from_draft: Callable[[bytes], FromDraft] = _decoding(FromDraft)
from_lead: Callable[[bytes | str], FromLead] = _decoding(FromLead)


def other_version(data: bytes) -> int | None:
    """The protocol version of a Hello, if it is not this one; None for anything else."""
    with suppress(msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        match msgspec.msgpack.decode(data):
            case [1, int(version), *_] if version != VERSION:
                return version
    return None


def printable(text: str) -> str:
    """What the other side has sent, as it may be shown on a terminal."""
    return "".join(char if char.isprintable() else "?" for char in text)
