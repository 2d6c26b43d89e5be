"""Machine: the times of decodes on some hardware, as files and forecasts use them."""

from collections.abc import Sequence
from dataclasses import dataclass

from duo.speculation.draft_estimates import DraftEstimates

_SURELY = 50  # measurements


@dataclass(frozen=True, slots=True)
class Machine:
    """Seconds of decodes on some hardware: `target_s[i]` of i+1 tokens; `concurrent_`: while the other one decodes."""

    target_s: Sequence[float]
    draft_s: float
    concurrent_target_s: Sequence[float]
    concurrent_draft_s: float
    read_s: float = 0.0  # per token of a long batch of the draft; 0: no probes
    pair_s: float = 0.0  # the draft's time for two tokens in one decode; 0: draft_s and read_s
    noise: float = 0.0  # standard deviation of the logarithm of a measured time
    spikes: float = 0.0  # share of the measurements that are several times too long
    # Of the draft concurrently, for 1, 2, … sequences; empty: as much as the same tokens one after the other.
    branch_s: Sequence[float] = ()
    latency_s: float = 0.0  # round trip to the draft
    aborts: bool = True  # whether the draft's device can abort a decode

    def teach(self, draft: DraftEstimates) -> None:
        """Let `draft` and its target learn all times, as often as it takes to leave no doubt."""
        for _ in range(_SURELY):
            for target, own, target_s, draft_s in (
                (draft.target.alone, draft.costs.alone, self.target_s, self.draft_s),
                (draft.beside, draft.costs.concurrent, self.concurrent_target_s, self.concurrent_draft_s),
            ):
                own.add(draft_s)
                for n, seconds in enumerate(target_s, 1):
                    target.add(n, seconds)
            if self.pair_s:
                draft.costs.alone.add_pair(self.pair_s)
            for n, seconds in enumerate(self.branch_s[1:], 2):
                draft.costs.concurrent.add(seconds, n_sequences=n)
        if self.latency_s:
            draft.costs.add_latency(self.latency_s)
