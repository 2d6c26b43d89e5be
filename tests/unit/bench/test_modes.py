"""duo's own modes on tiny models: they share one engine's contexts, and no text profits from an earlier one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from duo.bench.contestants import other_programs, own_modes
from duo.bench.rounds import Interrupted, Job
from duo.config import DraftConfig
from duo.engine.engine import Engine
from duo.loading import load
from tests.gguf_files import tiny_llama

PROMPT = "the cat sat on the mat and the dog ran"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    model = tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf", seed=2, depth=0.02)
    with load(model, model, n_ctx=128, n_threads=1, draft_n_threads=1, profile=False) as engine:
        engine.call(lambda slot: slot.reserve(0, 128))
        yield engine


def test_every_mode_writes_what_plain_decoding_writes_with_figures_of_its_own(engine: Engine) -> None:
    limits = {"2": DraftConfig(2, 4), "auto": DraftConfig(4, 8)}
    contestants = own_modes(engine, ("plain", "lookup", "sync", "async", "auto"), limits)
    job, stop = Job(Path(), None, PROMPT, Path(), 24, 128), threading.Event()
    for _ in range(2):  # the prompt is processed anew each time
        runs = {contestant.name: contestant.write(job, stop) for contestant in contestants}
        assert {run.text for run in runs.values()} == {runs["plain"].text}
        assert {run.tokens for run in runs.values()} == {24}
        assert all(run.tokens_per_s and run.figures["first_token_s"] for run in runs.values())
    plain, sync = runs["plain"].figures, runs["sync k=auto"].figures
    assert plain["verified"] is plain["hidden"] is plain["draft_ms_per_token"] is None
    assert sync["hidden"] == 0, "nothing is, sequentially"
    stop.set()
    for contestant in contestants:
        with pytest.raises(Interrupted):
            contestant.write(job, stop)


def test_the_program_that_can_draft_does_so_with_every_limit(engine: Engine) -> None:
    paths = {name: Path(name) for name in ("llama-completion", "llama-speculative-simple")}
    found = other_programs(paths, [2, None, 3], engine)
    drafting = [(f"llama-speculative-simple k={k}", "1/1", "CPU+CPU") for k in (2, 3)]
    assert [(c.name, c.threads, c.devices) for c in found] == [("llama-completion", "1", "CPU"), *drafting]
    commands = [" ".join(c.write.command(Job(Path("t"), Path("d"), "", Path("p"), 4, 8))) for c in found]  # type: ignore[attr-defined]
    assert all("-fa auto -ctk f16 -ctv f16 -dev none" in command for command in commands)
    assert ["-devd none -md d" in command for command in commands] == [False, True, True]
