"""Translation between the tokens of a target and those of a draft with another vocabulary, through the text.

Towards the draft, the accepted target tokens become bytes. As long as these are what the draft has drafted, the draft
keeps its own tokens. Where they differ, a short suffix is tokenised with the draft's vocabulary.

Towards the target, the drafted text is tokenised with the target's vocabulary after each drafted token. What follows
may change the tokens before it, so a target token is *stable* once two successive tokenisations agree on it ("local
agreement" in streaming speech recognition: Liu, Spanakis and Niehues 2020), and *tentative* until then.

Offsets are in bytes from the end of the prompt. A *fragment* is a piece from the middle of a text.
"""

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple, Protocol

from duo.speculation.types import common_prefix, whole

SURE = 50.0  # the confidence of a target token in which no drafted token begins: the highest there is
_SPAN = 64  # bytes before a difference that may be tokenised again
_PATIENCE = 8  # drafted tokens without a stable target token, after which tentative ones are offered
_PRIOR = 16  # tokens of the text for which as many of the draft's are assumed
_end = attrgetter("end")


class Tokenizer(Protocol):
    """A vocabulary."""

    @property
    def end(self) -> int:
        """The token that ends a message; -1: none."""

    def piece(self, token: int) -> bytes:
        """The bytes of a token in a text; empty for special tokens."""

    def fragment(self, text: bytes) -> list[int]:
        """The tokens of a fragment. Characters that cannot be tokenised are left out."""

    def is_end(self, token: int) -> bool:
        """Whether the token ends a text."""


class _Drafted(NamedTuple):
    token: int
    end: int  # offset
    confidence: float


class Offered(NamedTuple):
    """A target token made from drafted text, which starts at offset `start`."""

    start: int
    token: int
    confidence: float


