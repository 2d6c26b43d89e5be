"""Spec-Bench: duo as a user starts it, and llama.cpp's programs with many settings, per kind of text.

Each turn of each question is a prompt in the target's chat template. Earlier answers in it are plain decoding's, so
that all contestants get the same prompts. A text ends where the model ends it. Each finished text is a line of a
journal, from which an interrupted run continues.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import chain, product
from pathlib import Path
from typing import Any

import httpx

from benchmarks.chart import bar_chart
from benchmarks.contestants import ALONE, N_CTX, NGRAMS, Setup, duo, plain_program, settings
from benchmarks.process import Child
from benchmarks.questions import Question, interleaved, read_questions
from benchmarks.ratios import DUO, LOOKUP, PLAIN, Ratios, Text, by_text
from benchmarks.runner import Outcome, Scenario, models, note
from benchmarks.servers import llama_server
from duo.bench.contestants import SPECULATIVE, Program
from duo.bench.rounds import Contestant, ParseError, distinct_share, with_prompt
from duo.config import ModelConfig
from duo.engine.cores import usable_cores
from duo.errors import UsageError
from duo.llama.model import Model

OFF = f"{DUO} off"
FORCED = ("sync", "async", "sync --draft 4", "sync --draft 8", "async --draft 4")
_DRAFTS = ("draft", "draft n=4 p=0.5", "draft n=8 p=0.5")
# As another program that computes on one core now and then.
_BURSTS = """
import random, time
dice, now = random.Random(1), time.monotonic
while True:
    began, busy_s = now(), dice.uniform(0.3, 1)
    while now() < began + busy_s:
        pass
    time.sleep(2 - busy_s)
