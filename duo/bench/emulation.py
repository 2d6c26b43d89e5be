"""Emulation: an engine whose models take as long as a pair of a machine file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from duo.bench.contestant import AUTO, PREPARED, REMOTE, Run
from duo.bench.machines import Pair
from duo.config import DraftConfig
from duo.engine.cache import Cache
from duo.engine.emulated import Account, Devices, DeviceTimes, Emulated
from duo.engine.slot import Slot, schedules_of
from duo.engine.warmup import time_branches, time_draft
from duo.errors import DecodeError
from duo.spec.policy import Policy

_TARGET_SEED, _DRAFT_SEED = 1, 2  # of the noise


@dataclass(slots=True)
class Emulation:
    """Devices that are emulated, `slow_down` times slower than they are, so that real decodes are in time."""

    pair: Pair
    slow_down: float
    account: Account = field(init=False)
    failure: Callable[[], str | None] = lambda: None  # of a draft in another process

    def __post_init__(self) -> None:
        self.account = Account(self.slow_down)

    @property
    def impossible_modes(self) -> dict[str, str]:
        """Modes that these devices cannot run, and why."""
        if self.is_far:
            return dict.fromkeys((AUTO, PREPARED), "the emulated draft is on another machine: use async")
        return {} if self.pair.apart else {REMOTE: "the emulated models share their hardware"}

    @property
    def is_far(self) -> bool:
        """Whether there is a link between target and draft."""
        return self.pair.delay_s > 0

    def facts(self) -> dict[str, Any]:
        """For the results, as JSON types; times in ms, as they are on the devices."""
        pair, machine = self.pair, self.pair.machine
        return {
            "machine": pair.machine_name,
            "pair": pair.name,
            "slow_down": self.slow_down,
            "target_ms": _in_ms(machine.target_s),
            "draft_ms": _in_ms(pair.draft_alone_s),  # by sequences
            "noise": machine.noise,
            "delay_ms": round(1000 * pair.delay_s, 3),
            "source": pair.source,
            "assumed": list(pair.assumed),
        }

    def target_times(self) -> DeviceTimes:
        """Of the target."""
        machine = self.pair.machine
        return DeviceTimes(tuple(machine.target_s), tuple(machine.beside_target_s), noise=machine.noise)

    def draft_times(self, round_trip_s: float = 0.0) -> DeviceTimes:
        """Of the draft, in this process or in another one, which knows nothing of this target."""
        pair, machine = self.pair, self.pair.machine
        return DeviceTimes(
            pair.draft_alone_s, pair.draft_beside_s, machine.read_s, machine.noise, pair.aborts, round_trip_s
        )

    def install(self, slot: Slot) -> None:
        """Replace the contexts of `slot`, which must have been made, and its threads. On the engine's thread.

        A second call does nothing.
        """
        pair = self.pair
        if slot.target_cache is not None and isinstance(slot.target_cache.context, Emulated):
            return
        slot.threads = replace(slot.threads, apart=pair.apart)
        devices = Devices()
        assert slot.target_cache is not None
        target = Emulated(slot.target_cache.context, self.target_times(), self.account, devices, _TARGET_SEED)
        slot.target_cache = Cache(target)
        if slot.draft_cache is not None:
            times = self.draft_times(2 * pair.delay_s)
            draft = Emulated(slot.draft_cache.context, times, self.account, devices, _DRAFT_SEED)
            slot.draft_cache = Cache(draft)
            self.account.on_step = draft.begin_turn

    def new_policy(self, slot: Slot, drafting: DraftConfig, kind: type[Policy] = Policy) -> Policy:
        """A policy that knows what a warm-up measures. On the engine's thread, after install()."""
        assert slot.draft_cache is not None
        assert slot.draft_model is not None
        context, threads = slot.draft_cache.context, slot.threads
        policy = kind(
            drafting.n_max,
            drafting.n_ahead,
            schedules_of(drafting),
            threads.draft,
            apart=self.pair.apart,
            branches=drafting.branches if context.n_branches else 0,
            aborts=self.pair.aborts,
        )
        time_draft(context, slot.draft_model, threads.draft, policy)
        time_branches(context, slot.draft_model, policy)
        self.account.reset()
        return policy

    def close(self, run: Run) -> Run:
        """The figures of a text on the emulated devices. Raises DecodeError if the slow-down is too small."""
        if (failure := self.failure()) is not None:
            raise DecodeError(f"the remote draft failed: {failure}")
        draft_own_us = self.account.draft_us
        own_us, factor = self.account.close(), self.slow_down
        predicted = run.predicted_tokens_per_s
        return replace(
            run,
            tokens_per_s=run.tokens_per_s * factor,
            prompt_tokens_per_s=None,  # prefill is not emulated
            first_token_s=None,
            target_ms=None if run.target_ms is None else run.target_ms / factor,
            draft_ms=None if run.draft_ms is None else run.draft_ms / factor,
            predicted_tokens_per_s=None if predicted is None else predicted * factor,
            own_us=own_us,
            draft_own_us=draft_own_us,
        )


def _in_ms(seconds: Sequence[float]) -> list[float]:
    return [round(1000 * each, 3) for each in seconds]
