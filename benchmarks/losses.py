"""Where each millisecond of a draft on a device of its own goes, in virtual time.

python -m benchmarks.losses [MACHINE...] [--tokens N]

The recorded texts of each pair are written in schedule async, with prepared outcomes, by a controller that knows the
costs. Milliseconds of the draft per token of the text:

    chain, branch   decodes that led to a further position of the text before the target had written that
    several         what these took longer because of other sequences in the batch
    wrong           decodes of sequences that all continued a wrong token
    late            decodes that led to a position that the target had written, or that another one had led to
    idle            nothing was decoded
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks import argument_parser, samples
from benchmarks.oracle import N_PROMPT, Case
from benchmarks.samples import N_TOKENS, machine_name
from benchmarks.virtual import Replay
from duo.bench.results import markdown_table
from duo.speculation.machine import Machine
from duo.speculation.modes import Schedule

KINDS = ("chain", "branch", "several", "wrong", "late", "idle")


def losses(machine: Machine, found: Replay) -> dict[str, float]:
    """Seconds of the draft by kind, over the whole text."""
    spent, done = dict.fromkeys(KINDS, 0.0), N_PROMPT
    steps, now = iter(found.ends), 0.0
    written, (n_next, next_s) = N_PROMPT, next(steps)
    for decode in found.decodes:
        spent["idle"] += decode.start - now
        now = min(decode.end, found.seconds)
        while next_s <= now and (n_next, next_s) != found.ends[-1]:
            written = N_PROMPT + n_next
            n_next, next_s = next(steps)
        seconds = now - decode.start
        ahead = max((at for at, is_right in decode.rows if is_right), default=0)
        if ahead < max(done, written):
            spent["late" if ahead else "wrong"] += seconds
            continue
        done, several_s = ahead + 1, max(0.0, seconds - machine.concurrent_draft_s) if len(decode.rows) > 1 else 0.0
        spent["chain" if decode.rows[-1] == (ahead, True) else "branch"] += seconds - several_s
        spent["several"] += several_s
    spent["idle"] += max(0.0, found.seconds - now)
    return spent


def row(name: str, machine: Machine, found: Sequence[Replay]) -> list[str]:
    n = sum(run.tokens for run in found)
    spent = [losses(machine, run) for run in found]
    whole_s, target_s = sum(run.seconds for run in found), sum(run.target_s for run in found)
    rates = [f"{1000 * sum(each[kind] for each in spent) / n:.2f}" for kind in KINDS]
    waits = f"{1000 * (whole_s - target_s) / n:.2f}"
    decodes = f"{n / sum(len(run.ends) for run in found):.2f}"
    return [name, f"{n / whole_s:.1f}", f"{1000 * whole_s / n:.2f}", *rates, waits, decodes]


def main() -> None:
    found = argument_parser("losses", __doc__)
    add = found.add_argument
    add("machines", nargs="*", type=machine_name, default=["two-cards"], metavar="MACHINE", help="(default: two-cards)")
    add("-n", "--tokens", type=int, default=N_TOKENS, metavar="N", help="of a text (default: 256)")
    options = found.parse_args()
    lines = [["ms of the draft per token", "tokens/s", "all", *KINDS, "target waits", "tokens/decode"]]
    for name, pair in samples.pairs(options.machines):
        if pair.separate_devices:
            case = Case(name, pair.machine, samples.texts(pair.traces), separate_devices=True)
            runs = [case.forced(Schedule.ASYNC, text, options.tokens, branches=None) for text in case.texts]
            lines.append(row(name, pair.machine, runs))
    if not lines[1:]:
        found.error(f"{', '.join(options.machines)}: no recorded texts of a draft with a device of its own")
    print(*markdown_table(lines), sep="\n")


if __name__ == "__main__":
    main()
