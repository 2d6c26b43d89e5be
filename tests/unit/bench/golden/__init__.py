"""The formats of made-up results."""

from __future__ import annotations

from pathlib import Path

from duo.bench import formats
from tests.unit.bench.samples import FACTS, results

GOLDEN = Path(__file__).parent
FORMATS = {
    "md": formats.markdown(results(), FACTS) + "\n",
    "csv": formats.as_csv(results(), FACTS) + "\n",
    "json": formats.as_json(results(), FACTS) + "\n",
    "jsonl": formats.as_json_lines(results(), FACTS) + "\n",
}
