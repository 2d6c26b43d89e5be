"""Whether duo finds the fastest schedule: over each schedule forced, and over llama.cpp's programs.

Texts end by themselves, and those that repeat themselves are left out: every kind of speculation is fast on them.
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks.contestants import ALONE, Setup, commands, duo, ngrams, plain_program, speculative
from benchmarks.runner import Bar, Comparison, Outcome, note
from duo.bench.rounds import Contestant, distinct_share
from duo.errors import DuoError
from duo.spec.schedule import Schedule

FIRST, FOURTH, FORCED = "duo, first run", "duo, fourth run", "forced "
_N_EARLIER = 3  # texts before the fourth run
_DISTINCT = 0.6  # least share of distinct 4-grams
_MD = "-md {draft}"

# Over the best schedule, which is chosen on the same rounds; over the best single setting of all programs.
BARS = (Bar(FIRST, FORCED, 0.93), Bar(FOURTH, FORCED, 0.97))
PEER_BARS = (Bar(FIRST, "llama-", 1.0), Bar(FOURTH, "llama-", 1.08))


def contestants(setup: Setup) -> list[Contestant]:
    """duo without a profile, with one from three other texts, and with each schedule."""
    forced = {FORCED + name.value: f"{_MD} {ALONE} --no-profile --schedule {name.value}" for name in Schedule}
    return [*_runs(setup, ALONE), *commands(setup, forced, may_end=True)]


def over_peers(setup: Setup) -> list[Contestant]:
    """duo, which also looks up candidates, and llama.cpp's programs with each of many settings."""
    plain = [plain_program(setup, "llama-completion", threads) for threads in (1, 2)]
    return [*_runs(setup, ""), *plain, *speculative(setup, threads=("2",)), *ngrams(setup)]


def _runs(setup: Setup, options: str) -> list[Contestant]:
    fourth = duo(setup, FOURTH, f"{_MD} {options}", may_end=True)
    for file in setup.prompt_files[-_N_EARLIER:]:
        setup.write(fourth, file)
    return [duo(setup, FIRST, f"{_MD} {options} --no-profile", may_end=True), fourth]


class Fastest(Comparison):
    """Prompts whose texts do not repeat themselves, at most eight of them."""

    def run(self, setup: Setup) -> Outcome:
        alone, files = duo(setup, "", f"{ALONE} --schedule off --no-profile", may_end=True), []
        for file in setup.prompt_files:
            try:
                run = setup.write(alone, file)
            except DuoError as error:  # the text is too short
                note(f"{file.stem}: {error}")
                continue
            share = distinct_share(run.text)
            note(f"{file.stem}: {100 * share:.0f} % distinct, {run.tokens} tokens")
            if share >= _DISTINCT and (run.tokens or 0) >= setup.n_tokens / 2:
                files.append(file)
        if not files:
            raise DuoError("each text repeats itself or is too short")
        return Comparison.run(self, replace(setup, prompt_files=files[: 8 + _N_EARLIER]))
