"""Lookup: the text as its own draft, without a model.

What followed an earlier occurrence of the last tokens is likely to follow again, in texts that quote, edit or continue
what they contain: prompt lookup decoding (Saxena 2023), REST (He et al. 2023), SAM decoding (Hu et al. 2024). The index
is a hash table with chains, as in Deflate (RFC 1951, section 4): a token takes constant time, however long the text is.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence

from duo.spec.constants import DEFAULT
from duo.spec.types import Guess, Origin, Proposal, common_prefix

_SIZES = (2, 1)  # tokens of the n-grams in the index; occurrences of the last two are preferred to those of the last
_EARLIER = 8  # occurrences that are compared: the longest match wins, of equal ones that nearest to the last match
_LONGEST = 32  # tokens of a match beyond which it is not compared
_HOPELESS = 0.1  # survival after which no candidate is worth a decode
# Factors of the confidence, where several occurrences were compared: all had the same next token, or not.
_UNANIMOUS, _DISPUTED = 2.0, 0.5
_NOTHING = Proposal(origin=Origin.LOOKUP)


class Lookup:
    """An index of a text, and the match of its end with an earlier part. One thread calls it.

    The confidence of a candidate is the number of tokens before it that match, times a factor for what followed the
    other occurrences. Every predicted token is compared with the text, verified or not: how often candidates of a
    confidence are right is learned anew for each text.
    """

    EDGES = (0.75, 1.5, 2.5, 3.5, 5.0, 7.0, 10.0, 16.0, 24.0, 33.0)  # between the bins of confidence
    # How often each bin is right: texts of two models that repeat their prompts, prose and chat (benchmarks/NOTES.md).
    PRIOR = (0.17, 0.32, 0.58, 0.63, 0.75, 0.8, 0.87, 0.91, 0.95, 0.98, 0.99)

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._ends: dict[tuple[int, ...], int] = {}  # end of the last occurrence of each n-gram, by its size
        # For each size and token: the end of the previous occurrence of the n-gram that it ends; 0: none.
        self._earlier: tuple[list[int], ...] = tuple([] for _ in _SIZES)
        self._forget()

    def _forget(self) -> None:
        self._last = 0  # the position after the token that was predicted last
        self._next = 0  # the position in the text of the predicted token; 0: there is no match
        self._length = 0  # tokens of the match
        self._factor = 1.0
        self._right = [DEFAULT.lookup_prior * share for share in self.PRIOR]
        self._seen = [float(DEFAULT.lookup_prior)] * len(self.PRIOR)

    def begin(self, text: Sequence[int]) -> None:
        """Index a text. The part that it shares with the last one is not indexed again."""
        n_common = common_prefix(text, self._tokens)
        while len(self._tokens) > n_common:
            self._remove()
        self._forget()
        self.extend(text[n_common:])

    def extend(self, tokens: Sequence[int]) -> None:
        """The text continues with `tokens`: learn whether they were predicted, and find the next match."""
        for token in tokens:
            if self._next:
                self._score(self._tokens[self._next] == token)
            self._append(token)
        self._find()

    def propose(self, n: int) -> Proposal:
        """The next `n` tokens or fewer: none after a hopeless one."""
        if not self._next:
            return _NOTHING
        confidence, survival = self._length * self._factor, 1.0
        guesses: list[Guess] = []
        chances: list[tuple[float, float]] = []
        for token in self._tokens[self._next : self._next + n]:
            i = bisect_right(self.EDGES, confidence)
            guesses.append(Guess(token, confidence))
            chances.append((self._right[i] / self._seen[i], self._seen[i]))
            if (survival := survival * chances[-1][0]) <= _HOPELESS:
                break
            confidence = self._length + len(guesses)
        return Proposal(guesses, math.inf, Origin.LOOKUP, chances)

    def _score(self, right: bool) -> None:
        """The predicted token was right or not. Only if it was, the match goes on."""
        i = bisect_right(self.EDGES, self._length * self._factor)
        self._seen[i] = DEFAULT.memory * self._seen[i] + 1
        self._right[i] = DEFAULT.memory * self._right[i] + right
        self._last, self._factor = self._next + 1, 1.0
        self._next, self._length = (self._last, self._length + 1) if right else (0, 0)

    def _append(self, token: int) -> None:
        self._tokens.append(token)
        for size, earlier in zip(_SIZES, self._earlier, strict=True):
            key = (size, *self._tokens[-size:])
            earlier.append(self._ends.get(key, 0))
            self._ends[key] = len(self._tokens)

    def _remove(self) -> None:
        """Undo the last _append()."""
        for size, earlier in zip(reversed(_SIZES), reversed(self._earlier), strict=True):
            key = (size, *self._tokens[-size:])
            self._ends[key] = earlier.pop()
            if not self._ends[key]:
                del self._ends[key]
        del self._tokens[-1]

    def _find(self) -> None:
        """Find the longest match of the end of the text with an occurrence of its last tokens."""
        tokens, end = self._tokens, len(self._tokens)
        self._next, self._length, self._factor = 0, 0, 1.0
        for size, earlier in zip(_SIZES, self._earlier, strict=True):
            following: list[int] = []  # the tokens after the occurrences
            position, nearest = earlier[-1] if earlier else 0, end
            while position and len(following) < _EARLIER:
                n = size
                while n < min(position, _LONGEST) and tokens[position - n - 1] == tokens[end - n - 1]:
                    n += 1
                distance = abs(position - self._last)
                if n > self._length or (n == self._length and distance < nearest):
                    self._next, self._length, nearest = position, n, distance
                following.append(tokens[position])
                position = earlier[position - 1]
            if len(following) > 1:
                self._factor = _UNANIMOUS if len(set(following)) == 1 else _DISPUTED
            if following:
                return
