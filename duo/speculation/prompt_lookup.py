"""PromptLookup: the text as its own draft, without a model.

What followed an earlier occurrence of the last tokens is likely to follow again, in texts that quote, edit or continue
what they contain: prompt lookup decoding (Saxena 2023), REST (He et al. 2023), SAM decoding (Hu et al. 2024). The index
is a hash table with chains, as in Deflate (RFC 1951, section 4): a token takes constant time, however long the text is.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from duo.speculation.constants import DEFAULT
from duo.speculation.memory import Memory, after
from duo.speculation.types import Candidate, Origin, Proposal, common_prefix

_SIZES = (2, 1)  # tokens of the n-grams in the index; occurrences of the last two are preferred to those of the last
_EARLIER = 8  # occurrences that vote, the latest ones
_LONGEST = 32  # tokens of a match beyond which it is not compared
_HOPELESS = 0.1  # survival after which no candidate is worth a decode
_CERTAIN = 0.6  # chance above which a memory is not asked: it would change little
_NONE = (-1, 0.0, 0.0)  # token, chance and observations
_NOTHING = Proposal(origin=Origin.LOOKUP)


class Vote(NamedTuple):
    """What most of the matches predict."""

    token: int
    matches: list[tuple[int, int]]  # those that predict it: number of tokens, and the position of the token
    log_length: float  # of the longest of them
    unity: float  # the share of their votes, with a weight for how many matches vote


class PromptLookup:
    """An index of a text, and the matches of its end with earlier parts. One thread calls it.

    Each match votes for the token that follows it, with the square of its length. The chance that the vote is right is
    a logistic function of the length, of the share of the votes, and of how often the last predictions were right; its
    offset is learned in each text, from every predicted token, verified or not (benchmarks/NOTES.md).
    """

    OFFSET, LENGTH, SHARE, SHARE_OF_MANY, RECENT = -4.9, 0.75, 3.6, 1.1, 0.9  # see _chance()
    RATE = 0.1  # of learning the offset
    MEMORY = 0.8  # of recent predictions

    def __init__(self) -> None:
        self._clear("")

    def _clear(self, owner: str) -> None:
        """There is no text; the next one is that of `owner`."""
        self._owner = owner
        self._tokens: list[int] = []
        self._ends: dict[tuple[int, ...], int] = {}  # end of the last occurrence of each n-gram, by its size
        # For each size and token: the end of the previous occurrence of the n-gram that it ends; 0: none.
        self._earlier: tuple[list[int], ...] = tuple([] for _ in _SIZES)
        self._forget()

    def _forget(self) -> None:
        self._vote: Vote | None = None  # for the next token
        self._matches: list[tuple[int, int]] = []
        self._offset, self._recent, self._n_seen = self.OFFSET, 0.5, float(DEFAULT.some)

    def begin(self, text: Sequence[int], owner: str = "") -> None:
        """Index a text. The part that it shares with the last one is not indexed again, if that has the same owner."""
        if owner != self._owner:  # who might learn from the time how the text of the other one begins
            self._clear(owner)
        n_common = common_prefix(text, self._tokens)
        while len(self._tokens) > n_common:
            self._remove()
        self._forget()
        self.extend(text[n_common:])

    def extend(self, tokens: Sequence[int]) -> None:
        """The text continues with `tokens`: learn whether they were predicted, and find the next matches."""
        for token in tokens:
            if self._vote is not None:
                self._score(self._vote, token)
            self._append(token)
        self._matches = self._find()
        self._vote = self._count(self._matches)

    def propose(self, n: int, memory: Memory | None = None) -> Proposal:
        """The next `n` tokens or fewer, each the likelier of its own and the `memory`: none after a hopeless one."""
        vote, survival, memory = self._vote, 1.0, memory if memory is not None and memory.is_asked() else None
        candidates: list[Candidate] = []
        chances: list[tuple[float, float]] = []
        ngram = memory.ngram if memory is not None else 0
        while len(candidates) < n and survival > _HOPELESS:
            token, chance, n_seen = (vote.token, self._chance(vote), self._n_seen) if vote is not None else _NONE
            if memory is not None:
                if chance < _CERTAIN:
                    token, chance, n_seen = memory.likelier(ngram, token, chance, n_seen)
                ngram = after(ngram, token)
            if token < 0:
                break
            candidates.append(Candidate(token, chance))
            chances.append((chance, n_seen))
            survival *= chance
            is_own = vote is not None and vote.token == token
            vote = self._count(_after(vote.matches)) if vote is not None and is_own else None
        return Proposal(candidates, math.inf, Origin.LOOKUP, chances) if candidates else _NOTHING

    def _chance(self, vote: Vote) -> float:
        z = self._offset + self.LENGTH * vote.log_length + vote.unity + self.RECENT * self._recent
        return 1 / (1 + math.exp(-z))

    def _score(self, vote: Vote, token: int) -> None:
        """Learn whether a vote was right. The matches that predicted the token continue."""
        right = vote.token == token
        self._offset += self.RATE * (right - self._chance(vote))
        self._recent = self.MEMORY * self._recent + (1 - self.MEMORY) * right
        self._n_seen = DEFAULT.memory * self._n_seen + 1
        matches = vote.matches if right else [each for each in self._matches if self._tokens[each[1]] == token]
        self._matches = _after(matches)
        self._vote = self._count(self._matches)

    def _count(self, matches: list[tuple[int, int]]) -> Vote | None:
        """What most of the `matches` predict; None if there are none."""
        tokens, n = self._tokens, len(self._tokens)
        if len(matches) == 1:
            ((length, position),) = matches
            return Vote(tokens[position], matches, math.log(length), self.SHARE) if position < n else None
        votes: dict[int, int] = {}
        total = n_votes = 0
        for length, position in matches:
            if position < n:
                token = tokens[position]
                votes[token] = votes.get(token, 0) + length * length
                total += length * length
                n_votes += 1
        if not votes:
            return None
        token = max(votes, key=votes.__getitem__)
        found = [each for each in matches if each[1] < n and tokens[each[1]] == token]
        share = votes[token] / total
        unity = share * (self.SHARE + self.SHARE_OF_MANY * math.log(n_votes))
        return Vote(token, found, math.log(max(found)[0]), unity)

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

    def _find(self) -> list[tuple[int, int]]:
        """The matches of the end of the text: the latest occurrences of its last two tokens, or else of the last."""
        tokens, end = self._tokens, len(self._tokens)
        found: list[tuple[int, int]] = []
        for size, earlier in zip(_SIZES, self._earlier, strict=True):
            position = earlier[-1] if earlier else 0
            while position and len(found) < _EARLIER:
                n = size
                while n < min(position, _LONGEST) and tokens[position - n - 1] == tokens[end - n - 1]:
                    n += 1
                found.append((n, position))
                position = earlier[position - 1]
            if found:
                break
        return found


def _after(matches: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The matches, one token longer."""
    return [(length + 1, position + 1) for length, position in matches]
