"""duo's modes on tiny models and emulated devices: real texts, other devices' times."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from duo.bench.contestant import Contestant, Job, Run
from duo.bench.emulation import Emulation
from duo.bench.lineup import own_modes
from duo.bench.machines import Pair, read_machine
from duo.bench.modes import InProcess
from duo.config import DraftConfig
from duo.engine.emulated import Account, Emulated
from duo.engine.engine import Engine
from duo.errors import DecodeError
from duo.loading import load
from duo.spec.policy import Policy
from tests.gguf_files import tiny_llama

CARD: dict[str, Any] = {"target_ms": {"1": 4, "8": 6}, "draft_ms": {"1": 1, "9": 1.2}, "apart": True, "aborts": False}
LIMIT = {"4": DraftConfig(4, 8)}
N_TOKENS = 16


def pair(folder: Path, **fields: Any) -> Pair:
    path = folder / "machine.json"
    path.write_text(json.dumps({"name": "a machine", "pairs": {"card": CARD | fields}}))
    return read_machine(path)["card"]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setattr(Account, "late", lambda *_: 0.0)  # whatever else this machine does
    model = tiny_llama(tmp_path / "tiny.gguf", seed=2, depth=0.02)
    with load(model, model, n_ctx=128, n_threads=1, draft_n_threads=1, profile=False) as engine:
        engine.call(lambda slot: slot.reserve(0, 128))
        yield engine


def write(contestant: Contestant, prompt: str = "the cat sat on the mat and the dog ran away from it") -> Run:
    job = Job(Path(), None, prompt, Path(), N_TOKENS, 128)
    return contestant.writer.write(job, threading.Event())


def policy(contestant: Contestant) -> Policy:
    assert isinstance(contestant.writer, InProcess)
    draft = contestant.writer._drafts(threading.Event()).local
    assert draft is not None
    assert draft.policy is not None
    return draft.policy


def test_every_mode_writes_the_same_text_as_fast_as_its_devices(engine: Engine, tmp_path: Path) -> None:
    emulation = Emulation(pair(tmp_path), 2.0)
    modes = ("plain", "sync", "async", "prepared", "auto")
    runs = dict(zip(modes, map(write, own_modes(engine, modes, LIMIT, ExitStack(), emulation)), strict=True))
    assert len({run.text for run in runs.values()}) == 1
    plain = runs["plain"]
    assert plain.target_ms is not None
    assert plain.target_ms >= 4, "as on the device, not as slowed down"
    for run in runs.values():
        assert run.prompt_tokens_per_s is run.first_token_s is None, "prefill is not emulated"
        assert (run.own_us or 0) > 0
    assert (runs["sync"].draft_ms or 0) >= 1
    assert runs["sync"].n_verified


def test_a_policy_knows_the_emulated_draft_and_no_more(engine: Engine, tmp_path: Path) -> None:
    emulation = Emulation(pair(tmp_path), 3.0)
    _, both, prepared = own_modes(engine, ("sync", "async", "prepared"), LIMIT, ExitStack(), emulation)
    for each, branches in ((both, 0), (prepared, None)):
        found = policy(each)
        assert found.alone.draft_s >= 0.003
        assert not found.alone.target_s(1)
        assert found.branches == branches
        assert found.knows_draft(1, 5)
        assert engine.slot.threads.apart


def test_contexts_are_replaced_once(engine: Engine, tmp_path: Path) -> None:
    emulation = Emulation(pair(tmp_path), 1.0)
    own_modes(engine, ("plain",), LIMIT, ExitStack(), emulation)
    assert engine.slot.target_cache is not None
    first = engine.slot.target_cache.context
    assert isinstance(first, Emulated)
    own_modes(engine, ("sync",), LIMIT, ExitStack(), emulation)
    assert engine.slot.target_cache.context is first


def test_plain_decoding_is_measured_once_per_prompt(engine: Engine, tmp_path: Path) -> None:
    plain, sync = own_modes(engine, ("plain", "sync"), LIMIT, ExitStack(), Emulation(pair(tmp_path), 1.0))
    assert write(plain) is write(plain)
    assert write(plain) is not write(plain, "another prompt that is long enough for all")
    assert write(sync) is not write(sync)


def test_devices_that_are_too_fast_for_this_machine_are_refused(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    fast = pair(tmp_path, target_ms={"1": 1e-4}, draft_ms=1e-4)
    plain, sync = own_modes(engine, ("plain", "sync"), LIMIT, ExitStack(), Emulation(fast, 1.5))
    for each in (plain, sync):
        with pytest.raises(DecodeError, match=r"decodes took longer .* factor of \S+ or more, not 1\.5$"):
            write(each)


def test_a_draft_on_another_machine(engine: Engine, tmp_path: Path) -> None:
    """Sequentially each turn costs a round trip; concurrently it is in another process, behind a relay."""
    emulation = Emulation(pair(tmp_path, delay_ms=2), 1.0)
    assert set(emulation.impossible_modes) == {"auto", "prepared"}
    with ExitStack() as stack:
        plain, sync, both = own_modes(engine, ("plain", "sync", "async"), LIMIT, stack, emulation)
        runs = [write(each) for each in (plain, sync, both)]
    assert len({run.text for run in runs}) == 1
    _, turns, concurrent = [run.metrics for run in runs]
    assert turns is not None
    assert concurrent is not None
    assert {event.lane for event in turns.draft_events} == {"draft"}
    assert {event.lane for event in concurrent.draft_events} <= {"remote draft"}


def test_models_that_share_their_hardware_have_no_remote_draft(tmp_path: Path) -> None:
    same = pair(tmp_path, apart=False, beside_target_ms={"1": 8}, beside_draft_ms=2)
    assert set(Emulation(same, 1.0).impossible_modes) == {"remote"}


def test_a_draft_process_that_failed_is_reported(tmp_path: Path) -> None:
    emulation = Emulation(pair(tmp_path), 1.0)
    emulation.failure = lambda: "it was too slow"
    with pytest.raises(DecodeError, match=r"^the remote draft failed: it was too slow$"):
        emulation.close(Run(4, 10.0, ""))


def test_figures_are_those_of_the_devices(tmp_path: Path) -> None:
    run = Run(4, 10.0, "a text", 5.0, 1.0, target_ms=100.0, draft_ms=20.0, predicted_tokens_per_s=12.0)
    assert Emulation(pair(tmp_path), 2.0).close(run) == Run(
        4, 20.0, "a text", None, None, target_ms=50.0, draft_ms=10.0, predicted_tokens_per_s=24.0
    )
