"""Measures what a draft costs that guesses at random: duo with one beside duo without.

python -m benchmarks.hostile [-r N] [-n N]; README.md has the protocol.

The demo pair, whose draft computes as ever and proposes tokens drawn from the whole vocabulary with confidences drawn
at random, so that nothing about it can be trusted.
"""

from __future__ import annotations

import sys

from benchmarks.options import PROMPTS, parser, quiet_enough
from benchmarks.ratios import in_turns, show
from duo.models.demo import demo_pair

_RANDOM_DRAFT = """
import random, sys
from duo.cli.main import main
from duo.engine import slot
from duo.spec.types import Guess
class Random:
    n_recent = 0
    dice = random.Random(1)
    def guess(self, logits, position, recent=()):
        return Guess(self.dice.randrange(len(logits)), self.dice.uniform(0, 8))
    judge = guess
choosing = slot.choosing
slot.choosing = lambda *arguments: (choosing(*arguments)[0], Random())
sys.argv[0] = "duo"
main()
"""


BARS = {"a draft of random tokens over none": ("random draft", "plain", 0.97)}


def main() -> None:
    options = parser("hostile", (__doc__ or "").partition("\n")[0], n_tokens=256).parse_args()
    files = options.prompts or sorted(PROMPTS.glob("*.txt"))
    quiet_enough()
    target, draft = map(str, demo_pair())
    ways = {
        "plain": [*options.duo, "-m", target],
        "random draft": [sys.executable, "-c", _RANDOM_DRAFT, "-m", target, "-md", draft],
    }
    show(in_turns(ways, files, options), BARS, "the demo pair")


if __name__ == "__main__":
    main()