"""


class Journal:
    """The finished texts, one JSON object per line; a new one is appended at once."""

    def __init__(self, path: Path) -> None:
        self.texts, self._path = dict[tuple[Any, ...], Text](), path
        with suppress(FileNotFoundError):
            for line in path.read_text(encoding="utf-8").splitlines():
                with suppress(ValueError, TypeError):  # a line that an interruption left incomplete
                    self._keep(Text(**json.loads(line)))

    def _keep(self, text: Text) -> None:
        self.texts[text.key] = text

    def add(self, text: Text) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write("\n" + json.dumps(asdict(text)))
        self._keep(text)


class SpecBench(Scenario):
    """See the module."""

    def run(self, setup: Setup) -> Outcome:
        """See Scenario. After Ctrl-C, or when the time is over, returns the results so far."""
        if setup.questions is None:
            raise UsageError("spec-bench needs --questions FILE: see benchmarks/README.md")
        questions = list(interleaved(read_questions(setup.questions), setup.per_category))
        path = (setup.journal or setup.folder / "texts.jsonl").absolute()
        profiles = path.with_suffix(".profiles") / setup.pair  # those of an interrupted run go on
        journal, complete = Journal(path), False
        profiles.mkdir(parents=True, exist_ok=True)
        if setup.bursts:
            setup.stack.enter_context(Child([sys.executable, "-c", _BURSTS]))
        setup = replace(setup, may_end=True)
        found = contestants(replace(setup, folder=profiles))
        with suppress(KeyboardInterrupt):
            complete = write_all(setup, questions, found, journal, profiles)
        names, keys = {contestant.name for contestant in found}, [each.key for each in questions]
        texts = [
            text
            for text in journal.texts.values()
            if text.pair == setup.pair
            and text.n_most == setup.n_tokens
            and text.contestant in names
            and text.question in keys
            and text.under == setup.under
        ]
        lines, document = list[str](), {"models": models(setup), "complete": complete}
        document["texts"] = [asdict(replace(text, text="")) for text in texts]  # the journal has them
        wall_s = sum(text.wall_s for text in texts)
        document["wall_s"] = wall_s
        verdicts = []
        for temperature in setup.temperatures:
            here = [text for text in texts if text.temperature == temperature]
            ratios = Ratios(here)
            lines += [f"Temperature {temperature:g}:", "", *ratios.table(), ""]
            lines += chain.from_iterable([*by_text(name, here, keys), ""] for name in (DUO, LOOKUP))
            verdicts += ratios.verdicts()
            if setup.journal is not None and ratios.ratios:
                chart = path.with_name(f"{path.stem}-{setup.pair}-{temperature:g}.svg")
                chart.write_text(bar_chart(f"{setup.pair}: tokens/s over plain decoding", *ratios.bars()))
        lines.append(f"Wall time of all texts: {wall_s / 60:.0f} minutes.")
        return Outcome(lines, document, verdicts)


def contestants(setup: Setup) -> list[Contestant]:
    """duo without flags and without speculation; plain decoding; two programs with each setting."""
    n = usable_cores()
    found = [duo(setup, DUO, "-md {draft}"), duo(setup, LOOKUP, ""), duo(setup, OFF, ALONE)]
    found += [plain_program(setup, PLAIN, threads) for threads in dict.fromkeys((1, n))]
    found += [duo(setup, f"{DUO} --schedule {name}", f"-md {{draft}} --schedule {name}") for name in FORCED]
    # What a patient user also finds: on CPUs, tokens are faster so.
    found.append(plain_program(setup, PLAIN, n, "-fa", "off"))
    tried = settings()
    tried |= {f"{name} -fa off": [*tried[name], "-fa", "off"] for name in (*_DRAFTS, "ngram-mod", *NGRAMS, "both")}
    for name, options in tried.items():
        # Its prompt must fit into one batch.
        program = Program(SPECULATIVE, setup.program(SPECULATIVE), n, ["-b", str(N_CTX), *options])
        found.append(Contestant(f"{SPECULATIVE} {name}", program))
        found.append(llama_server(setup, n, *options, name=f"llama-server {name}"))
    found.append(llama_server(setup, n, "-fa", "off", name="llama-server plain -fa off"))
    return setup.chosen(found)


def write_all(
    setup: Setup, questions: Sequence[Question], found: Sequence[Contestant], journal: Journal, profiles: Path
) -> bool:
    """Write every text that the journal lacks. Profiles are empty when a series begins. False: no time left."""
    template = Model(ModelConfig(setup.target), vocabulary_only=True).apply_chat_template
    written = {(*text.settings, text.contestant) for text in journal.texts.values()}
    for series, question, temperature in product(range(1, setup.n_rounds + 1), questions, setup.temperatures):
        messages: list[dict[str, str]] = []
        for turn, asked in enumerate(question.turns[: setup.n_turns], 1):
            messages.append({"role": "user", "content": asked})
            about = (setup.pair, setup.n_tokens, series, setup.under, question.key, turn, temperature)
            order = random.Random(repr(about)).sample(found, len(found))
            job = with_prompt(replace(setup.job, temperature=temperature), template(messages), setup.folder / "prompt")
            for contestant in order:
                if (*about, contestant.name) in journal.texts:
                    continue
                if time.monotonic() > setup.end:
                    return False
                series_of_one = (*about[:4], contestant.name)
                if setup.first_texts or series_of_one not in written:
                    _empty(profiles / contestant.name)
                    written.add(series_of_one)
                began = time.monotonic()
                try:
                    run = contestant.write(job, threading.Event())
                except (ParseError, httpx.HTTPError) as error:  # such as a text that ends at once
                    note(f"{question.key} {contestant.name}: {error}")
                    continue
                first_s = run.figures["first_token_s"]
                assert run.tokens is not None
                assert first_s is not None
                share = round(distinct_share(run.text, job.prompt), 3)
                text = Text(setup.pair, question.key, question.category, turn, temperature, contestant.name, run.tokens,
                            run.tokens_per_s, first_s, share, run.text, setup.n_tokens,
                            round(time.monotonic() - began, 3), setup.commit, series, setup.under)  # fmt: skip
                journal.add(text)
                note(f"{question.key} {question.category:<14} {contestant.name:<48} {run.tokens_per_s:8.1f} t/s")
            if (answer := journal.texts.get((*about, OFF))) is None:
                break
            messages.append({"role": "assistant", "content": answer.text})
    return True


def _empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
