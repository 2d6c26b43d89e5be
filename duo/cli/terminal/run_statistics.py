"""All that is known about a run at its end: what is reported, and the document of --json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from duo.config import GenerationConfig, ThreadConfig
from duo.engine.cores import follows_cores
from duo.engine.slot import Slot
from duo.engine.statistics import Statistics
from duo.llama import library
from duo.llama.build import versions
from duo.llama.devices import list_devices
from duo.llama.memory import peak_bytes
from duo.llama.model import Model
from duo.spec.policy import Policy
from duo.spec.policy_statistics import PolicyStatistics


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens were chosen; mode: greedy, coupled or rejection."""

    temperature: float
    seed: int
    mode: str


@dataclass(frozen=True, slots=True)
class CoreCounts:
    """Cores for the threads of the models: all, now, and the fewest that other programs have left."""

    all: int
    now: int
    fewest: int


@dataclass(frozen=True, slots=True)
class RunStatistics:
    """The statistics of one text."""

    text: Statistics
    sampling: Sampling
    peak_bytes: int | None
    cores: CoreCounts
    policy: PolicyStatistics | None  # None: nothing was to be decided
    schedule: str = "auto"  # --schedule
    apart: bool = False  # the draft has hardware of its own
    n_others: float = 0.0  # cores that other programs used, if that disturbed the run
    n_threads: int | None = None  # of the target; None: they follow the free cores
    is_draft_larger: bool = False  # than the target

    @classmethod
    def of(
        cls, slot: Slot, text: Statistics, config: GenerationConfig, policy: Policy | None, schedule: str
    ) -> RunStatistics:
        """Those of a text that `slot` has just written."""
        cores = slot.cores
        return cls(
            text,
            Sampling(config.sampling.temp, config.sampling.seed, config.mode),
            peak_bytes(),
            CoreCounts(cores.n_cores, cores.limit or cores.n_cores, cores.fewest),
            policy.statistics() if policy is not None else None,
            schedule,
            apart=slot.threads.apart or slot.remote is not None,
            n_others=slot.recorder.n_others,
            n_threads=None if follows_cores(slot.config) else slot.threads.target,
            is_draft_larger=slot.draft_model is not None and slot.draft_model.n_bytes > slot.target.n_bytes,
        )

    def write_json(self, path: Path, facts: Facts) -> None:
        """Write the document of --json. Raises OSError."""
        more = {"memory": {"peak_bytes": self.peak_bytes}, "sampling": self.sampling, "cores": self.cores}
        write_json(path, self.text, more, {"policy": self.policy} if self.policy is not None else {}, facts)

    @property
    def has_draft(self) -> bool:
        """Whether there was a draft to choose."""
        return self.policy is not None and self.policy.has_draft


@dataclass(frozen=True, slots=True)
class _ModelFacts:
    path: Path
    description: str
    bytes: int
    params: int
    layers: int
    quantisation: str
    vocabulary: int
    trained_context: int

    @classmethod
    def of(cls, model: Model) -> _ModelFacts:
        return cls(
            model.path, model.description, model.n_bytes, model.n_params, model.n_layer, model.quantisation,
            model.n_vocab, model.n_ctx_train,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _DeviceFacts:
    name: str
    description: str
    kind: str
    memory_free: int
    memory_total: int


@dataclass(frozen=True, slots=True)
class Facts:
    """Where and with what a text was generated."""

    versions: dict[str, str]
    system: str
    devices: list[_DeviceFacts]
    models: Mapping[str, _ModelFacts | None]
    threads: ThreadConfig
    context: int
    options: object  # a dataclass

    @classmethod
    def of(cls, slot: Slot, options: object) -> Facts:
        """Those of now."""
        models = {"target": slot.target, "draft": slot.draft_model}
        return cls(
            versions(),
            library.system_info(),
            [_DeviceFacts(each.name, each.description, each.kind, *each.memory) for each in list_devices()],
            {name: _ModelFacts.of(model) if model is not None else None for name, model in models.items()},
            slot.threads,
            slot.n_ctx,
            options,
        )


def write_json(path: Path, *parts: object) -> None:
    """Write dataclasses and dicts (None: nothing) as one JSON object. Raises OSError."""
    document: dict[str, object] = {}
    for part in filter(None, parts):
        document |= msgspec.to_builtins(part, enc_hook=str, order="deterministic")
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
