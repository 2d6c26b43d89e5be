"""Contestants and bars of candidates from the text itself, and of drafts with another vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.contestants import ALONE, DuoRun, Setup, duo
from benchmarks.first_run import taught
from benchmarks.measure import Bar
from duo.bench.contestant import Contestant, Run
from duo.bench.peers import SPECULATIVE
from duo.bench.results import Figure

PLAIN, LOOKUP = "duo, lookup off", "duo, with lookup"
COLD, WARM = "with the draft, first run", "with the draft, later runs"
SYNC = "with the draft, sync"  # drafts at every step, so that its acceptance does not depend on the policy's choice
ONE, BOTH = "one source: ", "both sources"
_LEAST_GAIN = 1.4  # by forecast: where less is possible, drafting has no bar over the target alone


def lookup(setup: Setup) -> list[Contestant]:
    """The target alone, and with candidates from the text itself; the profile is kept from text to text."""
    return [duo(setup, PLAIN, ALONE), duo(setup, LOOKUP, "")]


def lookup_bars(_: Setup) -> Sequence[Bar]:
    """Over the target alone, and over the best of llama.cpp's methods."""
    return [Bar(LOOKUP, PLAIN, 1.6), Bar(LOOKUP, SPECULATIVE, 1.05)]


def prose(setup: Setup) -> list[Contestant]:
    """The same on texts that repeat little of their prompts, each as on a first run."""
    return [duo(setup, PLAIN, ALONE), duo(setup, LOOKUP, "--no-profile")]


def prose_bars(_: Setup) -> Sequence[Bar]:
    """Over the target alone."""
    return [Bar(LOOKUP, PLAIN, 0.985)]


def translated(setup: Setup) -> list[Contestant]:
    """The target alone, and with the draft: without a profile, with one from two other texts, and sequentially."""
    draft = f"-md {{draft}} {ALONE}"
    return [
        duo(setup, PLAIN, ALONE),
        duo(setup, COLD, f"{draft} --no-profile"),
        taught(setup, duo(setup, WARM, draft)),
        duo(setup, SYNC, f"{draft} --no-profile --schedule sync"),
    ]


def translated_bars(setup: Setup) -> Sequence[Bar]:
    """For a useful draft, its acceptance and the rates; for a useless one, that it costs little."""
    if not setup.pair.startswith("tinyllama"):
        return [Bar(COLD, PLAIN, 0.97)]
    return [
        Bar(SYNC, least=0.60, figure=_first_accept_rate, what="acceptance of first candidates"),
        Bar(WARM, least=0.90, figure=_share_of_forecast, what="measured over the best forecast"),
        Bar(WARM, PLAIN, 1.25, figure=_where_possible, what="where the forecast is at least 1.4"),
    ]


def both(setup: Setup) -> list[Contestant]:
    """A draft model, the text itself, and both; each profile is kept from text to text."""
    return [
        duo(setup, PLAIN, ALONE),
        duo(setup, f"{ONE}draft", f"-md {{draft}} {ALONE}"),
        duo(setup, f"{ONE}lookup", ""),
        duo(setup, BOTH, "-md {draft}"),
    ]


def both_bars(_: Setup) -> Sequence[Bar]:
    """Over the source that is better over all prompts."""
    return [Bar(BOTH, ONE, 0.97)]


def _first_accept_rate(run: Run) -> float | None:
    return run.first_accept_rate if isinstance(run, DuoRun) else None


def _share_of_forecast(run: Run) -> float | None:
    forecast = run.forecast_tokens_per_s if isinstance(run, DuoRun) else None
    return run.tokens_per_s / forecast if forecast else None


def _where_possible(run: Run) -> float | None:
    """The rate; None for a run that knows that its draft cannot gain enough."""
    gain = run.forecast_gain if isinstance(run, DuoRun) else None
    return run.tokens_per_s if gain is None or gain >= _LEAST_GAIN else None


def _percent(figure: Figure) -> Figure:
    return lambda run: None if (share := figure(run)) is None else 100 * share


FIGURES: dict[str, Figure] = {
    "first candidates %": _percent(_first_accept_rate),
    "% of the forecast": _percent(_share_of_forecast),
    "forecast over alone %": _percent(lambda run: run.forecast_gain if isinstance(run, DuoRun) else None),
}
