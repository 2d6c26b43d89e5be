"""Who takes part: duo's own ways on one pair, and the programs beside it."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from duo.bench import peers
from duo.bench.contestant import PLAIN, Contestant, Job, Writer
from duo.bench.modes import InProcess
from duo.bench.remote import LoopbackDraft
from duo.bench.server_peer import ServerPeer, server_command
from duo.config import DraftConfig, ModelConfig
from duo.engine.engine import Engine
from duo.engine.slot import Drafts
from duo.llama.devices import CPU
from duo.llama.model import Model

DEFAULT_N_MAX = 3  # llama.cpp's own, where duo chooses by itself

_PLAIN_PROGRAMS = {
    "llama-completion": (peers.completion_command, peers.parse_completion),
    "llama-cli": (peers.cli_command, peers.parse_cli),
}


def found_peers() -> dict[str, Path]:
    """llama.cpp's programs on the PATH."""
    return {name: Path(path) for name in peers.PROGRAMS if (path := shutil.which(name)) is not None}


def own_ways(
    engine: Engine, modes: Sequence[str], limits: Mapping[str, DraftConfig], draft: ModelConfig | None, stack: ExitStack
) -> list[Contestant]:
    """duo's modes, each but plain with every limit (by its name: a number or auto); `stack` ends what they start."""
    found = []
    for mode in modes:
        if mode == PLAIN:
            writer = InProcess(engine, lambda _: Drafts())
            found.append(Contestant(mode, writer, _threads(engine, mode), _device(engine.slot.target)))
            continue
        for name, limit in limits.items():
            writer = InProcess(engine, _drafts(engine, mode, limit, draft, stack))
            found.append(Contestant(mode, writer, _threads(engine, mode), _devices(engine), name))
    return found


def _drafts(
    engine: Engine, mode: str, limit: DraftConfig, draft: ModelConfig | None, stack: ExitStack
) -> Callable[[threading.Event], Drafts]:
    slot = engine.slot
    if mode == "remote":
        assert draft is not None
        # On this machine both share its cores, as they do side by side.
        n_target = slot.threads.beside[0]
        threads = replace(slot.threads, target=n_target, target_batch=n_target)
        limit = replace(limit, schedule="async")
        return stack.enter_context(LoopbackDraft(engine, draft, limit, threads)).drafts
    drafts = Drafts(slot.new_draft(slot.new_policy(replace(limit, schedule=mode))))
    return lambda _: drafts


@dataclass(frozen=True, slots=True)
class Programs:
    """llama.cpp's programs that take part."""

    paths: Mapping[str, Path]
    n_max: Sequence[int]  # of those that draft: each is a run of its own
    options: Sequence[str] = ()  # for all
    draft_options: Sequence[str] = ()  # for those that draft
    may_fail: bool = False


def other_programs(programs: Programs, job: Job, engine: Engine, stack: ExitStack) -> list[Contestant]:
    """Each with the same models and threads; llama-server drafts too, if there is a draft. `stack` ends them."""
    n_target = engine.slot.threads.target
    plain = partial(
        Contestant, threads=str(n_target), devices=_peer_devices(engine.slot.target), may_fail=programs.may_fail
    )
    found = []
    for name, path in programs.paths.items():
        if name in _PLAIN_PROGRAMS:
            make, parse = _PLAIN_PROGRAMS[name]
            command = partial(make, path, threads=n_target)
            found.append(plain(name, peers.Program(name, command, parse, programs.options)))
        elif name == "llama-server" and job.draft is None:
            served = ServerPeer(name, [*server_command(path, job, n_target, 0, 0), *programs.options])
            found.append(plain(name, stack.enter_context(served)))
        elif job.draft is not None:
            found += [_taking_turns(name, path, programs, job, engine, n, stack) for n in programs.n_max]
    return found


def _taking_turns(
    name: str,
    path: Path,
    programs: Programs,
    job: Job,
    engine: Engine,
    n: int,
    stack: ExitStack,
) -> Contestant:
    """A program that drafts at most `n` candidates."""
    options = [*programs.options, *programs.draft_options]
    n_target, n_draft = engine.slot.threads.target, engine.slot.threads.draft
    threads = (n_target, n_draft[0] if len(n_draft) == 1 else n_target)  # as theirs, unless -td says so
    writer: Writer
    if name == "llama-server":
        writer = stack.enter_context(ServerPeer(name, [*server_command(path, job, *threads, n), *options]))
    else:
        command = partial(peers.speculative_command, path, threads=threads[0], draft_threads=threads[1], n_max=n)
        writer = peers.Program(name, command, peers.parse_speculative, options)
    models = [model for model in (engine.slot.target, engine.slot.draft_model) if model is not None]
    return Contestant(
        name,
        writer,
        f"{threads[0]}/{threads[1]}",
        _peer_devices(*models),
        str(n),
        may_fail=programs.may_fail,
    )


def _threads(engine: Engine, mode: str) -> str:
    """Of target and draft: `a/b` in turns, where the policy may choose, `a+b` at the same time."""
    threads = engine.slot.threads
    in_turns = f"{threads.target}/{'–'.join(map(str, threads.draft))}"
    at_once = f"{threads.beside[0]}+{threads.beside[1]}"
    by_mode = {PLAIN: str(threads.target), "sync": in_turns, "auto": f"{in_turns} or {at_once}"}
    return by_mode.get(mode, at_once)


def _devices(engine: Engine) -> str:
    return "+".join(_device(model) for model in (engine.slot.target, engine.slot.draft_model) if model is not None)


def _peer_devices(*models: Model) -> str:
    """Where there is more than the CPU a program may use it or not, and does not say."""
    places = [_device(model) for model in models]
    return "+".join(places) if set(places) == {CPU} else ""


def _device(model: Model) -> str:
    return ",".join(sorted(model.places))
