"""Admission: which drafts may connect to a lead."""

from __future__ import annotations

import hmac
from dataclasses import dataclass

from duo.errors import LinkError
from duo.link import messages
from duo.link.messages import Hello
from duo.llama.context import Context
from duo.llama.fingerprint import Fingerprint, fingerprint_difference
from duo.llama.model import Model


@dataclass(frozen=True, slots=True)
class TargetVocabulary:
    """What a draft must match."""

    fingerprint: Fingerprint
    n_ctx: int

    @classmethod
    def of(cls, model: Model, context: Context) -> TargetVocabulary:
        """The vocabulary of a target."""
        return cls(Fingerprint.of(model), context.n_ctx)


class ConnectionRejected(LinkError):
    """The connection ends; `reason` is the label under which this is counted."""

    def __init__(self, reason: str, message: str, *, is_final: bool = False) -> None:
        """`is_final`: the draft is told so and does not connect again."""
        super().__init__(message)
        self.reason = reason
        self.is_final = is_final


@dataclass(frozen=True, slots=True)
class Admission:
    """The conditions for a draft to connect."""

    token: str = ""  # that drafts must send; empty: any
    closed: bool = False  # accepts none
    is_own: bool = False  # for the lead's own process, however many drafts are connected
    hello_s: float = 5.0  # for a draft to send its first message

    def check(self, data: bytes, target: TargetVocabulary | None) -> tuple[Hello, TargetVocabulary]:
        """Decode and check a draft's first message; `target` is None while it is loading. Raises ConnectionRejected."""
        if (version := messages.other_version(data)) is not None:
            versions = f"it uses protocol {version}, the lead {messages.VERSION}"
            raise ConnectionRejected("version", f"{versions}: use the same version of duo", is_final=True)
        hello = decode(data)
        if not isinstance(hello, Hello):
            raise ConnectionRejected("garbage", "its first message is not a Hello")
        if self.closed:
            message = "the lead accepts no remote drafts: start it with a token for them"
            raise ConnectionRejected("token", message, is_final=True)
        if not hmac.compare_digest(hello.token.encode(), self.token.encode()) and self.token:
            fault = "wrong" if hello.token else "missing"
            message = f"the token is {fault}: use the one that the lead was started with"
            raise ConnectionRejected("token", message, is_final=True)
        if target is None:
            raise ConnectionRejected("loading", "the model is still loading")
        draft = Fingerprint(hello.vocab_type, hello.n_vocab, hello.bos, hello.eos, hello.hashes)
        if difference := fingerprint_difference(target.fingerprint, draft):
            remedy = "start it with --vocab and a GGUF file that has the target's vocabulary"
            message = f"the draft does not match the target: {difference}: {remedy}"
            raise ConnectionRejected("vocabulary", message, is_final=True)
        return hello, target


def decode(data: bytes) -> messages.FromDraft:
    """Decode a draft's message. Raises ConnectionRejected."""
    try:
        return messages.from_draft(data)
    except LinkError as error:
        raise ConnectionRejected("garbage", str(error)) from None
