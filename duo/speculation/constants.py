"""The constants of the controller: from replays (benchmarks/regret.py, benchmarks/NOTES.md), unless one says more."""

from dataclasses import dataclass

Assumed = tuple[float, float, float]


def assumed(value: Assumed, doubt: float) -> float:
    """`value` with a `doubt` of -1 (better) to 1 (worse), of which the middle one is expected."""
    better, expected, worse = value
    return expected + doubt * (worse - expected if doubt > 0 else expected - better)


@dataclass(slots=True)
class Constants:
    """How much exploration may cost, and what is assumed about costs that were not measured."""

    # The budget for exploration, in tokens' time of the target alone: 4 % of a first text of 256 tokens, 1 % of a later
    # one, and at most this share of a text whose length is limited, or of the time so far. A concurrent draft pauses if
    # the survival of its candidates is below this share.
    first: float = 9.5
    later: float = 2.0  # also of the lookup, in any text
    share: float = 0.04
    time_share: float = 0.002  # of the time, by which the budget grows, and which measuring T(1) may take,
    late_share: float = 0.005  # and by which it grows in what is longer than the horizon below
    # Changes of mode.
    least_gain: float = 0.02  # forecast gain below which there is none: two measurements differ by as much
    horizon: int = 256  # tokens within which a change must save what it costs; a longer text may be half done
    trial_steps: int = 6  # of a mode of which little was ever measured
    few: int = 4  # measurements after which a mean counts, steps before a first review, texts in which a trial pays
    some: int = 16  # steps between reviews, tokens after which an idle draft is probed, or that are a batch
    probe_tokens: int = 24  # that an idle draft decodes to see which it would have drafted: half of them count
    sizes: tuple[int, int] = (4, 2)  # of batches that are measured while the draft is idle, the first one first
    # Drafts that are idle, and drafts that run ahead.
    without_context: float = 0.7  # of the predictions that are right, the share that is right if the draft knows less
    excellent: float = 0.95  # acceptance: if even this would not make drafting pay, the draft is not asked
    # Costs that were not measured: see the machines in benchmarks/machines.
    # Each as expected, and one standard deviation better or worse.
    second: Assumed = (0.0, 0.3, 0.9)  # what a second token adds to the target's time for one, relative to it,
    growth: Assumed = (0.02, 0.1, 0.3)  # and each further token
    slower: Assumed = (1.2, 1.75, 2.3)  # factor of both models' times when they share cores concurrently
    pair: Assumed = (1.0, 1.3, 1.9)  # the draft's time for two tokens in one decode, relative to one
    read: float = 1 / 5  # the draft's time per token of a long batch, relative to one token
    # Shares of the candidates by confidence (see Acceptance): of SmolLM2 and TinyLlama with their Q4_0.
    shares: tuple[float, ...] = (0.08, 0.07, 0.1, 0.08, 0.08, 0.13, 0.12, 0.16, 0.18)
    # Where a candidate is wrong, how often the target's token is the draft's second, third or fourth choice.
    ranks: tuple[float, ...] = (0.55, 0.15, 0.06)
    # What was measured.
    spread: float = 0.1  # relative standard deviation of a decode's time, before it is known
    max_slower: float = 1.5  # factor beyond which a time is an outlier or, if a few come in succession, has changed
    jump: float = 100.0  # factor beyond T(1) from which a time is not that of a decode: the machine was suspended
    memory: float = 0.98  # factor by which earlier candidates and tokens count less with each new one


DEFAULT = Constants()  # only `python -m benchmarks.regret --set` changes it
