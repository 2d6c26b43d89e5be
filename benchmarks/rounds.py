"""Takes the samples of a comparison: in turns, so that whatever slows the machine for a while slows everybody."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.contestants import N_CTX, Contestant, Task
from benchmarks.summary import Results, Sample
from duo.bench.contestant import Run
from duo.bench.peers import ParseError
from duo.bench.process import Cost, run_process


def measure(
    contestants: Sequence[Contestant],
    prompt_files: Sequence[Path],
    models: tuple[Path, Path],
    n_tokens: int,
    repetitions: int,
) -> Results:
    """Take all samples: every repetition asks each contestant once per prompt, each time in another order."""
    results = Results(contestants, [file.stem for file in prompt_files])
    n_round = 0
    with tempfile.TemporaryDirectory() as folder:  # for the profiles of duo too: it knows nothing from before
        for repetition in range(repetitions):
            for file in prompt_files:
                job = _task(models, file.resolve(), n_tokens, Path(folder) / "duo.json")
                first = n_round % len(contestants)
                n_round += 1
                for contestant in results.contestants[first:] + results.contestants[:first]:
                    _note(f"{repetition + 1}/{repetitions} {file.stem}: {contestant.name}")
                    results.add(contestant.name, file.stem, _take_sample(contestant, job))
    _note("")
    return results


def _task(models: tuple[Path, Path], file: Path, n_tokens: int, json_file: Path) -> Task:
    """All of them read the prompt without one trailing newline."""
    prompt = file.read_text(encoding="utf-8").removesuffix("\n")
    return Task(*models, prompt, file, n_tokens, N_CTX, json_file)


def _take_sample(contestant: Contestant, job: Task) -> Sample:
    """Run one contestant once."""
    command = contestant.command(job)
    job.json_file.unlink(missing_ok=True)
    cost = run_process(command, {"DUO_CONFIG": str(job.json_file.parent)})
    if cost.status != 0:
        raise ParseError(f"{contestant.name} exited with {cost.status}: {' '.join(command)}\n{cost.stderr[-2000:]}")
    return Sample(_read_run(contestant, job, cost), cost)


def _read_run(contestant: Contestant, job: Task, cost: Cost) -> Run:
    """Read its output; a run that stopped early is an error, because its rate would not compare."""
    try:
        run = contestant.parse(job, cost)
    except (KeyError, TypeError, ValueError, ParseError) as error:
        raise ParseError(f"{contestant.name}: cannot read its output: {error!r}") from error
    if run.tokens is not None and run.tokens < job.n_tokens:
        raise ParseError(f"{contestant.name}: {run.tokens} tokens instead of {job.n_tokens} on {job.prompt_file}")
    return run


def _note(text: str) -> None:
    """Show what is running, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
