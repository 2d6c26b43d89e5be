"""Measures what a draft costs that guesses at random: duo with one beside duo without.

python -m benchmarks.hostile [-r N] [-n N]; README.md has the protocol.

The demo pair, whose draft computes as ever and proposes tokens drawn from the whole vocabulary with confidences drawn
at random, so that nothing about it can be trusted.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.options import PROMPTS, parser, quiet_enough
from duo.bench.process import run_process
from duo.models.demo import demo_pair

_LEAST = 0.97

_RANDOM_DRAFT = """
import random, sys
from duo.cli import run
from duo.cli.main import main
from duo.spec.types import Guess
class Random:
    n_recent = 0
    dice = random.Random(1)
    def guess(self, logits, position, recent=()):
        return Guess(self.dice.randrange(len(logits)), self.dice.uniform(0, 8))
    judge = guess
choosing = run.choosing
run.choosing = lambda *arguments: (choosing(*arguments)[0], Random())
sys.argv[0] = "duo"
main()
"""


def main() -> None:
    options = parser("hostile", (__doc__ or "").partition("\n")[0], n_tokens=256).parse_args()
    files = options.prompts or sorted(PROMPTS.glob("*.txt"))
    quiet_enough()
    target, draft = demo_pair()
    ways = {"plain": options.duo, "random draft": [sys.executable, "-c", _RANDOM_DRAFT]}
    found: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "duo.json"
        for repetition in range(options.repetitions):
            for file in files:
                for way, program in sorted(ways.items(), reverse=repetition % 2 == 1):
                    print(f"\r{repetition + 1}/{options.repetitions} {file.stem} {way:<30}", end="", file=sys.stderr)
                    more = ["-md", str(draft)] if way != "plain" else []
                    command = [*program, "-m", str(target), *more, "-f", str(file), "-n", str(options.n_tokens)]
                    command += ["--ignore-eos", "--json", str(report)]
                    cost = run_process(command, {"DUO_CONFIG": folder})
                    if cost.status:
                        raise SystemExit(cost.stderr)
                    rate = json.loads(report.read_text())["generation"]["tokens_per_s"]
                    found.setdefault((way, file.stem), []).append(rate)
    print(file=sys.stderr)
    ratios = {}
    for file in files:
        plain, hostile = (statistics.median(found[way, file.stem]) for way in ways)
        ratios[file.stem] = hostile / plain
        print(f"{file.stem:<14} plain {plain:6.1f}   random draft {hostile:6.1f} tokens/s   {hostile / plain:.3f}")
    mean = statistics.geometric_mean(ratios.values())
    print(f"a draft of random tokens over none {mean:.3f}  at least {_LEAST} {'pass' if mean >= _LEAST else 'MISSED'}")


if __name__ == "__main__":
    main()
