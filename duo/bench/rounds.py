"""Takes the samples round by round, so that temporary slowdowns of the machine affect all contestants."""

from __future__ import annotations

import random
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from duo.bench.contestant import Contestant, Interrupted, Job, ParseError, Run
from duo.bench.prompts import Prompt
from duo.bench.texts import loops

_WARM_UP_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of one contestant in one round."""

    contestant: Contestant
    i_round: int
    prompt: Prompt
    run: Run

    @property
    def loops(self) -> bool:
        """Whether its text repeats itself too much to be counted."""
        return loops(self.run.text, self.prompt.text)


def measure(
    contestants: Sequence[Contestant],
    prompts: Sequence[Prompt],
    job: Job,
    put: Callable[[Sample], None],
    warn: Callable[[str], None],
    stop: threading.Event,
    note: Callable[[str], None] = lambda _: None,
    *,
    warm_up: bool = True,
) -> None:
    """Run every contestant once per round. Each round has one prompt and another order of contestants.

    The orders are random with a fixed seed: in a rotation each contestant would always follow the same one. With
    `warm_up` each contestant first generates a few tokens, which excludes one-time costs and finds programs that
    cannot run. `job` lacks the prompts. `warn` gets the failures of contestants that may fail, `note` the names
    that warm up. Returns early once `stop` is set. Raises DuoError.
    """
    failed: list[Contestant] = []
    order, draws = list(contestants), random.Random(1)  # noqa: S311 - nothing secret

    def write(contestant: Contestant, asked: Job) -> Run | None:
        if contestant in failed:
            return None
        try:
            return contestant.writer.write(asked, stop)
        except ParseError as error:
            if not contestant.may_fail:
                raise
            warn(f"{error}: skipped")
            failed.append(contestant)
            return None

    with tempfile.TemporaryDirectory(prefix="duo-bench-") as folder:
        file = Path(folder) / "prompt.txt"
        try:
            for contestant in contestants if warm_up else ():
                note(contestant.name)
                asked = replace(_with_prompt(job, prompts[-1], file), n_tokens=min(_WARM_UP_TOKENS, job.n_tokens))
                write(contestant, asked)
            for i_round, prompt in enumerate(prompts):
                asked = _with_prompt(job, prompt, file)
                order = _another_order(order, draws)
                for contestant in order:
                    if (run := write(contestant, asked)) is not None:
                        put(Sample(contestant, i_round, prompt, run))
        except Interrupted:
            pass


def _another_order(before: list[Contestant], draws: random.Random) -> list[Contestant]:
    order = before
    while order == before and len(before) > 1:
        order = draws.sample(before, len(before))
    return order


def _with_prompt(job: Job, prompt: Prompt, file: Path) -> Job:
    file.write_text(prompt.text + "\n", encoding="utf-8")
    return replace(job, prompt=prompt.text, prompt_file=file)
