"""duo's own modes on tiny models: they share one engine's contexts, and no text profits from an earlier one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from duo.bench.contestant import Contestant, Interrupted, Job, Run
from duo.bench.lineup import other_programs, own_modes
from duo.config import DraftConfig
from duo.engine.engine import Engine
from duo.llama.context import Context
from duo.loading import load
from duo.spec.types import Logits
from tests.gguf_files import tiny_llama

NEVER = threading.Event()
MODES = ("plain", "sync", "async", "auto")
PROMPT = "the cat sat on the mat and the dog ran"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    model = tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf", seed=2, depth=0.02)
    with load(model, model, n_ctx=128, n_threads=1, draft_n_threads=1, profile=False) as engine:
        engine.call(lambda slot: slot.reserve(0, 128))
        yield engine


@pytest.fixture(scope="module")
def contestants(engine: Engine) -> list[Contestant]:
    limits = {"2": DraftConfig(2, 4), "auto": DraftConfig(4, 8)}
    return own_modes(engine, MODES, limits, ExitStack())


def write(contestant: Contestant, stop: threading.Event = NEVER) -> Run:
    return contestant.writer.write(Job(Path(), None, PROMPT, Path(), 24, 128), stop)


def test_each_mode_but_plain_has_every_limit(contestants: list[Contestant]) -> None:
    found = [(c.name, c.threads, c.devices) for c in contestants]
    assert found == [
        ("plain", "1", "CPU"), ("sync k=2", "1/1", "CPU+CPU"), ("sync k=auto", "1/1", "CPU+CPU"),
        ("async k=2", "1+1", "CPU+CPU"), ("async k=auto", "1+1", "CPU+CPU"),
        ("auto k=2", "1/1 or 1+1", "CPU+CPU"), ("auto k=auto", "1/1 or 1+1", "CPU+CPU"),
    ]  # fmt: skip


def test_every_mode_writes_what_plain_decoding_writes(contestants: list[Contestant]) -> None:
    runs = [write(contestant) for contestant in contestants]
    assert {run.text for run in runs} == {runs[0].text}
    assert {run.tokens for run in runs} == {24}
    assert all(run.tokens_per_s > 0 for run in runs)


def test_the_figures_of_a_draft(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    target, decode = engine.slot.target_context, Context.decode

    def slowly(self: Context, tokens: Sequence[int], n_rows: int = 1) -> Logits:
        """The sleep simulates the decode of a large model: the policy measures its duration."""
        if self is target:
            time.sleep(0.003)
        return decode(self, tokens, n_rows)

    monkeypatch.setattr(Context, "decode", slowly)  # or the draft might not pay, and not be used
    plain, sync = map(write, own_modes(engine, ["plain", "sync"], {"auto": DraftConfig(4, 8)}, ExitStack()))
    assert sync.n_verified
    assert sync.n_accepted
    assert sync.hidden == 0, "nothing is, sequentially"
    assert (sync.tokens_per_decode or 0) > 1
    assert None not in (sync.target_ms, sync.draft_ms, sync.waste, sync.first_token_s, sync.prompt_tokens_per_s)
    assert plain.n_verified is plain.draft_ms is plain.hidden is plain.waste is None


def test_the_prompt_is_processed_anew_for_each_text(contestants: list[Contestant]) -> None:
    for contestant in contestants[:2]:
        for _ in range(2):
            metrics = write(contestant).metrics
            assert metrics is not None
            assert sum(event.n for event in metrics.events if event.name == "prompt") == metrics.n_prompt > 10


def test_a_text_can_be_interrupted(contestants: list[Contestant]) -> None:
    stop = threading.Event()
    stop.set()
    for contestant in contestants:
        with pytest.raises(Interrupted):
            write(contestant, stop)


def test_the_programs_that_can_draft_do_so_with_every_limit(engine: Engine) -> None:
    paths = {name: Path(name) for name in ("llama-completion", "llama-speculative-simple", "llama-server")}
    job = Job(Path("target.gguf"), Path("draft.gguf"), PROMPT, Path(), 24, 128)
    found = other_programs(paths, [2, 3], job, engine, ExitStack(), may_fail=True)
    drafting = [(f"{name} k={k}", "1/1", "CPU+CPU") for name in list(paths)[1:] for k in (2, 3)]
    assert [(c.name, c.threads, c.devices) for c in found] == [("llama-completion", "1", "CPU"), *drafting]
