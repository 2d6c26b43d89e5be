"""How often candidates are accepted, learned while running, and what the draft derives from that by itself."""

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypedDict

from duo.speculation.constants import DEFAULT
from duo.speculation.estimators import Mean, between

LEAST_CHANCE = 0.01  # of an outcome that is continued
MAX_DEEP = 31  # tokens in a branch
N_DEPTHS = 4  # of a head's candidates that are told apart: the last stands for all further ones
_DEEPER = 100.0  # is added to the confidence of a head's candidate for each candidate that it builds on


class AcceptanceState(TypedDict):
    """What a profile keeps: see Acceptance."""

    edges: list[float]
    accepted: list[float]
    mean: float
    scored: int
    shares: list[float]
    ranks: list[float]


def _recent(value: float, n: int) -> Mean:
    """A mean of the latest values; `value` counts as `n` of them."""
    return Mean(1 - DEFAULT.memory, value, n)


def at_depth(confidence: float, depth: int) -> float:
    """The confidence of a head's candidate that builds on `depth` others, as Acceptance learns it."""
    return min(confidence, _DEEPER / 2) + _DEEPER * min(depth, N_DEPTHS - 1)


def bin_of(confidence: float, n_bins: int) -> int:
    """The bin, of `n_bins`, for a candidate of this confidence."""
    n_edges = len(Acceptance.EDGES)
    depth = min(int(min(confidence, _DEEPER * N_DEPTHS) // _DEEPER), n_bins // (n_edges + 1) - 1)
    return depth * (n_edges + 1) + bisect_right(Acceptance.EDGES, confidence - depth * _DEEPER)


class Acceptance:
    """a(c): the probability that a candidate of confidence c is accepted if all before it are. A fading histogram.

    Of a head, there is one for each of the first `n_depths` depths: its candidates build on rows of its own.
    """

    EDGES = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # between the bins

    def __init__(self, n_depths: int = 1) -> None:
        self.n_depths = n_depths
        # Typical for a small draft of the same family, for the gap in the middle of each bin.
        middles = [(low + high) / 2 for low, high in zip((0.0, *self.EDGES), (*self.EDGES, 8.0), strict=True)]
        accepted = [1 - 0.6 * math.exp(-gap / 1.5) for gap in middles]
        deeper = [DEFAULT.without_context**depth for depth in range(n_depths)]
        shares = [weight * share / sum(deeper) for weight in deeper for share in DEFAULT.shares]
        self._begin([*accepted, *[0.0] * (len(shares) - len(accepted))], 0.7, shares, DEFAULT.ranks, 4)
        for i in range(len(accepted), len(shares)):  # of deeper candidates nothing is assumed: see probabilities()
            self._seen[i] = 0.0
        self.n_scored = 0  # candidates, in this run and earlier ones

    def _begin(
        self, accepted: Iterable[float], mean: float, shares: Iterable[float], ranks: Iterable[float], n: int
    ) -> None:
        # Sums, in which the prior fades; a mean in which it stays was worse (benchmarks/NOTES.md).
        self._accepted = [DEFAULT.few * share for share in accepted]
        self._seen = [float(DEFAULT.few)] * len(self._accepted)
        self._texts = Mean(1 / DEFAULT.horizon, mean, n)
        self._all = _recent(mean, n)
        self._shares = [_recent(share, n) for share in shares]
        self._ranks = [_recent(share, n) for share in ranks]

    def begin(self) -> None:
        """A text begins, with the acceptance of all texts: the last one may have been easy or difficult."""
        self._all = _recent(self._texts.value, min(self._all.n, DEFAULT.probe_tokens // 2))

    def doubt(self, share: float, n: int) -> bool:
        """If `n` new scores contradict earlier texts, these count for little. Returns whether they are much better."""
        if not self.n_scored:
            return False
        deviation = (share - self.mean) / math.hypot(self.sd, 0.5 / math.sqrt(n))
        if abs(deviation) > 2.3:
            self._all.n = min(self._all.n, 2)
        return deviation > 2.3

    @property
    def mean(self) -> float:
        """The acceptance rate over all confidences, of late."""
        return self._all.value

    @property
    def sd(self) -> float:
        """Standard deviation of the mean."""
        share = min(max(self.mean, 0.1), 0.9)
        return math.sqrt(share * (1 - share) / min(self._all.n, 1 / self._all.weight))

    def probabilities(self) -> tuple[float, ...]:
        """a(c) for each bin, in the order of EDGES; of deeper candidates, as of those before them until it is known."""
        n, weight = len(self.EDGES) + 1, DEFAULT.few
        found = [right / seen for right, seen in zip(self._accepted[:n], self._seen[:n], strict=True)]
        for i in range(n, len(self._seen)):
            right = self._accepted[i] + weight * DEFAULT.without_context * found[i - n]
            found.append(right / (self._seen[i] + weight))
        return tuple(found)

    def chances(self, mean: float) -> list[tuple[float, float]]:
        """For each bin, the share of the candidates in it and a(c), adjusted to a `mean` of a(c) over all of them."""
        found = [(share.value, chance) for share, chance in zip(self._shares, self.probabilities(), strict=True)]
        now = sum(share * chance for share, chance in found)
        if mean <= now:
            return [(share, chance * mean / (now or 1.0)) for share, chance in found]
        return [(share, 1 - (1 - chance) * (1 - mean) / (1 - now)) for share, chance in found]

    def now(self, confidences: Sequence[float]) -> list[float]:
        """a(c) of candidates of these confidences, adjusted to the mean of late."""
        adjusted = [chance for _, chance in self.chances(self.mean)] if confidences else []
        return [adjusted[bin_of(confidence, len(adjusted))] for confidence in confidences]

    def by_depth(self, mean: float) -> list[list[tuple[float, float]]]:
        """chances() of the candidates of each depth: the shares of each add up to 1."""
        found, n = self.chances(mean), len(self.EDGES) + 1
        groups = [found[i : i + n] for i in range(0, len(found), n)]
        totals = [sum(share for share, _ in group) or 1.0 for group in groups]
        return [
            [(share / total, chance) for share, chance in group] for group, total in zip(groups, totals, strict=True)
        ]

    @property
    def ranks(self) -> tuple[float, ...]:
        """Of each rank, how probable it is that the target's token is the alternative of this rank to a wrong one."""
        return tuple(rank.value for rank in self._ranks)

    def add_rank(self, rank: int) -> None:
        """Instead of a wrong candidate came its alternative of this `rank`; -1: another token."""
        for i, share in enumerate(self._ranks):
            share.add(float(i == rank))

    def add(self, confidence: float, accepted: bool) -> None:
        """Learn from a candidate, which was or would have been `accepted` or not."""
        i = bin_of(confidence, len(self._seen))
        self._seen[i] = DEFAULT.memory * self._seen[i] + 1
        self._accepted[i] = DEFAULT.memory * self._accepted[i] + accepted
        self.add_share(float(accepted))
        for j, share in enumerate(self._shares):
            share.add(float(i == j))

    def add_share(self, share: float, n: int = 1) -> None:
        """Learn that of `n` candidates this `share` was accepted, and nothing about their confidence."""
        self.n_scored += n
        for _ in range(n):
            self._all.add(share)
            self._texts.add(share)

    def state(self) -> AcceptanceState:
        """What was learned, as JSON types."""
        return {
            "edges": list(self.EDGES),
            "accepted": list(self.probabilities()),
            "mean": self._texts.value,
            "scored": min(self.n_scored, DEFAULT.horizon),
            "shares": [share.value for share in self._shares],
            "ranks": list(self.ranks),
        }

    def restore(self, state: AcceptanceState) -> None:
        """Start from the state() of an earlier run. Raises KeyError, TypeError or ValueError if it is damaged."""
        parts = [[between(share, 0, 1) for share in state[name]] for name in ("accepted", "shares", "ranks")]
        accepted, shares, ranks = parts
        n_edges, n_bins = len(self.EDGES) + 1, len(accepted)
        if state["edges"] != list(self.EDGES) or [*map(len, parts)] != [n_bins, n_bins, len(DEFAULT.ranks)]:
            raise ValueError("other bins")
        if n_bins not in (n_edges, N_DEPTHS * n_edges):
            raise ValueError("other depths")
        self.n_depths = n_bins // n_edges
        if not math.isclose(sum(shares), 1, abs_tol=0.01):
            raise ValueError("not shares of a whole")
        self.n_scored = int(between(state["scored"], 1, DEFAULT.horizon))
        self._begin(
            accepted, between(state["mean"], 0, 1), shares, ranks, min(self.n_scored, DEFAULT.probe_tokens // 2)
        )
        self._texts.n = self.n_scored
        for i in range(n_edges, n_bins):  # which probabilities() mixes with those before them
            self._accepted[i], self._seen[i] = 4 * self._accepted[i], 4 * self._seen[i]


class Lookahead(NamedTuple):
    """How far the draft may run ahead: a rule that the draft's thread applies without the controller."""

    n_ahead: int = 0  # maximum tokens ahead of the accepted ones
    least: float = 0.0  # survival of the pending candidates below which it pauses
    accepted: Sequence[float] = ()  # a(c) for each bin of Acceptance
    n_branches: int = 0  # outcomes to prepare
    ranks: Sequence[float] = ()  # probability that instead of a wrong candidate comes its alternative of this rank

    def allows(self, confidences: Sequence[float]) -> bool:
        """Whether the draft may continue after pending candidates of these `confidences`."""
        return len(confidences) < self.n_ahead and math.prod(map(self.probability, confidences)) >= self.least

    def probability(self, confidence: float) -> float:
        """a(`confidence`)."""
        return self.accepted[bin_of(confidence, len(self.accepted))]


class RankedOutcome(NamedTuple):
    """A likely outcome of a verification, which the draft may continue as a *branch* meanwhile.

    The draft is wrong at `position`, counted from the first candidate; right is its alternative of this `rank`. The
    position after the last candidate is included.
    """

    chance: float
    position: int
    rank: int


def likely(chances: Sequence[float], ranks: Sequence[float], n: int | None = None) -> list[RankedOutcome]:
    """The `n` most likely outcomes (None: all), best first, without those that hardly ever come true.

    `chances[i]`: the probability that the drafted token at position i is right if all before it are. `ranks[r]`: the
    probability that, where one is wrong, the target's token is its alternative of rank r.
    """
    found, survival = list[RankedOutcome](), 1.0
    for position, chance in enumerate(chances):
        wrong = survival * (1 - chance)
        found += [RankedOutcome(wrong * share, position, rank) for rank, share in enumerate(ranks)]
        survival *= chance
    found = [outcome for outcome in found if outcome.chance >= LEAST_CHANCE]
    return sorted(found, key=lambda outcome: (-outcome.chance, outcome.position, outcome.rank))[:n]
