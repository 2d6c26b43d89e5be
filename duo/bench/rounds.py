"""Takes the samples: in turns, so that whatever slows the machine for a while slows everybody."""

from __future__ import annotations

import random
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from duo.bench.contestant import Contestant, Interrupted, Job, Run
from duo.bench.peers import ParseError
from duo.bench.prompts import Prompt

_WARM_UP_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of one contestant in one round."""

    contestant: Contestant
    i_round: int
    prompt: Prompt
    run: Run


def measure(
    contestants: Sequence[Contestant],
    prompts: Sequence[Prompt],
    job: Job,
    put: Callable[[Sample], None],
    warn: Callable[[str], None],
    stop: threading.Event,
    note: Callable[[str], None] = lambda _: None,
) -> None:
    """Let every contestant write once per round, which has a prompt of its own, each time in another order.

    The orders are drawn, always the same ones: in a rotation everybody would follow the same one every time.
    Before that each writes a few tokens: whatever is made only once is made then, and who cannot run is found out.
    `job` says all but the prompts; `warn` is told of those that may fail, and do, `note` who warms up. Ends early once
    `stop` is set.
    Raises DuoError.
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
            warn(f"{error}: left out")
            failed.append(contestant)
            return None

    with tempfile.TemporaryDirectory(prefix="duo-bench-") as folder:
        file = Path(folder) / "prompt.txt"
        try:
            warm_up = replace(_with_prompt(job, prompts[-1], file), n_tokens=min(_WARM_UP_TOKENS, job.n_tokens))
            for contestant in contestants:
                note(contestant.name)
                write(contestant, warm_up)
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
