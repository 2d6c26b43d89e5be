"""The profile of a pair: what earlier runs learned with the same models, devices and options."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from duo.config import EngineConfig, ModelConfig
from duo.engine.cores import cpu_times, is_busy, other_cpu_use, usable_cores
from duo.llama.build import versions
from duo.llama.devices import list_backends, list_devices
from duo.llama.library import system_info
from duo.models.profiles import Key, KeyModel, Profile, ProfileDocument, kept_threads
from duo.speculation.policy import Policy
from duo.speculation.policy_state import PolicyState

log = logging.getLogger("duo.engine")

_ALL = "0"  # cores, in a policy's state


class PairProfile(Profile):
    """The profile of a pair, whose T(n) are also in the profile of its target, for all drafts."""

    def __init__(self, key: Key, target: Profile) -> None:
        """Raises UsageError if there is no config directory."""
        super().__init__(key)
        self._target = target

    def load(self) -> ProfileDocument:
        """See Profile. The T(n) are those of the target's profile, if it has any."""
        document = super().load()
        return _with_times(document, self._target.load()) if _shares(document) else document

    def save(self, document: ProfileDocument) -> None:
        """See Profile."""
        super().save(document)
        if _shares(document):
            self._target.save(_with_times(self._target.load(), document))


def _shares(document: ProfileDocument) -> bool:
    """Whether the target has as many threads as with other drafts."""
    threads = kept_threads(document).get("threads")
    return threads is None or threads["target"] == usable_cores()


def _policy(document: ProfileDocument) -> PolicyState | None:
    """The state of a policy in a document; None if there is none or it is damaged."""
    state = document.get("policy")
    return state if isinstance(state, dict) and Policy(1, 2).restore_kept(state) else None


def _with_times(document: ProfileDocument, other: ProfileDocument) -> ProfileDocument:
    """A document with the T(n), while no draft computes, of another one."""
    nothing, times = Policy(1, 2).state(), _policy(other)
    if times is None:
        return document
    state = _policy(document) or nothing
    costs, empty = state["costs"], nothing["costs"][_ALL]
    for n, (alone, _) in times["costs"].items():
        if alone["target_s"]:
            mine, concurrent = costs.get(n, empty)
            costs = costs | {n: [mine | {"target_s": alone["target_s"]}, concurrent]}
    return document | {"policy": state | {"costs": costs}}


def find_profile(config: EngineConfig, models: Sequence[ModelConfig]) -> Profile:
    """The profile for all that affects the cost of a decode with a target, and a draft. Raises UsageError."""
    if len(models) == 1:
        return Profile(_key(config, models))
    alone = replace(config, draft_n_threads=None, draft_cpu_range=None)
    return PairProfile(_key(config, models), Profile(_key(alone, models[:1])))


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
                split=[model.split_mode, list(model.tensor_split), model.main_gpu],
            )
            for model in models
        ),
        devices=tuple(device.description for device in list_devices()),  # the CPU among them
        cores=usable_cores(),
        llama=(versions()["llama-cpp-python"], versions()["llama.cpp"], *list_backends(), system_info()),
        options=(*threads, config.flash_attn, config.type_k, config.type_v, config.exact),
    )


@dataclass
class ProfileRecorder:
    """Watches a policy learn; once other programs disturb a text, it keeps the times that were known before."""

    policy: Policy
    n_threads: int  # the most that compute at once on the cores of this machine
    n_others: float = 0.0  # cores that other programs used when they first slowed down what was measured

    def __post_init__(self) -> None:
        self._before = self.policy.state()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Something is measured within."""
        since = cpu_times()
        if not self.n_others:
            self._before = self.policy.state()
        try:
            yield
        finally:
            n_others = other_cpu_use(since)
            if not self.n_others and is_busy(n_others, self.n_threads):
                self.n_others = n_others

    def state(self) -> PolicyState | None:
        """What to keep; None if nothing was learned. The log file says what is not kept."""
        state, before = self.policy.state(), self._before
        if not self.policy.rate:
            return None
        if not self.n_others:
            return state
        log.debug(
            "other programs used %.1f of %d cores: the times of this run are not kept", self.n_others, usable_cores()
        )
        costs = state["costs"] | {_ALL: before["costs"][_ALL]}  # those with fewer cores are kept as such
        return {**before, "acceptance": state["acceptance"], "costs": costs}
