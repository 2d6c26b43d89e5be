"""All that is known about a run at its end: what is reported, and the document of --json."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import msgspec

from duo.config import GenerationConfig, ThreadConfig
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
    is_draft_larger: bool = False  # than the target

    @classmethod
    def of(
        cls, slot: Slot, text: Statistics, config: GenerationConfig, policy: Policy | None, schedule: str
    ) -> RunStatistics:
        """Those of a text that `slot` has just written."""
        cores, draft = slot.cores, slot.draft_model
        return cls(
            text,
            Sampling(config.sampling.temp, config.sampling.seed, config.mode),
            peak_bytes(),
            CoreCounts(cores.n_cores, cores.limit or cores.n_cores, cores.fewest),
            policy.statistics() if policy is not None else None,
            schedule,
            slot.threads.apart or slot.remote is not None,
            slot.recorder.n_others,
            draft is not None and draft.n_bytes > slot.target.n_bytes,
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
class Facts:
    """Where and with what a text was generated."""

    versions: dict[str, str]
    system: str
    devices: list[dict[str, object]]
    models: dict[str, dict[str, object] | None]
    threads: ThreadConfig
    context: int
    options: object  # a dataclass

    @classmethod
    def of(cls, slot: Slot, options: object) -> Facts:
        """Those of now."""
        devices: list[dict[str, object]] = []
        for each in list_devices():
            free, total = each.memory
            about = {"name": each.name, "description": each.description, "kind": each.kind}
            devices.append(about | {"memory_free": free, "memory_total": total})
        draft = slot.draft_model
        models = {"target": _model_facts(slot.target), "draft": None if draft is None else _model_facts(draft)}
        return cls(versions(), library.system_info(), devices, models, slot.threads, slot.n_ctx, options)


def _model_facts(model: Model) -> dict[str, object]:
    return {
        "path": model.path, "description": model.description, "bytes": model.n_bytes, "params": model.n_params,
        "layers": model.n_layer, "quantisation": model.quantisation, "vocabulary": model.n_vocab,
        "trained_context": model.n_ctx_train,
    }  # fmt: skip


def write_json(path: Path, *parts: object) -> None:
    """Write dataclasses and dicts (None: nothing) as one JSON object. Raises OSError."""
    document: dict[str, object] = {}
    for part in filter(None, parts):
        document |= msgspec.to_builtins(part, enc_hook=str, order="deterministic")
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