class Translator:
    """Translates one text. Mirrors the draft's tokens: what it was told, and what it has drafted since."""

    def __init__(
        self, target: Tokenizer, draft: Tokenizer, n_prompt: int, prompt: Sequence[int], rest: bytes = b""
    ) -> None:
        """`prompt`: the first `n_prompt` target tokens, which accept() gets first, in the draft's, but for `rest`."""
        self._target, self._draft = target, draft
        self._prompt = list(prompt)  # until the draft was told of it
        self._n_prompt = n_prompt
        self._n_accepted = 0  # the prompt included
        self._text = bytearray(rest)  # accepted
        self._drafted = bytearray()  # the draft's text
        self._n_common = 0  # bytes at the start of both
        self._tokens: list[_Drafted] = []  # the draft's after the prompt: those it was told, then its own
        self._end = sys.maxsize  # index of the first of its own that ends the text, if there is one
        self._n_told = 0  # of _tokens
        self._n_kept = 0  # of those told, how many are unchanged
        self._is_open = False  # see tell()
        self._origin = 0  # from where the drafted text is tokenised for the target
        self._latest: list[Offered] = []  # the target tokens of the drafted text that is not accepted
        self._previous: list[Offered] = []  # the same, one drafted token earlier
        self._offered: list[Offered] = []  # the same, as they were offered
        self._n_stable = 0  # of these
        self._n_silent = 0  # tokens drafted since the last one was offered
        self.n_retold = 0  # how often the target's text was not the draft's
        self.n_lost = 0  # stable tokens that changed, or that the target spelled in other tokens

    @property
    def ratio(self) -> float:
        """Draft tokens per target token in the accepted text after the prompt; 1 at its start."""
        return (_PRIOR + self._n_settled) / (_PRIOR + self._n_accepted - self._n_prompt)

    def piece(self, token: int) -> bytes:
        """The bytes of one of the draft's tokens."""
        return self._draft.piece(token)

    def accept(self, tokens: Sequence[int], *, is_new_chain: bool = False) -> None:
        """The target's text continues with `tokens`. `is_new_chain`: all that was offered before has been dropped."""
        self._n_accepted += len(tokens)
        tokens = tokens[max(0, len(tokens) - (self._n_accepted - self._n_prompt)) :]
        self._text += b"".join(map(self._target.piece, tokens))
        n_same = common_prefix(tokens, [one.token for one in self._offered])
        differs = n_same < min(len(tokens), len(self._offered))
        del self._offered[: n_same + differs]
        self._n_stable = max(0, self._n_stable - n_same - differs)
        self._compare()
        self.n_lost += differs and self._n_common == len(self._text)
        if differs or is_new_chain:
            self._offered, self._n_stable = [], 0
        n_whole = whole(self._text)
        if self._n_common < n_whole:
            self._retell(n_whole)
        if tokens:
            self._latest = self._translate(len(self._tokens))
            kept = [one for one in self._previous if one.start >= len(self._text)]
            self._previous = self._translate(len(self._tokens) - 1) if differs else kept

    def tell(self) -> tuple[int, list[int], bool]:
        """After accept(): how many of the last tokens told are replaced, what follows, and whether that ends in a word.

        It may do so where the target's tokens are another.
        """
        n_settled = self._n_settled
        told = [one.token for one in self._tokens[self._n_kept : n_settled]]
        is_open = self._is_open and n_settled == len(self._tokens)
        update = self._n_told - self._n_kept, self._prompt + told, is_open
        self._n_told = self._n_kept = n_settled
        self._prompt, self._is_open = [], False
        return update

    def draft(self, token: int, confidence: float, *, replaces: bool = False) -> None:
        """The draft continues its text with `token`, which may replace the last one told by one that begins alike."""
        if replaces:
            del self._tokens[-1]
            self._n_told = self._n_kept = len(self._tokens)
            self._n_common = self._offset(self._n_told)
            del self._drafted[self._n_common :]
        piece = self._draft.piece(token)
        if not piece or self._draft.is_end(token):
            self._end = min(self._end, len(self._tokens))
        if self._end > len(self._tokens):
            self._drafted += piece
            self._compare()
        self._tokens.append(_Drafted(token, len(self._drafted), confidence))
        self._n_silent += 1
        self._previous, self._latest = self._latest, self._translate(len(self._tokens))

    def offers(self, *, tentative: bool, replace: bool) -> list[tuple[int, Offered]]:
        """What to offer now: (position, token), in order.

        The first may replace a token that was offered for its position, with all that follow. With `replace` false this
        is not possible: nothing is offered until the target has contradicted the token.
        """
        has_ended = self._end < len(self._tokens)
        n_stable = len(self._latest) if has_ended else _n_same(self._latest, self._previous)
        is_late = self._n_silent >= _PATIENCE
        wanted = self._latest if tentative or is_late else self._latest[:n_stable]
        n = _n_same(wanted, self._offered)
        if n == len(wanted):
            return []
        self.n_lost += max(0, self._n_stable - n)
        self._n_stable = min(self._n_stable, n)
        if n < len(self._offered) and not replace:
            return []
        self._offered[n:] = wanted[n:]
        self._n_stable = max(self._n_stable, min(n_stable, len(wanted)))
        self._n_silent = 0
        return list(enumerate(wanted[n:], self._n_accepted + n))

    def _compare(self) -> None:
        """Extend what is known to agree of the accepted text and the draft's."""
        self._n_common += common_prefix(self._text[self._n_common :], self._drafted[self._n_common :])

    def _offset(self, n: int) -> int:
        """Where the first `n` of the draft's tokens end."""
        return self._tokens[n - 1].end if n > 0 else 0

    def _n_within(self, end: int) -> int:
        """How many of the draft's tokens end at offset `end` or earlier, without those from the end of the text on."""
        return min(bisect_right(self._tokens, end, key=_end), self._end)

    # Towards the draft

    @property
    def _n_settled(self) -> int:
        """Number of the draft's tokens whose text is accepted."""
        return self._n_within(whole(self._text))

    def _retell(self, n_whole: int) -> None:
        """Tokenise the end of the accepted text, up to offset `n_whole`, because it is not what the draft has."""
        i = self._boundary(self._n_common)
        start = self._offset(i)
        text = bytes(self._text[start:n_whole])
        tokens = self._draft.fragment(text)
        pieces = [self._draft.piece(token) for token in tokens]
        ends = _ends(text, pieces)
        self._tokens[i:] = [_Drafted(token, start + end, SURE) for token, end in zip(tokens, ends, strict=True)]
        self._drafted[start:] = text
        self._n_common = self._origin = n_whole
        self._n_kept = min(self._n_kept, i)
        self._end = sys.maxsize
        in_word = bool(text) and (text[-1:].isalnum() or text[-1] >= 0x80)
        self._is_open = bool(tokens) and in_word and text.endswith(pieces[-1])
        self.n_retold += 1
        self._offered, self._previous, self._n_stable = [], [], 0

    def _boundary(self, n_common: int) -> int:
        """How many of the draft's tokens to keep if `n_common` bytes agree: those before the last word, or _SPAN."""
        found = None
        for i in range(self._n_within(n_common), -1, -1):
            at = self._offset(i)
            if found is not None and at < n_common - _SPAN:
                break
            here, before = self._text[at : at + 1], self._text[at - 1 : at]
            if not here or here[0] & 0xC0 != 0x80:  # a character begins
                found = i
                # A space, or a line, begins here.
                begins = here.isspace() != before.isspace() and (here.isspace() or before == b"\n")
                if not at or (here and begins):
                    break
        return found or 0

    # Towards the target

    def _translate(self, n: int) -> list[Offered]:
        """The target tokens of what the draft's first `n` tokens add to the accepted text, as far as they spell it.

        Those of a text that ends there, or that the target cannot spell, are followed by its end token.
        """
        start, end = len(self._text), whole(self._drafted, self._offset(n))
        if self._n_common < start or start > end or (start == end and self._end >= n):
            return []
        if start - self._origin > _SPAN:
            space = self._text.rfind(b" ", start - _SPAN, start)
            self._origin = space if space >= 0 else whole(self._text)
        found = self._spell(start, end, n)
        if found is None and self._origin < (n_whole := whole(self._text)):
            self._origin = n_whole
            found = self._spell(start, end, n)
        return found or []

    def _spell(self, start: int, end: int, n: int) -> list[Offered] | None:
        """The tokens of the text from `start` to `end`, of which the draft has `n`, if one begins at `start`."""
        at = self._origin
        found: list[Offered] | None = [] if at == start else None
        for token in self._target.fragment(bytes(self._drafted[at:end])):
            piece = self._target.piece(token)
            if not piece or not self._drafted.startswith(piece, at, end):
                break
            if found is not None:
                # The lowest confidence of the drafted tokens that begin within it.
                within = self._tokens[self._first(at) : self._first(at + len(piece))]
                found.append(Offered(at, token, min((one.confidence for one in within), default=SURE)))
            at += len(piece)
            if at == start:
                found = []
        return None if found is None else found + self._fillers(at, end, n)

    def _first(self, at: int) -> int:
        """The first of the draft's tokens that begins at offset `at` or later."""
        return bisect_left(self._tokens, at, key=_end) + 1 if at else 0

    def _fillers(self, at: int, end: int, n: int) -> list[Offered]:
        """End tokens for those of the draft's first `n` tokens that come after offset `at`, if they cannot be spelled.

        The draft would otherwise continue without limit, because it pauses for candidates that are unlikely.
        """
        if at == end and self._end >= n:
            return []
        first, sure = self._first(at), 0.0
        if self._end < len(self._tokens) and at == len(self._drafted):
            first, sure = self._end, self._tokens[self._end].confidence
        filler = max(self._target.end, 0)
        return [Offered(at + i, filler, 0.0 if i else sure) for i in range(n - first)]


def _n_same(a: Sequence[Offered], b: Sequence[Offered]) -> int:
    """How many tokens at the start of both are the same, in the same places."""
    return common_prefix([one[:2] for one in a], [one[:2] for one in b])


def _ends(text: bytes, pieces: Sequence[bytes]) -> list[int]:
    """Where each piece of a text ends. Where they do not spell it: at its end."""
    ends, at = [], 0
    for piece in pieces:
        at = at + len(piece) if text.startswith(piece, at) and piece else len(text)
        ends.append(at)
    return [*ends[:-1], len(text)] if ends else []
