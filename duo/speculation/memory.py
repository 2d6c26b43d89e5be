"""Memory: what a target has written in earlier texts, as n-grams: REST (He et al. 2023) of the target's own texts."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from duo.speculation.constants import DEFAULT

Log = npt.NDArray[np.uint32]  # texts, END before each
Recalled = tuple[int, float, float] | None  # a token, its log-odds and share of the votes; None: nothing is known
MAX_TOKENS = 2**20  # each takes 16 bytes; of more, the latest texts are kept
END = 2**21 - 1  # no vocabulary is as large
_BITS, _LONGEST = 21, 3  # of a token in an n-gram; tokens of an n-gram, the last one in its highest bits
_START = 2 ** (_BITS * _LONGEST) - 1  # the n-gram at the beginning of a text: all of it is END
_VOTES = 16  # occurrences of an n-gram that are looked at, evenly distributed over all
_MOST_KNOWN = 2**14  # n-grams of which is kept what was found: 4 MB
_SILENT = 0.02  # share of right predictions below which only every eighth step asks


class Memory:
    """A sorted table of all n-grams with what followed, and the n-gram with which a text ends. One thread calls it.

    The chance that a prediction is right is a logistic function of the length of the n-gram, of how often it occurs, of
    the share of these occurrences, and of how often the last predictions were right; its offset is learned from every
    predicted token, verified or not (benchmarks/NOTES.md).
    """

    OFFSETS = (-4.65, -4.35, -3.8)  # by length
    MANY, SHARE, SHARE_OF_MANY, SHARE_RECENTLY = 0.38, 2.6, 0.12, 2.9
    RATE, MEMORY = 0.05, 0.9  # of learning the offset; of recent predictions

    def __init__(self, log: Log | Sequence[int] = ()) -> None:
        self.log = np.empty(0, np.uint32)
        self._ngrams, self._following = np.empty(0, np.uint64).data, np.empty(0, np.uint32).data
        self._offset, self._n_seen = 0.0, float(DEFAULT.some)
        self._add(np.asarray(log, np.uint32))
        self.begin(())

    def learn(self, text: Sequence[int]) -> None:
        """Add what the target has written in a text that has ended."""
        self._add(np.array([END, *text], np.uint32))

    def _add(self, new: Log) -> None:
        old, old_following = np.asarray(self._ngrams, np.uint64), np.asarray(self._following, np.uint32)
        self.log = np.concatenate((self.log, new))
        if len(self.log) > MAX_TOKENS:
            self.log = new = latest(self.log)
            old, old_following = old[:0], old_following[:0]
        ngrams, token = np.zeros(len(new), np.uint64), np.append(np.uint32(END), new)[:-1]  # before each of `new`
        for i in range(_LONGEST):
            ngrams |= token.astype(np.uint64) << np.uint64(_BITS * (_LONGEST - 1 - i))
            token = np.where(token == END, END, np.append(np.uint32(END), token)[:-1])  # a text has nothing before it
        order = np.argsort(ngrams, kind="stable")
        order = order[new[order] != END]
        ngrams, following = ngrams[order], new[order]
        if len(old):  # two thirds of the time to load a large one
            at = np.searchsorted(old, ngrams, "right")
            ngrams, following = np.insert(old, at, ngrams), np.insert(old_following, at, following)
        self._ngrams, self._following = ngrams.data, following.data  # ten times as fast as arrays, here
        self._known: dict[int, Recalled] = {}  # what _find() has found

    def begin(self, text: Sequence[int]) -> None:
        """A text begins, of which the target has written `text` so far."""
        self._recent, self._n_asked, self.ngram = 0.2, 0, _START
        for token in text[-_LONGEST:]:
            self.ngram = after(self.ngram, token)

    def extend(self, tokens: Sequence[int]) -> None:
        """The text continues with `tokens`: learn whether those that were predicted are right."""
        for token in tokens:
            if self.ngram in self._known:
                found = self._known[self.ngram]
                right = found is not None and found[0] == token
                if found is not None:
                    self._offset += self.RATE * (right - self._chance(*found[1:]))
                    self._n_seen = DEFAULT.memory * self._n_seen + 1
                self._recent = self.MEMORY * self._recent + (1 - self.MEMORY) * right
            self.ngram = after(self.ngram, token)

    def is_asked(self) -> bool:
        """Whether it takes part in the next step: in few of them, where it has predicted nothing."""
        self._n_asked += 1
        return len(self._ngrams) > 0 and (self._recent > _SILENT or self._n_asked % 8 == 0)

    def likelier(self, ngram: int, token: int, chance: float, n_seen: float) -> tuple[int, float, float]:
        """What is likelier after an n-gram: this token of the lookup (-1: none), or its own.

        With the chance, and the number of observations from which it is known.
        """
        if (found := self._find(ngram)) is None:
            return token, chance, n_seen
        own = self._chance(*found[1:])
        if found[0] == token:
            return token, 1 - (1 - chance) * (1 - own), n_seen
        own *= 1 - chance  # where they differ, the lookup is right more often
        return (found[0], own, self._n_seen) if own > chance else (token, chance, n_seen)

    def _chance(self, log_odds: float, share: float) -> float:
        return 1 / (1 + math.exp(-(log_odds + self._offset + share * self.SHARE_RECENTLY * self._recent)))

    def _find(self, ngram: int) -> Recalled:
        """What most often followed the longest end of `ngram` that occurs."""
        if ngram in self._known:
            return self._known[ngram]
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        ngrams, found = self._ngrams, None
        at = bisect_left(ngrams, ngram)
        differing = ngrams[at] ^ ngram if at < len(ngrams) else _START  # of its neighbours, one has most in common
        if differing and at:
            differing = min(differing, ngrams[at - 1] ^ ngram)
        others = _BITS * -(-differing.bit_length() // _BITS)  # bits of the tokens that differ
        if others < _BITS * _LONGEST:
            end = ngram >> others << others
            if (known := ~(end << 2 | others // _BITS)) not in self._known:
                self._known[known] = self._count(end, others, at)
            found = self._known[known]
        self._known[ngram] = found
        return found

    def _count(self, end: int, others: int, at: int) -> Recalled:
        """What most often followed the n-grams that are `end` but for the lowest `others` bits; `at` is behind one."""
        first = bisect_left(self._ngrams, end, 0, at) if others else at
        n = bisect_right(self._ngrams, end + (1 << others) - 1, at) - first
        votes = self._following[first : first + n : -(-n // _VOTES)].tolist()
        counts: dict[int, int] = {}
        for each in votes:
            counts[each] = counts.get(each, 0) + 1
        token = max(counts, key=counts.__getitem__)
        share, many = counts[token] / len(votes), math.log(n)
        log_odds = self.OFFSETS[_LONGEST - 1 - others // _BITS] + self.MANY * many
        return token, log_odds + share * (self.SHARE + self.SHARE_OF_MANY * many), share


def after(ngram: int, token: int) -> int:
    """The n-gram that ends with `token`, after another one."""
    return token << (_BITS * (_LONGEST - 1)) | ngram >> _BITS


def latest(log: Log) -> Log:
    """The latest of too many tokens, fewer than may be kept, so that this happens seldom; if possible whole texts."""
    first = len(log) - MAX_TOKENS * 7 // 8
    starts = np.flatnonzero(log[first : first + MAX_TOKENS // 8] == END)
    return log[first + (starts[0] if len(starts) else 0) :]
