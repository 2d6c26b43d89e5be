"""duo's modes, run one at a time in one engine with shared contexts."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from duo.bench.rounds import Contestant, Interrupted, Job, Run
from duo.config import DraftConfig, GenerationConfig, StopConfig
from duo.engine.engine import Engine
from duo.engine.request import Drafts
from duo.errors import DecodeError
from duo.llama.model import Model

MODES = ("plain", "off", "lookup", "sync", "async", "auto")
ALONE = ("plain", "off", "lookup")  # modes without a draft


class InProcess:
    """One of duo's modes. Learned costs and acceptance carry over from text to text, as in a profile of `duo`."""

    def __init__(self, engine: Engine, drafts: Drafts) -> None:
        self._engine, self._drafts = engine, drafts

    def write(self, job: Job, stop: threading.Event) -> Run:
        """See Writer. Starts with an empty KV cache. Raises DecodeError."""
        self._engine.call(lambda slot: slot.forget())
        config = GenerationConfig(stop=StopConfig(job.n_tokens, (), True))
        pieces: list[bytes] = []
        with self._engine.start(self._engine.tokenize(job.prompt), config, drafts=self._drafts) as stream:
            for step in stream:
                pieces.extend(step.pieces)
                if stop.is_set():
                    break
        if stop.is_set():
            raise Interrupted
        metrics = stream.request.metrics
        if metrics.draft_error is not None:
            raise DecodeError(f"the draft failed: {metrics.draft_error}")
        return Run.of(b"".join(pieces).decode("utf-8", "replace"), asdict(metrics.statistics()))


def own_modes(engine: Engine, modes: Sequence[str], limits: Mapping[str, DraftConfig]) -> list[Contestant]:
    """duo's modes, those with a draft with every limit (by name: a number or auto)."""
    slot, threads, found = engine.slot, engine.slot.threads, []
    sequential = f"{threads.target}/{'–'.join(map(str, threads.draft))}"  # – if the policy chooses
    concurrent = f"{threads.beside[0]}+{threads.beside[1]}"
    used = {"sync": sequential, "async": concurrent, "auto": f"{sequential} or {concurrent}"}
    for mode in modes:
        if mode in ALONE or slot.draft is None:
            writer = InProcess(engine, Drafts(lookup=mode in ("lookup", "auto")))
            found.append(Contestant(mode, writer, str(threads.target), devices(slot.target)))
            continue
        for name, limit in limits.items():
            draft = slot.new_draft(slot.new_policy(replace(limit, schedule=mode)))
            writer = InProcess(engine, Drafts(draft, lookup=mode == "auto"))
            found.append(Contestant(mode, writer, used[mode], devices(slot.target, slot.draft_model), name))
    return found


def devices(*models: Model | None) -> str:
    """Where the layers of these models are."""
    return "+".join(",".join(sorted(model.places)) for model in models if model is not None)
