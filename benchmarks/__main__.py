"""Runs one scenario: python -m benchmarks SCENARIO [-r N] [-n N] [--pairs NAME…] [--json FILE]; see README.md."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from benchmarks import REPOSITORY
from benchmarks.contestants import Setup
from benchmarks.measure import Scenario, note
from benchmarks.models import PAIRS, prompt_files
from benchmarks.options import parser
from benchmarks.scenarios import SCENARIOS
from duo.bench.facts import circumstances
from duo.bench.peers import PROGRAMS
from duo.errors import DuoError

_BUSY = 0.5  # load before the first run that causes a warning


def main() -> int:
    """Returns the exit status: 0, 1 if a bar is missed, 2 if a program failed, 130 after Ctrl-C."""
    names = "\n".join(f"  {name:<16}{scenario.about}" for name, scenario in SCENARIOS.items())
    command_line = parser("python -m benchmarks", f"Run one scenario:\n\n{names}")
    command_line.add_argument("scenario", metavar="SCENARIO", choices=SCENARIOS, help="one of the scenarios above")
    command_line.add_argument("--pairs", nargs="+", choices=PAIRS, metavar="NAME", help="only these pairs of models")
    options = command_line.parse_args()
    scenario = SCENARIOS[options.scenario]
    wanted = {name: PAIRS[name] for name in options.pairs or scenario.pairs}
    if scenario.needs_programs and not any((options.peers / name).exists() for name in PROGRAMS):
        note(f"{options.peers} has no programs: build them with benchmarks/peers.sh")
        return 2
    return run(options.scenario, scenario, wanted, options)


def run(name: str, scenario: Scenario, pairs: Mapping[str, Any], options: argparse.Namespace, **about: Any) -> int:
    """Measure each pair, print its table and update the --json file. Returns the exit status."""
    facts = circumstances()
    document: dict[str, Any] = {**facts, **git_commit(), **about, "scenario": name, "pairs": {}}
    if facts["load_before"] > _BUSY:
        note(f"the machine is busy (load {facts['load_before']}): the figures will vary")
    shared = ", ".join([*facts["hardware"]["shared_caches"], "memory"])
    cores = f"{facts['hardware']['usable_cores']} cores, which share {shared}"
    lines = [f"# {name}\n\n{scenario.about}. {facts['hardware']['cpu']}, {cores}; {facts['date'][:10]}"]
    print(lines[0])
    passed = True
    for pair, (target, draft, prompts) in pairs.items():
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            setup = Setup(
                pair, target(), draft(), options.prompts or prompt_files(prompts),
                scenario.n_rounds if options.rounds is None else options.rounds, options.n_tokens or scenario.n_tokens,
                options.duo, options.peers.resolve(), options.only or (), Path(folder), stack,
            )  # fmt: skip
            try:
                outcome = scenario.run(setup)
            except (DuoError, OSError, httpx.HTTPError) as error:
                note(f"{pair}: {error}")
                return 2
            except KeyboardInterrupt:
                return 130
        settings = {"rounds": setup.n_rounds, "n_tokens": setup.n_tokens}
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
    """The commit of the working tree, and whether there are uncommitted changes."""

    def git(*arguments: str) -> str | None:
        command = ["git", "-C", str(REPOSITORY), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None

    return {"commit": git("rev-parse", "--verify", "HEAD"), "changed": bool(git("status", "--porcelain"))}


if __name__ == "__main__":
    sys.exit(main())
