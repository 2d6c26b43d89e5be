"""What decoding without drafts costs over llama.cpp: a bare loop, duo in this process, duo's command, llama-completion.

Everything here counts the time from the first token to the last, with sampling and output.
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest.mock import patch

import llama_cpp
import numpy as np

import duo
from benchmarks.contestants import ALONE, N_CTX, Setup
from benchmarks.contestants import duo as command
from benchmarks.measure import Bar
from duo.bench.contestant import Contestant, Job, ParseError, Run, Writer
from duo.bench.peers import Program
from duo.bench.process import Cost
from duo.bench.results import Figure
from duo.engine.cores import usable_cores
from duo.engine.engine import Engine

LOOP, PROGRAM = "bare loop", "llama-completion"
ENGINES = ("engine", "engine, schedule off")
COMMANDS = ("duo", "duo, schedule off")
_LINGER_S = 0.2  # after which the engine's thread has ended, and its OpenMP team with it
_N_UBATCH = 512  # duo's default
_LOOK_S = 0.3
_DISTURBANCE_S = 0.06  # of processor time of other programs during a text of about a second
TRIES = 10
_MOST_LOOKS = 300


@dataclass(frozen=True, slots=True)
class TimedRun(Run):
    """A run in this process, whose steps were timed."""

    python_us: float | None = None  # processor time of the target's thread between two calls of llama_decode, mean
    between_us: float | None = None  # the same as wall time


def python_us(run: Run) -> float | None:
    """Microseconds of Python per step on the target's thread."""
    return run.python_us if isinstance(run, TimedRun) else None


def _between_us(run: Run) -> float | None:
    return run.between_us if isinstance(run, TimedRun) else None


FIGURES: dict[str, Figure] = {
    "Python µs": python_us,
    "between decodes µs": _between_us,
    "startup s": attrgetter("startup_s"),
}


def contestants(setup: Setup) -> list[Contestant]:
    """Greedy texts of one target with all threads; the first three in this process, one at a time."""
    off = {"n_ctx": N_CTX, "schedule": "off", "profile": False}
    engines: list[Engine] = [
        setup.stack.enter_context(duo.load(setup.target, **off)),  # type: ignore[arg-type]
        setup.stack.enter_context(duo.load(setup.target, setup.draft, **off)),  # type: ignore[arg-type]
    ]
    loop = setup.stack.enter_context(_loop(setup, engines[0].slot.target.end_tokens()))
    found = [
        Contestant(LOOP, loop),
        *(Contestant(name, InProcess(engine)) for name, engine in zip(ENGINES, engines, strict=True)),
        command(setup, COMMANDS[0], ALONE),
        command(setup, COMMANDS[1], "-md {draft} --schedule off"),
        Contestant(PROGRAM, Completion(PROGRAM, setup.peers / PROGRAM, usable_cores())),
    ]
    return [replace(contestant, writer=Undisturbed(contestant.writer)) for contestant in found]


def bars(_: Setup) -> list[Bar]:
    """Those of the project, for the target alone and with `--schedule off`."""
    return [
        *(Bar(name, LOOP, 0.98) for name in reversed(ENGINES)),
        *(Bar(name, PROGRAM, 0.98) for name in reversed(COMMANDS)),
        *(Bar(name, most=100, figure=python_us, what="µs of Python per step") for name in reversed(ENGINES)),
    ]


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """Waits until the machine is idle, and repeats a text while which other programs computed, up to TRIES times."""

    writer: Writer

    def write(self, job: Job, stop: threading.Event) -> Run:
        for _ in range(TRIES):
            _wait_until_idle()
            before = others_s()
            run = self.writer.write(job, stop)
            if others_s() - before <= _DISTURBANCE_S:
                break
        return run


def _wait_until_idle() -> None:
    for _ in range(_MOST_LOOKS):
        before = others_s()
        time.sleep(_LOOK_S)
        if others_s() - before <= _DISTURBANCE_S / 2:
            return


def others_s() -> float:
    """Processor seconds of all other programs, children that run included, since the machine was started.

    In steps of 10 ms; 0 without /proc.
    """
    try:
        numbers = Path("/proc/stat").read_text(encoding="ascii").split("\n")[0].split()[1:8]
    except OSError:
        return 0.0
    user, nice, system, _idle, _wait, *interrupts = map(int, numbers)
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK") - sum(os.times()[:4])


class _Clock:
    """Replaces llama_decode, and notes the wall and processor time of the calling thread before and after each call."""

    def __init__(self) -> None:
        self._decode = llama_cpp.llama_decode
        self.calls: list[tuple[float, float, float, float]] = []

    def __call__(self, context: Any, batch: Any) -> Any:
        before = time.thread_time(), time.perf_counter()
        status = self._decode(context, batch)
        self.calls.append((*before, time.thread_time(), time.perf_counter()))
        return status

    def between_us(self, n_steps: int) -> tuple[float, float]:
        """Mean processor and wall time in µs between the last `n_steps` calls."""
        pairs = list(pairwise(self.calls[-n_steps:]))
        processor, wall = (1e6 * fmean(after[i] - before[i + 2] for before, after in pairs) for i in range(2))
        return processor, wall


