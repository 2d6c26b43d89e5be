"""duo's modes, run one at a time in one engine with shared contexts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any

from duo.bench.contestant import Interrupted, Job, Run
from duo.bench.emulation import Emulation
from duo.bench.relay import Relay
from duo.config import ContextConfig, DraftConfig, GenerationConfig, ModelConfig, StopConfig
from duo.engine.draft import Draft
from duo.engine.engine import Engine
from duo.engine.slot import Drafts, Slot, schedules_of
from duo.errors import DecodeError, LinkError
from duo.link.process import DRAFT_BATCH, DraftProcess
from duo.link.remote_drafts import RemoteDrafts
from duo.spec.policy import Policy

_PATIENCE_S = 60.0  # until a remote draft has loaded and connected
_LOOK_S = 0.05

ChooseDrafts = Callable[[threading.Event], Drafts]


class InProcess:
    """One of duo's modes. Learned costs and acceptance carry over from text to text, as in a profile of `duo`."""

    def __init__(
        self, engine: Engine, drafts: ChooseDrafts = lambda _: Drafts(), emulation: Emulation | None = None
    ) -> None:
        """`drafts` waits for and returns the draft; the default is none. `emulation`: of the engine's devices."""
        self._engine = engine
        self._drafts = drafts
        self._emulation = emulation

    def write(self, job: Job, stop: threading.Event) -> Run:
        """See Writer. Starts with an empty KV cache. Raises DecodeError, LinkError."""
        drafts = self._drafts(stop)
        self._engine.call(lambda slot: slot.forget())
        config = GenerationConfig(stop=StopConfig(job.n_tokens, (), True))
        pieces: list[bytes] = []
        with self._engine.start(self._engine.tokenize(job.prompt), config, drafts=drafts) as stream:
            for step in stream:
                pieces.extend(step.pieces)
                if stop.is_set():
                    raise Interrupted
        if stop.is_set():
            raise Interrupted
        metrics = stream.request.metrics
        if metrics.draft_error is not None:
            raise DecodeError(f"the draft failed: {metrics.draft_error}")
        run = Run.of(b"".join(pieces).decode("utf-8", "replace"), asdict(metrics.statistics()), metrics)
        return run if self._emulation is None else self._emulation.close(run)

    def interrupt(self) -> None:
        """Stop the current text, also during prefill. Thread-safe."""
        self._engine.interrupt()


class Once(InProcess):
    """Plain decoding on emulated devices, which takes as long each time: one text per prompt is enough."""

    def __init__(
        self, engine: Engine, drafts: ChooseDrafts = lambda _: Drafts(), emulation: Emulation | None = None
    ) -> None:
        super().__init__(engine, drafts, emulation)
        self._runs: dict[tuple[str, int], Run] = {}

    def write(self, job: Job, stop: threading.Event) -> Run:
        """See Writer."""
        key = job.prompt, job.n_tokens
        if key not in self._runs:
            self._runs[key] = super().write(job, stop)
        return self._runs[key]


class LoopbackDraft(AbstractContextManager["LoopbackDraft"]):
    """A remote draft in a local process that connects over loopback. It starts with the first text."""

    def __init__(
        self, engine: Engine, draft: ModelConfig, largest: DraftConfig, emulation: Emulation | None = None
    ) -> None:
        """`largest` has the highest candidate limit that is passed to drafts(). Raises UsageError.

        With `emulation` the draft is emulated too, and the link has its delay.
        """
        threads = engine.slot.threads
        n_target, n_draft = threads.beside  # both processes use the cores of this machine
        self._engine = engine
        self._threads = replace(threads, target=n_target, target_batch=n_target)
        self._drafts = RemoteDrafts()
        self._drafts.limit(largest, n_target)
        context = ContextConfig(2 * largest.n_max, n_draft, n_draft, n_ubatch=DRAFT_BATCH)
        slot = engine.slot
        vocabulary = slot.target.path if slot.translation is not None else None
        self._relays = ExitStack()
        self._delay_s = 0.0 if emulation is None else emulation.slow_down * emulation.pair.delay_s
        self._process = DraftProcess(
            "the remote draft",
            draft,
            context,
            self._drafts,
            warmup=slot.config.warmup,
            vocabulary=vocabulary,
            emulated=None if emulation is None else emulation.draft_times(),
            slow_down=1.0 if emulation is None else emulation.slow_down,
            through=self._through,
        )
        if emulation is not None:
            emulation.failure = lambda: self._process.failure
        self._drafts.on_ready = self._process.start

    def _through(self, port: int) -> int:
        """The port to connect to instead, if the link has a delay."""
        return self._relays.enter_context(Relay(port, self._delay_s)).port if self._delay_s else port

    def __enter__(self) -> LoopbackDraft:
        """Listen, without starting the process."""
        self._process.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        """Stop the process, then the listener."""
        self._process.__exit__(*error)
        self._relays.close()

    def drafts(self, limit: DraftConfig) -> ChooseDrafts:
        """Waits for the draft to connect and gives it a separate policy; raises LinkError after a timeout."""
        policy = Policy(limit.n_max, limit.n_ahead, schedules_of(limit), remote=True)
        return lambda stop: self._connected(_Limited(self._drafts, policy), stop)

    def _connected(self, source: _Limited, stop: threading.Event) -> Drafts:
        def ready(slot: Slot) -> None:
            assert slot.target_context is not None
            self._drafts.ready(slot.target, slot.target_context, stop)

        if self._drafts.target is None:
            self._engine.call(ready)
        for _ in range(int(_PATIENCE_S / _LOOK_S)):
            if self._drafts.n_connected:
                return Drafts(remote=source, threads=self._threads)
            if stop.wait(_LOOK_S):
                raise Interrupted
        raise LinkError(f"the remote draft did not connect within {_PATIENCE_S:.0f} s")


@dataclass(frozen=True, slots=True)
class _Limited:
    """Remote drafts with another policy."""

    drafts: RemoteDrafts
    policy: Policy

    def limit(self, drafting: DraftConfig, n_target_threads: int) -> None: ...
    def ready(self, target: object, context: object, stop: threading.Event | None) -> None: ...

    def begin(self) -> None:
        self.drafts.begin()

    def choose(self, *, has_other: bool) -> Draft | None:
        draft = self.drafts.choose(has_other=has_other)
        if draft is not None and draft.policy is not self.policy:
            draft.policy = self.policy
        return draft
