"""Runs, and what is expected to be said about them: `python -m tests.golden` writes reports.txt anew."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from duo.cli.terminal.report import RunStatistics, render, render_comparison, verdict
from duo.config import GenerationConfig, SamplingConfig
from duo.engine.statistics import (
    BranchStatistics,
    DraftStatistics,
    GenerationStatistics,
    LookupStatistics,
    PromptStatistics,
    Statistics,
)
from duo.engine.stream import Completion
from duo.speculation.controller import Controller
from duo.speculation.draft_estimates import DraftEstimates
from duo.speculation.modes import ALL, Change, Schedule
from duo.speculation.report import AloneTimes, ByCondition, ControllerReport, report

REPORTS = Path(__file__).with_name("reports.txt")
OFF, SYNC, ASYNC = Schedule.OFF, Schedule.SYNC, Schedule.ASYNC

_GENERATION = GenerationStatistics(16, 1.5, 15.0, 0.61, 8, 1.875, 100.0, 0.0, {"sync": 5, "async": 10}, "token limit")
_DRAFT = DraftStatistics(20, 12, 7, 7 / 12, [0.75, 0.25], [2, 0, 6], 20.0, 0.45, 0.8, 0.65, None, "shared", 0)
_POLICY = ControllerReport(
    ASYNC, ALL, [], 14.0, {OFF: 10.0, ASYNC: 16.0}, 15.0, 0, 0.6, 100, (0.5, 0.2, 0.1), 1.8, AloneTimes(100.0, 80.0),
    ByCondition({1: 100.0}, {1: 110.0, 3: 120.0}), ByCondition(20.0, 25.0), [], None,
    ByCondition([100.0, 105.0, 110.0, 115.0, 120.0], None), ByCondition([1, 5], [1, 3]), 26.0,
)  # fmt: skip
_NOTHING: dict[str, Any] = {
    "tokens": 0, "tokens_per_s": None, "time_to_first_token_s": None, "target_ms_per_decode": None,
    "tokens_per_decode": None,
}  # fmt: skip
LOOKUP = LookupStatistics(14, 9, 9 / 14, 3, {"off": 9})
COOL = GenerationConfig(SamplingConfig(temp=0.0, seed=7))
HOT = GenerationConfig(SamplingConfig(temp=0.8, seed=7))


def made(
    *,
    generation: dict[str, Any] | None = None,
    draft: dict[str, Any] | None = {},  # noqa: B006
    policy: dict[str, Any] | None = {},  # noqa: B006
    lookup: LookupStatistics | None = None,
    **more: Any,
) -> RunStatistics:
    """A run with a draft that paid, with these changes; None: without a draft, or a policy."""
    text = Statistics(
        PromptStatistics(5, 0.5, 10.0),
        replace(_GENERATION, **generation or {}),
        replace(_DRAFT, **draft) if draft is not None else None,
        lookup,
    )
    learned = replace(_POLICY, **policy) if policy is not None else None
    return replace(RunStatistics(text, COOL, 1_234_500_000, {"all": 2, "now": 2, "fewest": 2}, learned), **more)


def _nothing_learned() -> ControllerReport:
    controller = Controller()
    controller.begin([DraftEstimates(controller.target, 4, 8)], 3)
    return report(controller)


ALONE: dict[str, Any] = {"tokens_per_s": 10.0, "tokens_by_schedule": {"off": 15}}
SLOW: dict[str, Any] = {"forecast_tokens_per_s": {OFF: 10.0, SYNC: 9.0, ASYNC: 8.0}}
PLAIN = made(generation=ALONE | {"decodes": 15, "tokens_per_decode": 1.0}, draft=None, policy=None)
_NO_DRAFT = {"schedules": (OFF,)}
_CHEAP, _DEAR = [100.0, 102.0, 104.0, 106.0, 108.0], [100.0, 200.0, 300.0, 400.0, 500.0]  # T(n) in ms
_CHANGES = [Change(10 * n, OFF, f"reason {n}") for n in range(1, 9)]
_BRANCHES = BranchStatistics(12, 15, 4, 3, 0.75, [1.0, None, 0.5])

RUNS = {
    "a plain run": PLAIN,
    "other programs have left fewer cores": replace(PLAIN, cores={"all": 2, "now": 2, "fewest": 1}),
    "nothing generated": replace(made(generation=_NOTHING, draft=None, policy=None), peak_bytes=None),
    "with a draft, sampled": made(config=HOT),
    "in turns only, with no time beside the draft": made(
        generation={"tokens_by_schedule": {"sync": 15}},
        policy={"target_ms": ByCondition({1: 100.0}, {}), "measured": ByCondition([1], [2])},
    ),
    "alternatives to candidates": made(draft={"alternatives": 9, "alternatives_accepted": 4}),
    "a draft that failed, with outcomes prepared": made(draft={"error": "out of memory", "branches": _BRANCHES}),
    "no contradiction yet": made(draft={"branches": BranchStatistics(12, 15, 0, 0, None, [])}),
    "a draft with another vocabulary": made(draft={"vocabulary": "translated", "lost_to_translation": 3}),
    "a remote draft that does not say what is lost": made(
        draft={"vocabulary": "translated", "lost_to_translation": None, "unused": None}
    ),
    "many changes of schedule": made(policy={"changes": _CHANGES}),
    "lookup alone": made(draft=None, lookup=LOOKUP, policy=_NO_DRAFT),
    "lookup with a draft": made(lookup=LOOKUP),
    "a policy that has learned nothing": replace(
        made(generation={"tokens_by_schedule": {}}), policy=_nothing_learned()
    ),
    "none of what was drafted was verified": made(draft={"verified": 0, "accepted": 0, "accept_rate": None}),
    "a draft that was only probed": made(draft={"drafted": 0}, policy=SLOW | {"max_gain": 1.01}),
    "a draft that was only probed, and failed": made(draft={"drafted": 0, "error": "out of memory"}, policy=SLOW),
    "the schedule was given": made(draft=None, schedule="off"),
}

IN_FULL = (
    "nothing generated", "in turns only, with no time beside the draft", "a draft that failed, with outcomes prepared",
    "a remote draft that does not say what is lost", "many changes of schedule", "lookup alone",
    "a policy that has learned nothing",
)  # fmt: skip

_UNSURE: dict[str, Any] = {"forecast_tokens_per_s": {}, "max_gain": None, "schedule": OFF}
NOT_USED = {
    "nothing to gain": SLOW | {"max_gain": 1.0},
    "slower by the forecast": SLOW | {"max_gain": 1.2},
    "nothing is known": _UNSURE,
}


def _costs(curve: list[float], draft_ms: float, acceptance: float) -> dict[str, Any]:
    times = {"curve_ms": ByCondition(curve, None), "draft_ms": ByCondition(draft_ms, None), "pair_ms": None}
    return SLOW | times | {"acceptance": acceptance}


_NEARLY = {"tokens": 100, "tokens_by_schedule": {"off": 99}, "tokens_per_s": 3.0}
_UNMEASURED = {"alone_ms": AloneTimes(None, 80.0)}
GAINS = {
    "draft and lookup": made(lookup=LOOKUP),
    "lookup": made(draft=None, lookup=LOOKUP),
    "lookup or memory": made(draft=None, lookup=LOOKUP, memory_gain=None),
    "a memory would pay": made(draft=None, lookup=LOOKUP, policy=_NO_DRAFT, memory_gain=1.05),
    "a memory would hardly pay": made(draft=None, lookup=LOOKUP, policy=_NO_DRAFT, memory_gain=1.01),
    "a memory beside a draft": made(lookup=LOOKUP, memory_gain=1.05),
    "not measured in this run": made(policy=_UNMEASURED),
    "no rate": made(generation={"tokens_per_s": None}),
    **{
        f"{rate} instead of 10": made(generation={"tokens_per_s": rate}, policy=SLOW) for rate in (10.5, 10.4, 9.6, 9.0)
    },
    "lookup did not pay": made(generation={"tokens_per_s": 9.0}, draft=None, lookup=LOOKUP, policy=_NO_DRAFT),
    "memory did not pay": made(
        generation={"tokens_per_s": 9.0}, draft=None, lookup=LOOKUP, policy=_NO_DRAFT, memory_gain=None
    ),
    "too little known": made(generation=ALONE, draft=None, policy={"forecast_tokens_per_s": {}}),
    "the draft failed": made(generation=ALONE, draft={"error": "out of memory"}),
    "too late": made(generation=ALONE, draft=None),
    "nearly all by the target": made(
        generation=_NEARLY, draft=None, lookup=replace(LOOKUP, verified=2, accepted=0), policy=SLOW
    ),
    "much looked up": made(generation=_NEARLY, lookup=replace(LOOKUP, verified=20, accepted=0), policy=SLOW),
    "other programs": made(n_others=1.9),
    "smaller": made(generation=ALONE, policy=_costs(_CHEAP, 50.0, 0.6)),
    "better": made(generation=ALONE, policy=_costs(_CHEAP, 10.0, 0.1)),
    "smaller and better": made(generation=ALONE, policy=_costs(_CHEAP, 90.0, 0.1)),
    "elsewhere": made(generation=ALONE, policy=_costs(_CHEAP, 600.0, 0.6)),
    "much smaller, on its own device": made(generation=ALONE, policy=_costs(_CHEAP, 600.0, 0.6), separate_devices=True),
    "far away": made(generation=ALONE, policy=_costs(_CHEAP, 10.0, 0.6) | {"latency_ms": 1234.5}),
    "slow, and not far": made(
        generation=ALONE, policy=_costs(_CHEAP, 600.0, 0.6) | {"latency_ms": 5.0}, separate_devices=True
    ),
    "far away, and often wrong": made(
        generation=ALONE, policy=_costs(_CHEAP, 10.0, 0.05) | {"latency_ms": 50.0}, separate_devices=True
    ),
    "exchanged": made(generation=ALONE, policy=_costs(_CHEAP, 600.0, 0.6), is_draft_larger=True),
    "a block draft": made(generation=ALONE, policy=_costs(_CHEAP, 10.0, 0.1), n_block=16, uses_head=True),
    "an MTP layer": made(generation=ALONE, policy=_costs(_DEAR, 25.0, 0.6), uses_head=True),
    "from earlier texts": made(generation=ALONE, draft=None, policy=_costs(_CHEAP, 10.0, 0.1)),
    "none": made(generation=ALONE, policy=_costs(_DEAR, 25.0, 0.6)),
    "unknown times": made(generation=ALONE, policy=SLOW | {"curve_ms": ByCondition(None, None)}),
}

TOKENS = list(range(16))
_OTHER = [*TOKENS[:6], 99, *TOKENS[7:]]


def alone(tokens: list[int] = TOKENS, rate: float = 10.0) -> Completion:
    """The text of the target alone."""
    generation = replace(_GENERATION, tokens=len(tokens), tokens_per_s=rate, tokens_by_schedule={"off": 15})
    return Completion("", tuple(tokens), "token limit", Statistics(PromptStatistics(5, 0.5, 10.0), generation, None))


def _forecast(sync: float) -> dict[str, Any]:
    return {"forecast_tokens_per_s": {OFF: 10.0, SYNC: sync, ASYNC: 5.0}}


def _chose(tokens: dict[str, int], policy: dict[str, Any], draft: dict[str, Any] | None = {}) -> RunStatistics:  # noqa: B006
    return made(generation={"tokens_by_schedule": tokens}, policy=policy, draft=draft)


COMPARED = {
    "a draft that paid": (made(), alone()),
    "a small gain": (made(), alone(rate=14.4)),
    "a small loss": (made(draft=None), alone(rate=15.6)),
    "another text": (made(), alone(_OTHER)),
    "another text, with rejection": (made(config=replace(HOT, verify="rejection")), alone(_OTHER)),
    "the end of another": (made(), alone(TOKENS[:4])),
    "slower by the forecast": (_chose({"off": 15}, _forecast(9.0)), alone()),
    "both": (_chose({"sync": 3, "off": 12}, _forecast(10.2)), alone()),
    "not used": (_chose({"off": 15}, _forecast(9.0) | {"max_gain": 1.01}, None), alone()),
    "not tried": (_chose({"off": 15}, {"forecast_tokens_per_s": {}, "schedule": OFF}), alone()),
    "a draft that failed": (_chose({"off": 15}, _forecast(9.0), {"error": "out of memory"}), alone()),
    "lookup": (made(generation=ALONE | {"tokens_per_s": 15.0}, draft=None, lookup=LOOKUP), alone()),
    "memory": (made(generation=ALONE, draft=None, lookup=LOOKUP, memory_gain=None), alone()),
    "as many by lookup": (made(lookup=replace(LOOKUP, accepted=7)), alone()),
}


def reports() -> str:
    """All reports."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    for name, run in RUNS.items():
        yield from (f"# {name}", render(run), "")
    for name in IN_FULL:
        yield from (f"# {name}, with -v", render(RUNS[name], verbose=True), "")
    yield "# Why a draft was not used"
    for name, learned in NOT_USED.items():
        yield f"{name}: {verdict(made(generation=ALONE, draft=None, policy=learned))}"
    yield from ("", "# Gains")
    for name, run in GAINS.items():
        yield f"{name}: {verdict(run)}"
    yield from ("", "# Compared with the target alone")
    for name, (run, again) in COMPARED.items():
        yield from (f"# {name}", render_comparison(run, TOKENS, again, exact=False))
    yield from ("# --exact", render_comparison(made(), TOKENS, alone(_OTHER), exact=True))