@dataclass(frozen=True, slots=True)
class InProcess:
    """An engine whose steps the main thread iterates over."""

    engine: Engine

    def write(self, job: Job, stop: threading.Event) -> Run:  # noqa: ARG002 - a Writer
        self.engine.call(lambda slot: slot.forget())
        with patch.object(llama_cpp, "llama_decode", _Clock()) as clock:
            stream = self.engine.stream(job.prompt, max_tokens=job.n_tokens, ignore_eos=True)
            text = b"".join(piece for step in stream for piece in step.pieces)
        time.sleep(_LINGER_S)
        run = Run.of(text.decode("utf-8", "replace"), asdict(stream.statistics))
        return _timed(run, clock, job)


@dataclass(frozen=True, slots=True)
class Loop:
    """llama_decode and arg-max, on a thread of its own."""

    context: Any
    vocab: Any
    banned: list[int]

    def write(self, job: Job, stop: threading.Event) -> Run:  # noqa: ARG002 - a Writer
        with patch.object(llama_cpp, "llama_decode", _Clock()) as clock, ThreadPoolExecutor(1) as thread:
            return _timed(thread.submit(self._write, job).result(), clock, job)

    def _write(self, job: Job) -> Run:
        prompt = self._tokenize(job.prompt)
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), False)
        self._decode(prompt)
        tokens = [self._best()]
        start = time.perf_counter()
        for _ in range(job.n_tokens - 1):
            self._decode(tokens[-1:])
            tokens.append(self._best())
        seconds = time.perf_counter() - start
        text = b"".join(map(self._piece, tokens)).decode("utf-8", "replace")
        return Run(job.n_tokens, (job.n_tokens - 1) / seconds, text.strip("\n"))

    def _decode(self, tokens: list[int]) -> None:
        array = (llama_cpp.llama_token * len(tokens))(*tokens)
        if llama_cpp.llama_decode(self.context, llama_cpp.llama_batch_get_one(array, len(tokens))):
            raise ParseError("the bare loop cannot decode")

    def _best(self) -> int:
        logits = llama_cpp.llama_get_logits_ith(self.context, -1)
        row = np.ctypeslib.as_array(logits, (llama_cpp.llama_vocab_n_tokens(self.vocab),))
        row[self.banned] = -np.inf
        return int(row.argmax())

    def _tokenize(self, text: str) -> list[int]:
        data = text.encode()
        tokens = (llama_cpp.llama_token * (len(data) + 2))()
        n = llama_cpp.llama_tokenize(self.vocab, data, len(data), tokens, len(tokens), True, True)
        return list(tokens[:n])

    def _piece(self, token: int) -> bytes:
        buffer = ctypes.create_string_buffer(256)
        n = llama_cpp.llama_token_to_piece(self.vocab, token, buffer, len(buffer), 0, False)
        return buffer.raw[:n]


@contextmanager
def _loop(setup: Setup, banned: list[int]) -> Iterator[Loop]:
    """The bare loop, with the parameters of duo's context."""
    model = llama_cpp.llama_model_load_from_file(str(setup.target).encode(), llama_cpp.llama_model_default_params())
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = N_CTX, _N_UBATCH, _N_UBATCH
    params.n_threads = params.n_threads_batch = usable_cores()
    context = llama_cpp.llama_init_from_model(model, params)
    try:
        yield Loop(context, llama_cpp.llama_model_get_vocab(model), banned)
    finally:
        llama_cpp.llama_free(context)
        llama_cpp.llama_model_free(model)


@dataclass(frozen=True, slots=True)
class Completion(Program):
    """llama-completion, with sampling and printing: its total time less that of the prompt."""

    def parse(self, job: Job, cost: Cost) -> Run:
        """See Program."""
        found = Program.parse(self, job, cost)
        times = dict(re.findall(r"(prompt eval|total) time = +([\d.]+) ms", cost.stderr))
        seconds = (float(times["total"]) - float(times["prompt eval"])) / 1000
        startup_s = cost.wall_s - seconds
        return replace(found, tokens_per_s=((found.tokens or job.n_tokens) - 1) / seconds, startup_s=startup_s)


def _timed(run: Run, clock: _Clock, job: Job) -> TimedRun:
    processor, wall = clock.between_us(job.n_tokens)
    fields = {name: getattr(run, name) for name in Run.__slots__}
    return TimedRun(**fields, python_us=processor, between_us=wall)
