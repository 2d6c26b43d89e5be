"""The contestants on one pair: duo's own modes, and llama.cpp's programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from duo.bench.contestant import ALONE, AUTO, LOOKUP, PLAIN, PREPARED, REMOTE, Contestant, Job
from duo.bench.emulation import Emulation
from duo.bench.modes import ChooseDrafts, InProcess, LoopbackDraft, Once
from duo.bench.peers import SERVER, SPECULATIVE, Drafting, Program, program_options
from duo.bench.server_peer import ServerPeer, server_command
from duo.config import DraftConfig
from duo.engine.engine import Engine
from duo.engine.slot import Drafts
from duo.llama.build import CPU
from duo.llama.devices import gpus
from duo.llama.model import Model

DEFAULT_N_MAX = 3  # llama.cpp's default, for limits that are auto


def own_modes(
    engine: Engine,
    modes: Sequence[str],
    limits: Mapping[str, DraftConfig],
    stack: ExitStack,
    emulation: Emulation | None = None,
) -> list[Contestant]:
    """duo's modes, those with a draft with every limit (by name: a number or auto). `stack` closes their resources.

    With `emulation`, the engine's contexts are replaced by emulated ones.
    """
    slot, found = engine.slot, []
    if emulation is not None:
        engine.call(emulation.install)
    remote: LoopbackDraft | None = None
    if not set(modes).isdisjoint(_remote_modes(emulation)):
        assert slot.draft_model is not None
        largest = max(limits.values(), key=lambda limit: limit.n_max)
        remote = stack.enter_context(LoopbackDraft(engine, slot.draft_model.config, largest, emulation))
    for mode in modes:
        if mode in ALONE:
            kind = InProcess if emulation is None or mode != PLAIN else Once
            writer = kind(engine, partial(_alone, mode), emulation)
            found.append(Contestant(mode, writer, _threads(engine, mode), _devices(slot.target)))
            continue
        devices = _devices(slot.target, slot.draft_model)
        for name, limit in limits.items():
            writer = InProcess(engine, _drafts(engine, mode, limit, remote, emulation), emulation)
            found.append(Contestant(mode, writer, _threads(engine, mode), devices, name))
    return found


def _remote_modes(emulation: Emulation | None) -> tuple[str, ...]:
    """The modes whose draft is in another process: concurrent ones too if it is on another machine."""
    return (REMOTE, "async") if emulation is not None and emulation.is_far else (REMOTE,)


def _alone(mode: str, _: object) -> Drafts:
    return Drafts(lookup=mode == LOOKUP)


def _drafts(
    engine: Engine, mode: str, limit: DraftConfig, remote: LoopbackDraft | None, emulation: Emulation | None
) -> ChooseDrafts:
    if mode in _remote_modes(emulation):
        assert remote is not None
        return remote.drafts(replace(limit, schedule="async"))
    drafting = replace(limit, schedule="async" if mode == PREPARED else mode)
    if mode not in (PREPARED, AUTO):
        drafting = replace(drafting, branches=0)
    if emulation is None:
        draft = engine.slot.new_draft(engine.slot.new_policy(drafting))
    else:
        draft = engine.slot.new_draft(engine.call(lambda slot: emulation.new_policy(slot, drafting)))
    drafts = Drafts(draft, lookup=mode == AUTO)
    return lambda _: drafts


def other_programs(
    paths: Mapping[str, Path], n_max: Sequence[int], job: Job, engine: Engine, stack: ExitStack, *, may_fail: bool
) -> list[Contestant]:
    """llama.cpp's programs with the same models and threads. `stack` stops their processes.

    With a draft, programs that support drafting run once for each value of `n_max`.
    """
    slot, draft = engine.slot, engine.slot.draft_model
    n_target, n_draft = slot.threads.target, slot.threads.draft
    # A single draft thread count is passed on; otherwise the draft uses as many threads as the target.
    td = n_draft[0] if len(n_draft) == 1 else n_target
    draft_config = None if draft is None else draft.config
    more, draft_more = program_options(slot.config, slot.target.config, draft_config, has_gpus=bool(gpus()))
    drafts = draft is not None and slot.translation is None  # llama.cpp translates no longer
    ways: Sequence[Drafting | None] = [Drafting(td, n, more=draft_more) for n in n_max] if drafts else []
    found = []
    for name, path in paths.items():
        for drafting in {SERVER: ways or [None], SPECULATIVE: ways}.get(name, [None]):
            contestant = partial(
                Contestant,
                name,
                threads=str(n_target) if drafting is None else f"{n_target}/{td}",
                devices=_program_devices(slot.target, draft if drafting is not None else None),
                n_max=None if drafting is None else str(drafting.n_max),
                may_fail=may_fail,
            )
            if name == SERVER:
                server = ServerPeer(server_command(path, job, n_target, drafting, more))
                found.append(contestant(stack.enter_context(server)))
            else:
                found.append(contestant(Program(name, path, n_target, drafting, more)))
    return found


def _threads(engine: Engine, mode: str) -> str:
    """Threads of target and draft: `a/b` sequentially (`a/b–c` if the policy chooses), `a+b` concurrently."""
    threads = engine.slot.threads
    sequential = f"{threads.target}/{'–'.join(map(str, threads.draft))}"
    concurrent = f"{threads.beside[0]}+{threads.beside[1]}"
    by_mode = {mode: str(threads.target) for mode in ALONE} | {
        "sync": sequential,
        AUTO: f"{sequential} or {concurrent}",
    }
    return by_mode.get(mode, concurrent)


def _devices(*models: Model | None) -> str:
    return "+".join(",".join(sorted(model.places)) for model in models if model is not None)


def _program_devices(*models: Model | None) -> str:
    """Empty if a device other than the CPU is used: the programs do not report their devices."""
    found = _devices(*models)
    return found if set(found.split("+")) == {CPU} else ""
