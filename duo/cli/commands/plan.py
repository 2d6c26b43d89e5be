"""`duo plan`: predicts the speed with a draft from decode times, for any hardware."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from duo.cli.commands.options import MAX_DRAFT, PlanOptions
from duo.cli.terminal.console import say, size_of
from duo.config import MAX_BRANCHES
from duo.diagnose.prospects import Milliseconds, Prospects, Share, Table, curve, foretell, informed, read_pair
from duo.errors import UsageError
from duo.models.storage import MIB, read_path
from duo.speculation.constants import DEFAULT
from duo.speculation.machine import Machine
from duo.speculation.modes import Schedule
from duo.speculation.report import ByCondition

_SIZES = (1, 2, 4, 5, 8)  # of batches, and numbers of sequences, that are shown


def plan(options: PlanOptions) -> int:
    """Print predictions. Returns the exit status. Raises UsageError."""
    stats = _read_statistics(options.stats) if options.stats else None
    run = stats.policy if stats else None
    machine, n_known = _machine(options, run)
    acceptance = options.accept if options.accept is not None else run.acceptance if run else None
    if acceptance is None:
        raise UsageError("missing values: add --accept, or --json of a run")
    pair = informed(machine, acceptance, options.draft, run.ranks if run else DEFAULT.ranks, options.block)
    if options.block and machine.latency_s:
        raise UsageError("a block draft cannot be on another machine: remove --block, or add --latency-ms 0")
    beyond = f" (assumed beyond {n_known})" if n_known < options.draft + 1 else ""
    said = [f"target {_shown(machine.target_s)} ms for batches of {', '.join(map(str, _SIZES))}{beyond}"]
    alone, inferred = pair.costs.alone, "" if (machine.branch_s if options.block else machine.pair_s) else " (assumed)"
    if options.block:
        said += [f"draft {1000 * alone.seconds(0.0, options.block):.4g} ms for a block of {options.block}{inferred}"]
    else:
        one, two = f"{1000 * machine.draft_s:.4g}", f"{1000 * alone.pair_s():.4g}"
        said += [f"draft {one} ms per token, {two} ms for two in one sequence{inferred}"]
    if machine.branch_s and not options.block:
        said[-1] += f", {_shown(machine.branch_s)} ms for one in each of {', '.join(map(str, _SIZES))} sequences"
    for role, model in stats.models.items() if stats else ():
        if model and model.expert_bytes:
            experts, on_cpu = map(size_of, (model.expert_bytes, model.expert_bytes_on_cpu))
            said += [f"{role} with {experts} of experts, {on_cpu} of them on the CPU"]
    if machine.latency_s:
        said += [f"round trip {1000 * machine.latency_s:.4g} ms"]
    say("; ".join([*said, f"{100 * acceptance:.0f} % accepted"]))
    prospects = foretell(pair, constant=True, prepares=bool(machine.branch_s) and not options.block)
    print("\n".join(render(prospects)))  # noqa: T201 - the output
    return 0


def render(prospects: Prospects) -> list[str]:
    """A table, with the settings that reach each rate."""
    off, sync = prospects.found[Schedule.OFF], prospects.found[Schedule.SYNC]
    both, prepared = prospects.found.get(Schedule.ASYNC), prospects.prepared
    in_turns = f"draft {sync.n_wait}, then verify{f' {n}' if (n := sync.n_verify) < sync.n_wait else ''}"
    rows = [
        ("plain", off.rate, "the target alone"),
        *(
            [("sequential", sync.rate, in_turns if sync.n_verify else "no drafting")]
            if Schedule.SYNC in prospects.rates
            else []
        ),
        *([("concurrent", both.rate, f"wait for {both.n_wait}, verify up to {both.n_verify}")] if both else []),
        *([("prepared", prepared.rate, f"prepare {prepared.n_branches or 'no'} outcomes")] if prepared else []),
        ("limit", prospects.limit, "min(1/t_d, E/T(k+1))"),
    ]
    lines = [f"{name:<13}{rate:8.2f} tokens/s  {rate / off.rate:5.2f}×   {words}" for name, rate, words in rows]
    if prospects.best is Schedule.OFF:
        return [*lines, "best: the target alone (omit -md)"]
    return [*lines, f"best: --schedule {prospects.best.value}{sufficient(prospects)}"]


def sufficient(prospects: Prospects) -> str:
    """The smallest --draft that is sufficient, as the end of a sentence."""
    return f"; --draft {prospects.n_enough} is sufficient" if prospects.n_enough is not None else ""


def _shown(times_s: Sequence[float]) -> str:
    return ", ".join(f"{1000 * times_s[n - 1]:.4g}" for n in _SIZES)


class _Policy(msgspec.Struct):
    """What is read of the statistics of a run; earlier versions had no fields with defaults."""

    curve_ms: ByCondition[list[Milliseconds]]
    draft_ms: ByCondition[Milliseconds]
    acceptance: Share
    ranks: tuple[float, ...] = DEFAULT.ranks
    pair_ms: Milliseconds | None = None
    draft_ms_by_sequences: list[Milliseconds] = []
    measured: ByCondition[list[int]] | None = None
    latency_ms: Milliseconds | None = None


class _Experts(msgspec.Struct):
    expert_bytes: int = 0
    expert_bytes_on_cpu: int = 0


class _Run(msgspec.Struct):
    policy: _Policy
    models: dict[str, _Experts | None] = {}


def _machine(options: PlanOptions, run: _Policy | None) -> tuple[Machine, int]:
    """The times, and the largest batch of the target whose time is given. Raises UsageError."""
    latency_ms, n_all = options.latency_ms, MAX_DRAFT + 1
    if options.machine:
        if options.target_ms or options.table or options.draft_ms or options.draft_pair_ms:
            raise UsageError("--machine has all times: remove --target-ms, --table, --draft-ms and --draft-pair-ms")
        pair = read_pair(options.machine, MAX_DRAFT)
        if pair.assumed:
            say(f"assumed, not measured: {', '.join(pair.assumed)}")
        return pair.machine if latency_ms is None else replace(pair.machine, latency_s=latency_ms / 1000), n_all
    if options.target_ms and options.table:
        raise UsageError("--target-ms and --table both give the target's times: use only one")
    curves: list[list[float]] = [[], [], []]
    draft_ms, pair_ms = 0.0, 0.0
    if run:
        by_sequences = run.draft_ms_by_sequences or [run.draft_ms.concurrent]
        curves = [run.curve_ms.alone, run.curve_ms.concurrent, by_sequences]
        draft_ms, pair_ms = run.draft_ms.alone, run.pair_ms or 0.0
        latency_ms = run.latency_ms if latency_ms is None else latency_ms
    alone, concurrent, drafts = (dict(enumerate(ms, 1)) for ms in curves)
    n_known = max(run.measured.alone if run and run.measured else alone, default=1)
    if options.table or options.target_ms:
        alone = concurrent = _read_table(options.table) if options.table else _times(options.target_ms, "--target-ms")
        n_known = max(alone) if len(alone) > 1 else n_all
    if options.draft_ms:
        drafts, pair_ms = _times(options.draft_ms, "--draft-ms", is_block=options.block > 0), 0.0
        draft_ms = drafts[1]
    if not alone or not concurrent or not drafts:
        raise UsageError(
            "missing values: add --target-ms or --table, and --draft-ms, or --machine, or --json of a run; "
            "for example: duo plan --target-ms 200 --draft-ms 20 --accept 0.7"
        )
    branch_s = curve(drafts, max(MAX_BRANCHES + 1, options.block)) if len(drafts) > 1 else ()
    target_s, concurrent_s = curve(alone, n_all), curve(concurrent, n_all)
    pair_s = (options.draft_pair_ms or pair_ms) / 1000
    machine = Machine(target_s, draft_ms / 1000, concurrent_s, drafts[1] / 1000, pair_s=pair_s, branch_s=branch_s)
    return replace(machine, latency_s=(latency_ms or 0.0) / 1000), n_known


def _times(text: object, option: str, form: str = "the form", *, is_block: bool = False) -> dict[int, float]:
    """`490`, or `1:490,2:495,8:650`; smaller blocks take as long as the smallest one given. Raises UsageError."""
    items = [item.split(":") if ":" in item else ["1", item] for item in str(text).replace(" ", "").split(",")]
    try:
        times = msgspec.convert(dict(items), Table, strict=False)
        if 1 not in times and not is_block:
            raise ValueError("a size is missing")
    except ValueError:
        one = "" if is_block else ", with a time for 1"
        raise UsageError(f"{option} must have {form} 490 or 1:490,2:495,8:650{one}") from None
    if len(times) < len(items):
        raise UsageError(f"{option} has two times for one size")
    return {1: times[min(times)]} | times


def _read_table(path: Path) -> dict[int, float]:
    """Lines of `n ms` or `n,ms`; comments with # and a heading are skipped. Raises UsageError."""
    try:
        lines = read_path(path, MIB).decode(errors="replace").replace(",", " ").splitlines()
    except OSError as error:
        raise UsageError(f"--table {path}: {error.strerror}") from error
    rows = [[*line.split(), ""] for line in lines if line.split("#")[0].strip()[:1].isdecimal()]
    text = ",".join(f"{n}:{ms}" for n, ms, *_ in rows)
    return _times(text, f"--table {path}", "a batch size and a time in each line, as")


def _read_statistics(path: Path) -> _Run:
    """What is known from a run. Raises UsageError."""
    try:
        return msgspec.json.decode(read_path(path, 64 * MIB), type=_Run)
    except OSError as error:
        raise UsageError(f"--json {path}: {error.strerror}") from error
    except (ValueError, RecursionError):
        raise UsageError(f"--json {path}: not the statistics of a run with a draft that was long enough") from None
