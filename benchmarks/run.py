"""The headline tables, each by one command.

python -m benchmarks.run --table placement|schedules|latency|backs|peers [--pairs NAME…]; README.md has the protocol.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.backs import measure_backs
from benchmarks.models import PAIRS
from benchmarks.options import PROMPTS, parser, quiet_enough
from benchmarks.report import circumstances
from benchmarks.tables import TABLES, Call, backs_table, table
from duo.bench.peers import PROGRAMS
from duo.bench.process import run_process

FOLDERS = {"tinyllama-f16-stories": PROMPTS / "stories"}
CHOICES = (*TABLES, "backs")


def main() -> int:
    options = parse_options()
    document: dict[str, Any] = {**circumstances(options.peers), "table": options.table, "pairs": {}}
    document["settings"] = {"n_tokens": options.n_tokens, "repetitions": options.repetitions}
    if options.table == "peers" and not any((options.peers / name).exists() for name in PROGRAMS):
        print(f"run: {options.peers} has no programs: bash benchmarks/peers.sh builds them", file=sys.stderr)
        return 2
    quiet_enough()
    lines: list[str] = []
    for pair in options.pairs:
        made, found = measure_pair(pair, options)
        lines += [f"\n### {options.table}: {pair}\n", *made]
        print("\n".join(lines[-len(made) - 1 :]), flush=True)
        document["pairs"][pair] = found
        write(options, document, lines)
    return 0


def parse_options() -> argparse.Namespace:
    command_line = parser("run", (__doc__ or "").partition("\n")[0], n_tokens=256)
    add = command_line.add_argument
    add("--table", choices=CHOICES, required=True, help="which one")
    add("--pairs", nargs="+", choices=PAIRS, default=list(PAIRS), metavar="NAME", help="only these pairs of models")
    return command_line.parse_args()


def measure_pair(pair: str, options: argparse.Namespace) -> tuple[list[str], Any]:
    """The table of one pair, in Markdown, and every figure behind it."""
    models = (PAIRS[pair][0](), PAIRS[pair][1]())
    files = options.prompts or prompts_of(pair)
    if options.table == "backs":
        found = measure_backs(models, files, options.n_tokens, options.repetitions, _note)
        return backs_table(found), found
    chosen = TABLES[options.table]
    documents = [measure_call(call, models, files, options) for call in chosen.calls(models[0])]
    return table(chosen, documents), documents


def measure_call(
    call: Call, models: tuple[Path, Path], files: Sequence[Path], options: argparse.Namespace
) -> dict[str, Any]:
    """What `duo bench` says, or the reason why it cannot be measured here."""
    if call.blank:
        return {"call": call.name, "blank": call.blank, "modes": call.modes, "more": call.more, "rows": []}
    peers = [f"{name}={path}" for name in PROGRAMS if (path := options.peers.resolve() / name).exists()]
    with tempfile.TemporaryDirectory() as folder:
        command = [*options.duo, "bench", "-m", str(models[0]), "-md", str(models[1]), "--modes", ",".join(call.modes)]
        command += [*call.more, "--peers", ",".join(peers) if call.peers and peers else "none", "-o", "json", "--raw"]
        command += ["--prompts", str(prompts_file(files, Path(folder)))]
        command += ["-n", str(options.n_tokens), "-r", str(options.repetitions)]
        _note(f"{call.name}: duo bench {' '.join(command[len(options.duo) + 1 :])}")
        cost = run_process(command, timeout_s=24 * 3600)
    if cost.status:
        raise SystemExit(f"run: duo bench exited with {cost.status}\n{cost.stderr[-1000:]}")
    document = json.loads(cost.stdout)
    for name in ("options", "peers"):  # they name files of this machine
        del document[name]
    return {"call": call.name, "blank": None, "modes": call.modes, "more": call.more, **document}


def prompts_of(pair: str) -> list[Path]:
    """Prompts after which the pair's target does not loop."""
    folder = FOLDERS.get(pair, PROMPTS / "tinyllama" if pair.startswith("tinyllama") else PROMPTS)
    return sorted(folder.glob("*.txt"))


def prompts_file(files: Sequence[Path], folder: Path) -> Path:
    """The prompts as `duo bench` reads them, each a category of its own."""
    path = folder / "prompts.txt"
    texts = [file.read_text(encoding="utf-8").removesuffix("\n").replace("\n", "\\n") for file in files]
    lines = [f"[{file.stem}]\n{text}\n" for file, text in zip(files, texts, strict=True)]
    path.write_text("".join(lines), encoding="utf-8")
    return path


def write(options: argparse.Namespace, document: dict[str, Any], lines: Sequence[str]) -> None:
    """Write what there is up to now: JSON, and the tables in Markdown beside it."""
    if options.json is None:
        return
    options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    hardware = document["hardware"]
    head = f"# {options.table}\n\n{hardware['cpu']}, {hardware['usable_cores']} cores, {document['date'][:10]}\n"
    options.json.with_suffix(".md").write_text(head + "\n".join(lines) + "\n", encoding="utf-8")


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
