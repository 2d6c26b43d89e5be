"""A translator between a draft and a target that a test moves."""

from collections.abc import Sequence

from duo.speculation.translation import Tokenizer, Translator
from duo.speculation.types import whole

PROMPT = [1000, 1001]  # in the draft's tokens
N_PROMPT = 3  # in the target's


class Translating:
    """The draft behaves as Drafter, the target as TokenSequence does."""

    def __init__(self, target: Tokenizer, draft: Tokenizer, rest: bytes = b"", *, replace: bool = True) -> None:
        self.target, self.draft = target, draft
        self.translator = Translator(target, draft, N_PROMPT, PROMPT, rest)
        self.replace = replace
        self.accepted: list[int] = []  # by the target, after the prompt
        self.text = bytearray(rest)
        self.pending: list[tuple[int, float]] = []  # offered tokens and their confidences
        self.tokens: list[int] = []  # the draft's: told, then its own
        self.n_told = 0
        self._n_retold = 0
        self._has_begun = False
        self.is_open = False  # whether the last token told may be replaced by a longer one
        self.translator.accept([0] * N_PROMPT)
        self.begin()

    def accept(self, *tokens: int) -> None:
        """The target adds tokens; contradicted candidates are dropped."""
        is_new_chain = False
        for token in tokens:
            self.accepted.append(token)
            self.text += self.target.piece(token)
            if self.pending and self.pending.pop(0)[0] != token:
                self.pending.clear()
                is_new_chain = True
        self.translator.accept(tokens, is_new_chain=is_new_chain)
        self.begin()

    def begin(self, *, tentative: bool = False) -> None:
        """What a draft does before a token."""
        self._collect(tentative=tentative)
        n_replaced, fresh, self.is_open = self.translator.tell()
        if not self._has_begun:
            assert (n_replaced, fresh[:2]) == (0, PROMPT)
            self._has_begun, fresh = True, fresh[2:]
        self.n_told -= n_replaced
        own = self.tokens[self.n_told :]
        if self.translator.n_retold != self._n_retold or own[: len(fresh)] != fresh:
            self.tokens[self.n_told :] = fresh
        self._n_retold = self.translator.n_retold
        self.n_told += len(fresh)

    def candidate(self, *tokens: int, confidence: float = 1.0, tentative: bool = False) -> None:
        """The draft drafts tokens."""
        for token in tokens:
            self.begin(tentative=tentative)
            self.translator.draft(token, confidence)
            self.tokens.append(token)
            self._collect(tentative=tentative)

    def lengthen(self, token: int, confidence: float = 1.0, *, tentative: bool = False) -> None:
        """The draft replaces the last token that it was told."""
        self.tokens[-1:] = [token]
        self.is_open = False
        self.n_told -= 1
        self.translator.draft(token, confidence, replaces=True)
        self._collect(tentative=tentative)

    def _collect(self, *, tentative: bool) -> None:
        for position, (_, token, confidence) in self.translator.offers(tentative=tentative, replace=self.replace):
            i = position - N_PROMPT - len(self.accepted)
            assert i == len(self.pending) or (self.replace and 0 <= i < len(self.pending))
            self.pending[i:] = [(token, confidence)]

    @property
    def offered(self) -> list[bytes]:
        return [self.target.piece(token) for token, _ in self.pending]

    @property
    def told(self) -> list[bytes]:
        return [self.draft.piece(token) for token in self.tokens[: self.n_told]]

    def check(self) -> None:
        """Assert that both sides are told the same text.

        What the draft has spells the accepted text, and what is offered spells what was drafted.
        """
        pieces = [self.draft.piece(token) for token in self.tokens]
        n_pieces = pieces.index(b"") if b"" in pieces else len(pieces)
        drafted, text = b"".join(pieces[:n_pieces]), bytes(self.text)
        complete = text[: whole(text)]
        if spell(self.draft, self.draft.fragment(complete)) != complete:
            return  # it lacks a character
        assert complete.startswith(b"".join(self.told))
        assert drafted.startswith(complete)
        offered = b"".join(self.offered)  # without end tokens
        assert not offered or drafted.startswith(text + offered)


def spell(tokenizer: Tokenizer, tokens: Sequence[int]) -> bytes:
    """The text of tokens."""
    return b"".join(map(tokenizer.piece, tokens))
