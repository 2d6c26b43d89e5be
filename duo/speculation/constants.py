"""The constants of the policy: from replays (benchmarks/regret.py, benchmarks/NOTES.md) unless it says otherwise."""

from dataclasses import dataclass

Assumed = tuple[float, float, float]


def assumed(value: Assumed, doubt: float) -> float:
    """`value` with a `doubt` of -1 (better) to 1 (worse), of which the middle one is expected."""
    better, expected, worse = value
    return expected + doubt * (worse - expected if doubt > 0 else expected - better)


@dataclass(slots=True)
class PolicyConfig:
    """How much exploration may cost, and what is assumed about costs that were not measured."""

    # The budget for exploration, in tokens' time of the target alone: 4 % of a first text of 256 tokens, 1 % of a later
    # one, and at most this share of a text whose length is limited.
    first: float = 9.5
    later: float = 2.0
    share: float = 0.05
    lookup: float = 2.5  # of the lookup, in any text
    time_share: float = 0.002  # and this share of the time,
    late_share: float = 0.005  # of what is longer than the horizon below,
    gain_share: float = 0.1  # and of what drafting has gained
    # Changes of schedule.
    optimism: float = 0.05  # by which a forecast may be too high, once drafting has used up its credit
    least_gain: float = 0.02  # forecast gain below which there is none: two measurements differ by as much
    horizon: int = 256  # tokens within which a change must save what it costs; a longer text may be half done
    runs: int = 4  # texts of that length in which what a trial of something never measured has shown is used
    trial_steps: int = 6  # of a schedule
    first_review: int = 4  # steps after a change
    review_steps: int = 16  # between later reviews
    first_alone: int = 2  # steps of the target alone in the first text, and before a remote draft
    alone_share: float = 0.0025  # of the target's time alone: for measuring T(1) in schedule sync
    sizes: tuple[int, int] = (4, 2)  # of batches that are measured while the draft is idle, the first one first
    # Drafts that are idle, and drafts that run ahead.
    excellent: float = 0.95  # acceptance: if even this would not make drafting pay, the draft is not asked
    probe_tokens: int = 24  # that an idle draft decodes to see which it would have drafted: a batch of a prompt
    without_context: float = 0.7  # of its right predictions, those that are right if it has decoded no more than these
    probe_share: float = 0.05  # of the time of a later text so far that a probe may take: it may be short
    silence: int = 16  # tokens without a scored candidate after which it is probed,
    long_silence: int = 128  # and if it is not likely to pay: the text may have changed;
    patience: int = 4  # texts in succession without drafting, after which probes become rarer
    least_survival: float = 0.05  # of its candidates, below which a concurrent draft pauses (benchmarks/NOTES.md)
    # Costs that were not measured: see the machines in benchmarks/machines.
    # Each as expected, and one standard deviation better or worse.
    second: Assumed = (0.0, 0.3, 0.9)  # what a second token adds to the target's time for one, relative to it,
    growth: Assumed = (0.02, 0.1, 0.3)  # and each further token
    slower: Assumed = (1.2, 1.75, 2.3)  # factor of both models' times when they share cores concurrently
    pair: Assumed = (1.0, 1.3, 1.9)  # the draft's time for two tokens in one decode, relative to one
    read: float = 1 / 5  # the draft's time per token of a long batch, relative to one token,
    read_least: int = 16  # and tokens in a batch from which it is learned
    # Shares of the candidates by confidence (see Acceptance): of SmolLM2 and TinyLlama with their Q4_0.
    shares: tuple[float, ...] = (0.08, 0.07, 0.1, 0.08, 0.08, 0.13, 0.12, 0.16, 0.18)
    latest: int = 512  # tokens of a long text that a head reads: its output takes as long as its layer, for each
    deeper: float = 0.8  # a head's chance with a row of its own, relative to that with one of the target
    # Where a candidate is wrong, how often the target's token is the draft's second, third or fourth choice.
    ranks: tuple[float, ...] = (0.55, 0.15, 0.06)
    # What was measured.
    spread: float = 0.1  # relative standard deviation of a decode's time, before it is known
    max_slower: float = 1.5  # factor beyond which a time is an outlier or,
    outliers: int = 3  # if it comes so often in succession, has changed
    jump: float = 100.0  # factor beyond T(1) from which, and
    jump_s: float = 1.0  # seconds from which, a time is not that of a decode: the machine was suspended
    noticeable: float = 0.005  # relative change of T(n) from which what follows from it is computed again
    few: int = 5  # measurements after which a mean is reported
    kept: int = 1  # weight, in measurements, of a time from an earlier run, which the next one corrects,
    kept_scores: int = 12  # and in candidates, of an acceptance rate from other texts,
    texts: int = 400  # which is that of about so many candidates
    surprise: float = 2.3  # standard deviations from which scores contradict what was known
    prior_weight: int = 4  # of what is assumed about acceptance, in candidates per bin of confidence
    memory: float = 0.98  # factor by which earlier candidates count less with each new one,
    rate_memory: float = 0.9  # and earlier steps of a text in its measured rate
    lookup_prior: int = 16  # the same for candidates from the text itself


DEFAULT = PolicyConfig()  # only `python -m benchmarks.regret --set` changes it
