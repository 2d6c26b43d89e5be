"""Emulation: engines whose models take as long as a pair of a machine file."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from benchmarks import servers
from benchmarks.contestants import Setup, patched
from benchmarks.emulated import Account, Devices, DeviceTimes, Emulated
from benchmarks.process import Child
from benchmarks.runner import note
from duo.bench.contestants import write_here
from duo.bench.rounds import Contestant, Job, Run
from duo.config import DraftConfig
from duo.diagnose.prospects import Pair
from duo.engine.contexts import time_draft
from duo.engine.decoder import Decoder
from duo.engine.engine import Engine
from duo.engine.generation import Proposers
from duo.engine.kv_store import Cache
from duo.engine.model_pair import ModelPair
from duo.errors import DecodeError
from duo.remote.drafts import RemoteDrafts
from duo.remote.worker import DraftWorker
from duo.speculation.controller import Controller
from duo.speculation.draft_estimates import estimates_for

_TARGET_SEED, _DRAFT_SEED = 1, 2  # of the noise
_N_JUDGED = 50  # decodes of a draft in another process that are judged together
_N_TIMED, _N_READ = 5, 256  # decodes of each size that are measured first, and tokens before them
_MARGIN = 1.3  # for decodes that take longer than those, and emulated ones that are short because of their noise
_LEAST_S = 0.05  # of a token of the target alone: duo's own time, which is not slowed down, is about 1 ms of that
_N_TRIES = 3  # to write a text before other programs disturb it


@dataclass(frozen=True, slots=True)
class Emulation:
    """Devices that are emulated, slower than they are, so that real decodes are in time."""

    pair: Pair
    account: Account  # which has the factor

    @property
    def is_far(self) -> bool:
        """Whether there is a link between target and draft."""
        return self.pair.machine.latency_s > 0

    def facts(self) -> dict[str, Any]:
        """For the results, as JSON types; times in ms, as they are on the devices."""
        pair, machine = self.pair, self.pair.machine
        return {
            "machine": pair.machine_name, "pair": pair.name, "slow_down": self.account.slow_down,
            "target_ms": [round(1000 * each, 3) for each in machine.target_s],
            "draft_ms": [round(1000 * each, 3) for each in pair.draft_alone_s],  # by sequences
            "noise": machine.noise, "delay_ms": round(500 * machine.latency_s, 3), "source": pair.source,
            "assumed": list(pair.assumed),
        }  # fmt: skip

    def draft_times(self, round_trip_s: float = 0.0) -> DeviceTimes:
        """Of the draft, in this process or in another one, which knows nothing of this target."""
        pair, machine = self.pair, self.pair.machine
        alone_s, concurrent_s = tuple(pair.draft_alone_s), tuple(machine.branch_s)
        return DeviceTimes(alone_s, concurrent_s, machine.read_s, machine.noise, machine.aborts, round_trip_s)

    def choose(self, slot: ModelPair, least: float = 0.0) -> None:
        """Set the factor, `least` or more: decodes of both models at once shall be in time. Before install()."""
        assert slot.target_cache is not None
        assert slot.draft_cache is not None
        target, draft, machine = slot.target_cache.context, slot.draft_cache.context, self.pair.machine
        sizes = [(n, 1, seconds) for n, seconds in enumerate(machine.target_s, 1)]
        own = [(1, n, seconds) for n, seconds in enumerate(self.pair.draft_alone_s[: draft.n_branches + 1], 1)]
        own.append((2, 1, machine.draft_s + machine.read_s))
        has_ended = threading.Event()
        with ThreadPoolExecutor(1) as beside:
            found = beside.submit(_slowest, draft, own, has_ended.is_set)
            try:
                slowest = _slowest(target, sizes, lambda: True)
            finally:
                has_ended.set()
            needed = _MARGIN * max(slowest, found.result())
        self.account.slow_down = max(least, math.ceil(100 * max(needed, _LEAST_S / machine.target_s[0])) / 100)

    def install(self, slot: ModelPair) -> None:
        """Replace the contexts of `slot`, which must have been made, and its threads. On the engine's thread."""
        pair, machine = self.pair, self.pair.machine
        slot.threads = replace(slot.threads, separate_devices=pair.separate_devices)
        devices = Devices()
        assert slot.target_cache is not None
        assert slot.draft_cache is not None
        times = DeviceTimes(tuple(machine.target_s), tuple(machine.concurrent_target_s), noise=machine.noise)
        slot.target_cache = Cache(Emulated(slot.target_cache.context, times, self.account, devices, _TARGET_SEED))
        times = self.draft_times(machine.latency_s)
        draft = Emulated(slot.draft_cache.context, times, self.account, devices, _DRAFT_SEED)
        slot.draft_cache = Cache(draft)
        self.account.on_step = draft.begin_turn

    def with_draft(self, slot: ModelPair, drafting: DraftConfig, kind: type[Controller] = Controller) -> Proposers:
        """The draft, of which is known what a warm-up measures. On the engine's thread, after install()."""
        assert slot.draft_cache is not None
        assert slot.draft_model is not None
        assert slot.estimates is not None
        context, threads, controller = slot.draft_cache.context, slot.threads, kind()
        estimates = estimates_for(
            controller.target, drafting if context.n_branches else replace(drafting, branches=0), threads.draft,
            separate_devices=self.pair.separate_devices, aborts=self.pair.machine.aborts,
            n_depths=slot.estimates.n_depths,
        )  # fmt: skip
        time_draft(context, slot.draft_model, threads, estimates)
        self.account.times.clear()
        return Proposers(controller, [slot.new_draft(estimates)])

    def far(
        self, modes: Mapping[str, int | None], engine: Engine, setup: Setup, port: int, stack: ExitStack
    ) -> list[Contestant]:
        """Those whose draft is in another process, behind a link with the delay; it connects to `port`.

        `modes`: by name, how many outcomes the draft prepares (None: as many as pay). If decodes took too long there,
        that process has ended: another one starts, and the text is written again.
        """
        remote = engine.slot.remote
        assert isinstance(remote, RemoteDrafts)
        drafting = replace(engine.slot.drafting, schedule="async")
        remote.drafting = drafting
        to = stack.enter_context(servers.Relay(port, self.account.slow_down * self.pair.machine.latency_s / 2)).port
        code = (
            "from benchmarks.emulation import DeviceTimes, emulate_drafts\n"
            f"emulate_drafts({self.draft_times()!r}, {self.account.slow_down!r})"
        )

        def started() -> Child:
            before = remote.connected
            process = stack.enter_context(servers.back(setup, to, patched(code)))
            servers.wait_until(lambda: any(draft not in before for draft in remote.connected[:1]), process)
            return process

        process = started()

        def write(branches: int | None, job: Job, stop: threading.Event) -> Run:
            nonlocal process
            remote.drafting = replace(drafting, branches=branches)
            for _ in range(_N_TRIES):
                if process.status is not None:
                    note(f"once more, because the remote draft failed: {process.stderr.strip()}")
                    process = started()
                for draft in remote.connected:
                    draft.estimates.branches = branches
                run = self.write(engine, Proposers(engine.slot.controller, remote=remote), job, stop)
                if process.status is None:
                    return run
            raise DecodeError(f"the remote draft failed: {process.stderr.strip()}")

        return [Contestant(mode, partial(write, branches), n_max="auto") for mode, branches in modes.items()]

    def write(self, engine: Engine, sources: Proposers, job: Job, stop: threading.Event) -> Run:
        """A text, with the figures of the devices. Raises DecodeError if decodes took too long in each of several."""
        for n_left in reversed(range(_N_TRIES)):
            run = write_here(engine, sources, job, stop)
            try:
                self.account.close()
                break
            except DecodeError as error:
                if not n_left:
                    raise
                note(f"once more, because {error}")
        figures = dict(run.figures)
        for name in ("target_ms_per_decode", "draft_ms_per_token"):
            if (value := figures[name]) is not None:
                figures[name] = value / self.account.slow_down
        for name in ("prompt_tokens_per_s", "first_token_s"):  # prefill is not emulated
            del figures[name]
        return replace(run, tokens_per_s=run.tokens_per_s * self.account.slow_down, figures=figures)


