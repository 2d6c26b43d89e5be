"""Profiles of a target and its drafts: what earlier runs learned with the same models, devices and options."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from duo.config import EngineConfig, ModelConfig
from duo.engine.cores import cpu_times, is_busy, other_cpu_use, usable_cores
from duo.llama.build import versions
from duo.llama.devices import list_backends, list_devices
from duo.llama.library import system_info
from duo.models.profiles import Key, KeyModel, Profile, ProfileDocument, TunedThreads, kept_threads
from duo.speculation.controller import Controller
from duo.speculation.draft_estimates import DraftEstimates, DraftState
from duo.speculation.target_costs import TargetState

log = logging.getLogger("duo.engine")

_ALL = "0"  # free cores, in what is kept


@dataclass(frozen=True, slots=True)
class Profiles:
    """What is stored of a target, and of each of its drafts, by name. Nothing: no profile is used."""

    drafts: Mapping[str, Profile] = field(default_factory=dict)
    # The target's, by its number of threads, if that was tuned for a draft; None: profiles are disabled.
    target_with: Callable[[int | None], Profile] | None = None

    @property
    def target(self) -> Profile | None:
        """That of the target, whose times depend on its number of threads."""
        tuned = self.threads.get("threads")
        n_tuned = tuned["target"] if tuned is not None and tuned["target"] != usable_cores() else None
        return self.target_with(n_tuned) if self.target_with is not None else None

    @property
    def threads(self) -> ProfileDocument:
        """The numbers of threads that were tuned for the target with its first draft; empty: none were."""
        found: ProfileDocument = {}
        for profile in [*self.drafts.values()][:1]:
            found = kept_threads(profile.load())
        return found

    def restore(self, controller: Controller, drafts: Sequence[DraftEstimates]) -> None:
        """Let the controller and its drafts start from what is stored."""
        target = self.target
        if target is not None and "target" in (document := target.load()):
            controller.target.restore(document["target"])
        for draft in drafts:
            if draft.name in self.drafts and "draft" in (document := self.drafts[draft.name].load()):
                draft.restore(document["draft"])

    def save(
        self, target: TargetState | None, drafts: Mapping[str, DraftState], threads: TunedThreads | None = None
    ) -> None:
        """Store what was learned; `threads`: that were tuned. Raises OSError."""
        tuned: ProfileDocument = {"threads": threads} if threads is not None else {}
        for name, state in drafts.items():
            if name in self.drafts:
                profile = self.drafts[name]
                profile.save({**profile.load(), "draft": state, **tuned})
        if target is not None and (stored := self.target) is not None:
            stored.save({"target": target})


def find_profiles(config: EngineConfig, target: ModelConfig, drafts: Mapping[str, ModelConfig]) -> Profiles:
    """The profiles for all that affects the cost of a decode with a target, and with each draft. Raises UsageError."""

    def target_with(n_threads: int | None) -> Profile:
        alone = replace(config, n_threads=n_threads or config.n_threads, draft_n_threads=None, draft_cpu_range=None)
        return Profile(_key(alone, [target]))

    return Profiles({name: Profile(_key(config, [target, draft])) for name, draft in drafts.items()}, target_with)


def _key(config: EngineConfig, models: Sequence[ModelConfig]) -> Key:
    threads = (config.n_threads, config.draft_n_threads, config.cpu_range, config.draft_cpu_range)
    return Key(
        models=tuple(
            KeyModel(
                path=str(model.path.resolve()),
                n_bytes=sum(part.stat().st_size for part in model.shards),
                n_gpu_layers=model.n_gpu_layers,
                devices=model.devices,
                servers=model.rpc_servers,
                modified_ns=[part.stat().st_mtime_ns for part in model.shards],
                split=[model.split_mode, list(model.tensor_split), model.main_gpu, *map(list, model.overrides)],
            )
            for model in models
        ),
        devices=tuple(device.description for device in list_devices()),  # the CPU among them
        cores=usable_cores(),
        llama=(versions()["llama-cpp-python"], versions()["llama.cpp"], *list_backends(), system_info()),
        options=(*threads, config.flash_attn, config.type_k, config.type_v, config.exact),
    )


class ProfileRecorder:
    """Watches a controller learn; once other programs disturb a text, it keeps the times that were known before."""

    def __init__(self, controller: Controller, drafts: Sequence[DraftEstimates], n_threads: int) -> None:
        """`n_threads`: the most that compute at once on the cores of this machine."""
        self._controller, self._n_threads = controller, n_threads
        self.n_others = 0.0  # cores that other programs used when they first slowed down what was measured
        self.follow(drafts)

    def follow(self, drafts: Sequence[DraftEstimates]) -> None:
        """From now on, these are the drafts."""
        self._drafts = drafts
        self._before = self._state()

    def _state(self) -> tuple[TargetState, dict[str, DraftState]]:
        return self._controller.target.state(), {draft.name: draft.state() for draft in self._drafts}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Something is measured within."""
        since = cpu_times()
        if not self.n_others:
            self._before = self._state()
        try:
            yield
        finally:
            n_others = other_cpu_use(since)
            if not self.n_others and is_busy(n_others, self._n_threads):
                self.n_others = n_others

    def state(self) -> tuple[TargetState | None, dict[str, DraftState]]:
        """What to keep; nothing if nothing was learned. The log file says what is not kept."""
        (target, drafts), (before, drafts_before) = self._state(), self._before
        if not self._controller.rate:
            return None, {}
        if not self.n_others:
            return target, drafts
        log.debug(
            "other programs used %.1f of %d cores: the times of this run are not kept", self.n_others, usable_cores()
        )
        # The times with fewer cores are kept as such.
        kept: TargetState = {**before, "costs": {**target["costs"], _ALL: before["costs"][_ALL]}}
        for name, state in drafts.items():
            earlier, costs = drafts_before[name], state["costs"]
            times = costs["times"] | {_ALL: earlier["costs"]["times"][_ALL]}
            beside = {**state["beside"], _ALL: earlier["beside"].get(_ALL, {})}
            drafts[name] = {
                **earlier, "acceptance": state["acceptance"], "beside": beside,
                "costs": {**earlier["costs"], "times": times},
            }  # fmt: skip
        return kept, drafts
