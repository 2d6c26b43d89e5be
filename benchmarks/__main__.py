"""Runs one scenario: python -m benchmarks SCENARIO [-r N] [-n N] [--pairs NAME…] [--json FILE]; see README.md."""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from shlex import split
from typing import Any

import httpx

from benchmarks import PEERS, REPOSITORY
from benchmarks.contestants import Setup
from benchmarks.models import PAIRS, prompt_files
from benchmarks.runner import circumstances, note
from benchmarks.scenarios import SCENARIOS
from duo.errors import DuoError

_BUSY = 0.5  # load before the first run that causes a warning


def parser() -> argparse.ArgumentParser:
    installed = Path(sys.executable).parent / "duo"
    duo = [str(installed)] if installed.exists() else [sys.executable, "-m", "duo.cli.main"]
    names = "\n".join(f"  {name:<16}{scenario.about}" for name, scenario in SCENARIOS.items())
    found = argparse.ArgumentParser(
        prog="python -m benchmarks", description=f"Run one scenario:\n\n{names}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = found.add_argument
    add("scenario", metavar="SCENARIO", choices=SCENARIOS, help="one of the scenarios above")
    add("--pairs", nargs="+", choices=PAIRS, metavar="NAME", help="only these pairs of models")
    add("--models", type=Path, nargs=2, metavar=("TARGET", "DRAFT"), help="instead of these pairs")
    add("-r", "--rounds", type=int, metavar="N", help="number of rounds, one prompt each (default: by scenario)")
    add("-n", "--n-tokens", type=int, metavar="N", help="number of tokens per text (default: by scenario)")
    add("--prompts", type=Path, nargs="+", metavar="FILE", help="prompts (default: of the pair)")
    add("--only", nargs="+", metavar="NAME", default=(), help="only contestants of these names, or that start so")
    add("--minutes", type=float, default=math.inf, metavar="M", help="as many rounds as fit, or a part of the first")
    add("--questions", type=Path, metavar="FILE", help="spec-bench, clients: questions of Spec-Bench or SPEED-Bench")
    add("--per-category", type=int, metavar="N", help="spec-bench: questions of each category (default: all)")
    add("--turns", type=int, metavar="N", help="spec-bench: turns of each question (default: all)")
    add("--temperature", type=float, nargs="+", default=(0.0,), metavar="T", help="spec-bench: temperatures")
    add("--first-texts", action="store_true", help="spec-bench: an empty profile for each text")
    add("--bursts", action="store_true", help="spec-bench: while another program computes on a core now and then")
    add("--machine", default="", metavar="FILE[:PAIR]", help="two-devices: emulate this machine file")
    add("--duo", type=split, default=duo, metavar="COMMAND", help="command that starts duo")
    add("--peers", type=Path, default=PEERS, metavar="DIR", help="folder of llama.cpp's programs")
    add("--json", type=Path, metavar="FILE", help="write all figures to FILE, the tables to FILE with suffix .md")
    return found


def main() -> int:
    """Returns the exit status: 0, 1 if a bar is missed, 2 if a program failed, 130 after Ctrl-C."""
    options = parser().parse_args()
    name, scenario = options.scenario, SCENARIOS[options.scenario]
    pairs = {pair: PAIRS[pair] for pair in options.pairs or scenario.pairs}
    if options.models:
        own, prompts = options.models, next(iter(pairs.values()))[2]
        pairs = {own[0].stem: (lambda: own[0], lambda: own[1], prompts)}
    facts, passed = circumstances(), True
    document: dict[str, Any] = {**facts, **git_commit(), "scenario": name, "pairs": {}}
    if facts["load_before"] > _BUSY:
        note(f"the machine is busy (load {facts['load_before']}): the figures will vary")
    hardware = facts["hardware"]
    cores = f"{hardware['usable_cores']} cores, which share {', '.join([*hardware['shared_caches'], 'memory'])}"
    lines = [f"# {name}\n\n{scenario.about}. {hardware['cpu']}, {cores}; {facts['date'][:10]}"]
    print(lines[0])
    for pair, (target, draft, prompts) in pairs.items():
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            try:
                setup = Setup(
                    pair, target(), draft(), options.prompts or prompt_files(prompts),
                    scenario.n_rounds if options.rounds is None else options.rounds,
                    options.n_tokens or scenario.n_tokens, options.duo, options.peers.resolve(), options.only,
                    Path(folder), stack, options.machine, time.monotonic() + 60 * options.minutes,
                    questions=options.questions, per_category=options.per_category, n_turns=options.turns,
                    temperatures=options.temperature, journal=options.json and options.json.with_suffix(".jsonl"),
                    commit=document["commit"] or "", first_texts=options.first_texts, bursts=options.bursts,
                )  # fmt: skip
                outcome = scenario.run(setup)
            except (DuoError, OSError, httpx.HTTPError) as error:
                note(f"{pair}: {str(error) or type(error).__name__}")
                return 2
            except KeyboardInterrupt:
                return 130
        settings = {"rounds": setup.n_rounds, "n_tokens": setup.n_tokens}
        settings |= {"first_texts": setup.first_texts, "bursts": setup.bursts}
        document["pairs"][pair] = outcome.document | settings | {"bars": [v.as_json() for v in outcome.verdicts]}
        made = ["", f"## {pair}, {setup.n_tokens} tokens, {setup.n_rounds} rounds", "", *outcome.lines]
        made += ["", *(f"- {verdict}" for verdict in outcome.verdicts)] if outcome.verdicts else []
        print("\n".join(made), flush=True)
        lines += made
        passed = passed and all(verdict.passed is not False for verdict in outcome.verdicts)
        if options.json:
            options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
            options.json.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")
        if not outcome.document.get("complete", True):
            return 130
    return int(not passed)


def git_commit() -> dict[str, Any]:
    """The commit of the working tree, and whether there are uncommitted changes; of a copy without git, nothing."""
    if shutil.which("git") is None:
        return {"commit": None, "changed": False}
    git = partial(subprocess.run, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    commit, changes = (git(["git", *words]).stdout for words in (["rev-parse", "HEAD"], ["status", "--porcelain"]))
    return {"commit": commit.strip() or None, "changed": bool(changes)}


if __name__ == "__main__":
    sys.exit(main())