def _slowest(context: Decoder, decodes: Sequence[tuple[int, int, float]], may_end: Callable[[], bool]) -> float:
    """The largest ratio of real to emulated seconds of `decodes`: (tokens, sequences, emulated seconds).

    Each is repeated until `may_end`; one in three may be slower, by chance.
    """
    context.decode(_N_READ * [0])
    ratios: list[list[float]] = [[] for _ in decodes]
    while len(ratios[0]) < _N_TIMED or not may_end():
        for (n_tokens, n_sequences, emulated_s), found in zip(decodes, ratios, strict=True):
            branches = range(1, n_sequences)
            for sequence in branches:
                context.branch(sequence, _N_READ)
            start = time.perf_counter()
            if branches:
                context.decode_each([(sequence, 0) for sequence in range(n_sequences)])
            else:
                context.decode(n_tokens * [0], n_tokens)
            found.append((time.perf_counter() - start) / emulated_s)
            for sequence in branches:
                context.drop(sequence)
            context.rollback(_N_READ)
    context.rollback(0)
    return max(sorted(found)[2 * len(found) // 3] for found in ratios)


def emulate_drafts(device: DeviceTimes, slow_down: float) -> None:
    """In the process of a draft: its contexts take these times from now on."""
    begin = DraftWorker.__init__

    def emulating(self: DraftWorker, url: Any, hello: Any, context: Any, *more: Any, **by_name: Any) -> None:
        begin(self, url, hello, lambda n: Emulated(context(n), device, _Strict(slow_down)), *more, **by_name)
        self.aborts = device.aborts

    DraftWorker.__init__ = emulating  # type: ignore[assignment, method-assign]


class _Strict(Account):
    """Ends the process if decodes take longer than on the emulated device."""

    def add(self, real_s: float, emulated_s: float) -> None:
        super().add(real_s, emulated_s)
        if len(self.times) >= _N_JUDGED:
            try:
                self.close()
            except DecodeError as error:
                print(error, file=sys.stderr, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
