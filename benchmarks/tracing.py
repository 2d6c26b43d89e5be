"""Measures what --trace costs: the demo pair, one core each, and its target alone, with and without it.

python -m benchmarks.tracing [-r N] [-n N] [--json FILE]; README.md has the protocol.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from benchmarks.options import PROMPTS, parser, quiet_enough
from benchmarks.ratios import in_turns, show
from benchmarks.report import circumstances
from duo.models.demo import demo_pair

BARS = {
    "both models, traced, over not traced": ("both, traced", "both", 0.99),
    "the target alone, traced, over not traced": ("alone, traced", "alone", 0.99),
}


def main() -> None:
    options = parser("tracing", (__doc__ or "").partition("\n")[0], n_tokens=256).parse_args()
    files = options.prompts or sorted(PROMPTS.glob("*.txt"))
    about = {**circumstances(options.peers), "load_before": quiet_enough()}
    target, draft = map(str, demo_pair())
    # Always the same schedule: what the policy finds out differs from run to run.
    both = [*options.duo, "-m", target, "-md", draft, "-t", "1", "-td", "1", "--schedule", "async", "--draft", "4"]
    alone = [*options.duo, "-m", target, "-t", "1"]
    with tempfile.TemporaryDirectory() as folder:
        trace = ["--trace", str(Path(folder) / "trace.json")]
        ways = {"both": both, "both, traced": both + trace, "alone": alone, "alone, traced": alone + trace}
        found = show(in_turns(ways, files, options), BARS, "the demo pair, one core each")
    if options.json:
        options.json.write_text(json.dumps({**about, **found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
