"""The report of a run: at most five lines, or with -v all statistics."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from duo.bench.results import merged
from duo.cli.terminal.console import figure
from duo.config import GenerationConfig
from duo.engine.model_pair import ModelPair
from duo.engine.recorder import TRANSLATED
from duo.engine.statistics import DraftStatistics, GenerationStatistics, LookupStatistics, PromptStatistics, Statistics
from duo.engine.stream import Completion, Stream
from duo.llama.limits import peak_bytes
from duo.speculation import forecast
from duo.speculation.constants import DEFAULT, assumed
from duo.speculation.modes import Schedule
from duo.speculation.report import ControllerReport, report
from duo.speculation.types import common_prefix

CLOSE = 0.05  # smaller differences between two rates are noise: the machine's speed varies
_MEMORY_PAYS = 1.02  # times as fast, from which on a memory is proposed: it was computed, and not measured
_WORTH = 1.1  # times the target alone: a smaller forecast is no reason to try something
_SMALLER = 4  # times as fast as this draft is one that is a quarter of its size
_NAMES = {
    "lookup": "lookup",
    Schedule.OFF.value: "the target alone",
    Schedule.SYNC.value: "sequential drafting",
    Schedule.ASYNC.value: "concurrent drafting",
}


_BY = {  # who made the tokens of a schedule
    "off": "by the target alone",
    "sync": "with the draft in turns",
    "async": "with the draft concurrently",
}


@dataclass(frozen=True, slots=True)
class RunStatistics:
    """The statistics of one text."""

    text: Statistics
    config: GenerationConfig  # how it was generated
    peak_bytes: int | None
    cores: dict[str, int]  # for the threads of the models: all, now, and the fewest that other programs have left
    policy: ControllerReport | None  # None: nothing was to be decided
    schedule: str = "auto"  # --schedule
    separate_devices: bool = False  # the draft has hardware of its own
    n_others: float = 0.0  # cores that other programs used, if that disturbed the run
    is_draft_larger: bool = False  # than the target
    n_block: int = 0  # tokens that the draft makes at once, at most; 0: one
    uses_head: bool = False  # the draft is a head, of which a layer of the target or a file beside it needs no -md
    memory_gain: float | None = 0.0  # what a memory would have brought earlier texts; 0: not known; None: there is one

    @classmethod
    def of(cls, slot: ModelPair, stream: Stream) -> "RunStatistics":
        """Those of a text that `slot` has just written."""
        cores, draft = slot.cores, slot.draft_model
        controller = stream.request.metrics.controller or (slot.controller if slot.draft is not None else None)
        return cls(
            stream.statistics,
            stream.request.config,
            peak_bytes(),
            {"all": cores.n_cores, "now": cores.limit or cores.n_cores, "fewest": cores.fewest},
            None if controller is None else report(controller),
            slot.config.schedule,
            slot.threads.separate_devices or slot.remote is not None,
            slot.recorder.n_others,
            draft is not None and draft.n_bytes > slot.target.n_bytes,
            slot.estimates.block if slot.estimates is not None else 0,
            slot.uses_head,
            slot.memories.gain,
        )

    @property
    def lookup_name(self) -> str:
        """What proposes without a model."""
        return "lookup" if self.memory_gain is not None else "lookup or memory"

    def document(self) -> dict[str, object]:
        """The figures of --json."""
        sampling = self.config.sampling
        figures = {
            "memory": {"peak_bytes": self.peak_bytes},
            "sampling": {"temperature": sampling.temp, "seed": sampling.seed, "mode": self.config.mode},
            "cores": self.cores,
        }
        return merged(self.text, figures, {"policy": self.policy} if self.policy is not None else None)

    @property
    def seed(self) -> str:
        """The seed, in words; empty if it decided nothing."""
        sampling = self.config.sampling
        return f"; seed {sampling.seed}" if sampling.temp else ""


def render(run: RunStatistics, *, verbose: bool = False) -> str:
    """What a run prints at its end: with `verbose` all figures; at most five lines, the last `tokens: N tps: R`."""
    generation, lookup = run.text.generation, run.text.lookup
    has_draft = run.policy is not None and run.policy.has_draft
    lines = [*_details(run)] if verbose else []
    lines += [f"speed   {_rate(generation)}; prompt: {_rate(run.text.prompt)}; stopped: {generation.stop}{run.seed}"]
    if has_draft:
        said = [*_drafted(run.text.draft, generation), *([f"lookup: {_share(lookup)}"] if lookup else [])]
        lines += [f"draft   {'; '.join(said)}"]
    elif lookup:
        lines += [f"lookup  {_share(lookup)}"]
    if has_draft or lookup:
        lines += [f"gain    {verdict(run)}"]
    if run.peak_bytes:
        lines += [f"RAM     {run.peak_bytes / 1e6:.0f} MB at most"]
    return "\n".join([*lines, _last_line(generation)])


def _drafted(draft: DraftStatistics | None, generation: GenerationStatistics) -> Iterator[str]:
    yield f"{draft.drafted} tokens drafted, {_share(draft)}" if draft and draft.drafted else "not used"
    if draft and draft.drafted and draft.verified and generation.tokens_per_decode is not None:
        yield f"mean acceptance length {generation.tokens_per_decode:.2f}"
    if draft and draft.vocabulary == TRANSLATED:
        yield f"vocabulary translated, {figure(draft.lost_to_translation, 'd')} guesses lost by it"
    if draft and draft.branches:
        yield f"{draft.branches.prepared} outcomes prepared, hit rate {_percent(draft.branches.hit_rate)}"
    if draft and draft.alternatives:
        yield f"{draft.alternatives_accepted} of {draft.alternatives} alternatives accepted"
    if draft and draft.error:
        yield f"failed: {draft.error}"


def _last_line(generation: GenerationStatistics) -> str:
    """The last line of every run, for programs."""
    return f"tokens: {generation.tokens} tps: {generation.tokens_per_s or 0:.3f}"


def verdict(run: RunStatistics) -> str:
    """The gain of this run, and of a memory if there is none; something was to be decided."""
    said, times = _gain(run), run.memory_gain or 0.0
    if times < _MEMORY_PAYS or (run.policy is not None and run.policy.has_draft):  # a draft leaves it less to bring
        return said
    return f"{said}; earlier texts would have been {times:.2f} times as fast with a memory (--memory FILE)"


def _gain(run: RunStatistics) -> str:
    """The speed compared with that of the target alone in this run, and why."""
    generation, draft, lookup = run.text.generation, run.text.draft, run.text.lookup
    assert run.policy is not None
    rate, by_schedule, ms = generation.tokens_per_s, generation.tokens_by_schedule, run.policy.alone_ms.this_run
    few_looked_up = not lookup or lookup.verified <= CLOSE * generation.tokens
    if run.n_others:
        said = f"unknown: other programs used {run.n_others:.1f} cores; try again when the machine is idle"
    elif rate and set(by_schedule) == {Schedule.OFF} and few_looked_up:
        return why_no_gain(run)
    elif not rate or not ms:
        said = "unknown: the target alone was not measured in this run"
    else:
        times, alone = rate * ms / 1000, f"{1000 / ms:.1f} tokens/s"
        if times >= 1 + CLOSE:
            sources = (("the draft", draft), (run.lookup_name, lookup))
            who = " and ".join(name for name, found in sources if found and found.accepted) or "duo"
            said = f"{who} made this {times:.2f} times as fast (alone: {alone})"
        else:
            compared = "about as fast as" if times > 1 - CLOSE else f"{100 * (1 - times):.0f} % slower than"
            said = f"none: {compared} the target alone ({alone}); {why_no_gain(run)}"
    shares = ", ".join(f"{n} {_BY.get(name, name)}" for name, n in by_schedule.items())
    return f"{said}; tokens: {shares}" if run.policy.has_draft and shares else said


def why_no_gain(run: RunStatistics) -> str:
    """Why draft and lookup brought nothing, and what to try; something was to be decided."""
    draft, policy = run.text.draft, run.policy
    assert policy is not None
    rates = dict(policy.forecast_tokens_per_s)
    alone, best = rates.pop(Schedule.OFF, 0.0), max(rates.values(), default=0.0)
    excellent = f"{100 * DEFAULT.excellent:.0f} %"
    is_hopeless = draft is None and policy.max_gain is not None and policy.max_gain <= 1 + DEFAULT.least_gain
    reasons = (
        (not policy.has_draft, f"{run.lookup_name} did not pay here"),
        (run.schedule == Schedule.OFF.value, "--schedule off"),
        (draft and draft.error, f"the draft failed: {draft and draft.error}"),
        (run.is_draft_larger, "the draft is larger than the target: are -m and -md exchanged?"),
        (is_hopeless, f"even a draft that is right {excellent} of the time would gain nothing"),
        (not alone, "trying the draft would have taken more time than may be spent on it"),
        (best >= (1 + CLOSE) * alone, "the draft came too late to pay; a longer text, or the next, may be faster"),
        (True, _remedy(run, policy)),
    )
    return next(words for applies, words in reasons if applies)


def _remedy(run: RunStatistics, policy: ControllerReport) -> str:
    """What the draft lacks, and what would help by the forecasts."""
    said, curve = "the draft did not pay here", policy.curve_ms.alone
    draft_ms = policy.draft_ms.alone or policy.draft_ms.concurrent
    if not curve or not draft_ms:
        return said
    pair = max(1.0, (policy.pair_ms or 0.0) / draft_ms or assumed(DEFAULT.pair, 0.0))
    elsewhere = "a much smaller one" if run.separate_devices else "another device (-devd) or machine (duo back)"
    trials = (  # times this draft's time per token, acceptance, and what would have that
        (1 / _SMALLER, policy.acceptance, "a smaller one (duo tune)"),
        (1.0, DEFAULT.excellent, "one more like the target (duo tune)"),
        (1 / _SMALLER, DEFAULT.excellent, "a smaller and better one (duo tune)"),
        (0.0, policy.acceptance, elsewhere),
    )

    def gain(times: float, acceptance: float, round_ms: float | None = policy.latency_ms) -> float:
        ms = times * draft_ms
        if round_ms is None:
            found = forecast.taking_turns(curve, ms, [[(1.0, acceptance)]], pair * ms)
        else:  # a remote draft, which does not take turns
            found = forecast.overlapped(curve, [ms or curve[0] / 100], acceptance, 2 * len(curve), round_ms)
        return found.rate * curve[0]

    helping = (better for times, acceptance, better in trials if gain(times, acceptance) >= _WORTH)
    advice = f"the target alone (omit -md{', or --heads off' if run.uses_head else ''})"  # it still looks up
    if not run.n_block:  # that one was made for this target
        advice = next(helping, advice)
    if policy.latency_ms and gain(1.0, policy.acceptance) < _WORTH <= gain(1.0, policy.acceptance, 0.0):
        advice = f"a faster link (the round trip takes {policy.latency_ms:.4g} ms)"
    needs = f"{_percent(draft_ms / curve[0])} of the target's time per token"
    needs = f"a block needs {needs}" if run.n_block else f"it needs {needs}"
    right = "are right" if run.text.draft is not None else "were right in earlier texts"
    return f"{said}: {needs}, and {100 * policy.acceptance:.0f} % of its tokens {right}; try {advice}"


def _details(run: RunStatistics) -> Iterator[str]:
    """All figures by their names in --json, and where the time went."""
    for name, figures in run.document().items():
        if isinstance(figures, dict):
            known = {each: value for each, value in figures.items() if value not in (None, [], {})}
            nested = [each for each, value in known.items() if isinstance(value, (dict, list, tuple))]
            yield f"{name:<12}{', '.join(f'{each} {_figures(known[each])}' for each in known if each not in nested)}"
            yield from (f"{'':<12}{each} {_figures(known[each])}" for each in nested)
    generation, draft = run.text.generation, run.text.draft
    seconds, waited_s = generation.seconds, generation.waited_s
    if seconds and generation.target_ms_per_decode:
        target_s = generation.decodes * generation.target_ms_per_decode / 1000
        parts_s = {"target computes": target_s, "waits for the draft": waited_s, "rest": seconds - target_s - waited_s}
        said = ", ".join(f"{name} {_percent(part_s / seconds)}" for name, part_s in parts_s.items() if part_s > 0)
        if draft and draft.computed_s:
            share, concurrent = _percent(draft.computed_s / seconds), _percent(draft.hidden)
            said += f"; draft computes {share}, {concurrent} of that concurrently with the target"
        yield f"time    {said}"


def _figures(value: object) -> str:
    """What is in a JSON document, in one line."""
    if isinstance(value, dict):
        return f"({', '.join(f'{name}: {_figures(each)}' for name, each in value.items())})"
    if isinstance(value, (list, tuple)):
        return " ".join(map(_figures, value))
    return f"{value:.4g}" if isinstance(value, float) else "-" if value is None else str(value)


def _share(found: DraftStatistics | LookupStatistics) -> str:
    return f"{found.verified} verified, {found.accepted} accepted ({_percent(found.accept_rate)})"


def _rate(phase: PromptStatistics | GenerationStatistics) -> str:
    return f"{phase.tokens} tokens in {phase.seconds:.2f} s, {figure(phase.tokens_per_s, '.1f')} tokens/s"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


# The demo: duo beside the target alone, and what the controller chose and why


def render_comparison(run: RunStatistics, tokens: Sequence[int], alone: Completion, *, exact: bool) -> str:
    """Five lines about the text `tokens` and that of the target `alone`, which both have a rate."""
    rate, alone_rate = run.text.tokens_per_s or 0.0, alone.statistics.tokens_per_s or 1.0
    times = rate / alone_rate
    compared = "about" if abs(times - 1) < CLOSE else f"{times:.2f} times"
    same = "the same text"
    if list(tokens) != list(alone.tokens):
        why = "--verify rejection" if run.config.is_rejection else "rounding; --exact avoids it"
        same = f"differs from token {common_prefix(tokens, alone.tokens) + 1}" + ("" if exact else f": {why}")
    lines = (
        f"duo           {len(tokens)} tokens, {rate:.1f} tokens/s: {compared} as fast as the target alone{run.seed}",
        f"target alone  {len(alone.tokens)} tokens, {alone_rate:.1f} tokens/s; {same}",
        f"duo chose     {_chosen(run.text)}",
        f"because       {_reason(run)}",
    )
    return "\n".join([*lines, _last_line(run.text.generation)])


def _chosen(text: Statistics) -> str:
    found = text.lookup.accepted_by_schedule if text.lookup else {}
    by_schedule = text.generation.tokens_by_schedule
    tokens = {schedule: n - found.get(schedule, 0) for schedule, n in by_schedule.items()}
    tokens["lookup"] = sum(found.values())
    ordered = sorted(((n, _NAMES[name]) for name, n in tokens.items() if n > 0), reverse=True)
    return ", ".join(f"{name} for {n} tokens" for n, name in ordered)


def _reason(run: RunStatistics) -> str:
    """Why, from the latest forecasts."""
    draft, lookup, policy = run.text.draft, run.text.lookup, run.policy
    assert policy is not None
    if lookup and lookup.accepted > (draft.accepted if draft else 0):
        what = "itself or the prompt" if run.memory_gain is not None else "itself, the prompt or earlier texts"
        return f"the text repeats {what}: {lookup.accepted} of {lookup.verified} such tokens were right"
    rates = dict(policy.forecast_tokens_per_s)
    if not draft or draft.error or len(rates) < 2:
        return why_no_gain(run)
    alone, drafted = rates.pop(Schedule.OFF), max(rates.values())
    right = f"{100 * policy.acceptance:.0f} % right"
    return f"forecast {alone:.1f} tokens/s alone, {drafted:.1f} with a draft that is {right}"
