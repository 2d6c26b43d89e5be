"""Machine: what decodes cost on some hardware, as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from duo.spec.pair import PairModel

_SURELY = 50  # measurements


@dataclass(frozen=True, slots=True)
class Machine:
    """What decodes cost, in seconds; `target_s[i]` is for a batch of i+1 tokens. `beside_`: running concurrently."""

    target_s: Sequence[float]
    draft_s: float
    beside_target_s: Sequence[float]
    beside_draft_s: float
    read_s: float = 0.0  # per token of a long batch of the draft; 0: no probes
    pair_s: float = 0.0  # the draft's time for two tokens in one decode; 0: draft_s and read_s
    noise: float = 0.0  # standard deviation of the logarithm of a measured time
    spikes: float = 0.0  # share of the measurements that are several times too long
    # Of the draft concurrently, for 1, 2, … sequences; empty: as much as the same tokens one after the other.
    branch_s: Sequence[float] = ()
    latency_s: float = 0.0  # round trip to the draft
    aborts: bool = True  # whether the draft's device can abort a decode

    def reading_s(self, n_tokens: int) -> float:
        """Time for a decode of the draft alone, of `n_tokens`."""
        if n_tokens == 2 and self.pair_s:
            return self.pair_s
        return self.draft_s + (n_tokens - 1) * self.read_s

    def drafting_s(self, n_sequences: int) -> float:
        """Time for a decode of the draft beside the target, of one token in each of `n_sequences`."""
        known = self.branch_s or (self.beside_draft_s,)
        return known[min(n_sequences, len(known)) - 1] * max(1.0, n_sequences / len(known))


def inform(pair: PairModel, machine: Machine) -> None:
    """Tell `pair` all times of `machine`, as often as it takes to leave no doubt."""
    both = (
        (pair.alone, machine.target_s, machine.draft_s),
        (pair.beside, machine.beside_target_s, machine.beside_draft_s),
    )
    for _ in range(_SURELY):
        for costs, target_s, draft_s in both:
            costs.add_draft(draft_s)
            for n, seconds in enumerate(target_s, 1):
                costs.add_target(n, seconds)
        if machine.pair_s:
            pair.alone.add_pair(machine.pair_s)
        for n, seconds in enumerate(machine.branch_s[1:], 2):
            pair.beside.add_draft(seconds, n_sequences=n)
    if machine.latency_s:
        pair.learn_latency(machine.latency_s)
