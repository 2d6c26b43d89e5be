"""duo's own ways, on the real pair: they share one engine's contexts, and nothing of one text helps another."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from duo.bench.contestant import Contestant, Interrupted, Job
from duo.bench.lineup import own_ways
from duo.bench.modes import InProcess
from duo.config import DraftConfig, ModelConfig
from duo.engine.engine import Engine
from duo.engine.slot import Drafts
from duo.llama.context import Context
from duo.loading import load

NEVER = threading.Event()
MODES = ("plain", "sync", "async", "auto", "remote")
N_TOKENS = 24


@pytest.fixture(scope="module")
def engine(demo_pair: tuple[Path, Path]) -> Iterator[Engine]:
    target, draft = demo_pair
    with load(target, draft, n_ctx=128, exact=True, n_threads=1, draft_n_threads=1, profile=False) as engine:
        engine.call(lambda slot: slot.reserve(0, 128))
        yield engine


@pytest.fixture(scope="module")
def ways(engine: Engine, demo_pair: tuple[Path, Path]) -> Iterator[dict[str, Contestant]]:
    with ExitStack() as stack:
        found = own_ways(engine, MODES, {"auto": DraftConfig(4, 8)}, ModelConfig(demo_pair[1]), stack)
        yield {contestant.mode: contestant for contestant in found}


def job(prompt: str) -> Job:
    return Job(Path(), None, prompt, Path(), N_TOKENS, 128)


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_writes_what_plain_decoding_writes(ways: dict[str, Contestant], mode: str) -> None:
    asked = job("Ten things to pack for a week in the mountains:\n1.")
    run = ways[mode].writer.write(asked, NEVER)
    assert run.text == ways["plain"].writer.write(asked, NEVER).text
    assert run.tokens == N_TOKENS
    assert run.tokens_per_s > 0


def test_the_figures_of_a_draft(engine: Engine, ways: dict[str, Contestant], monkeypatch: pytest.MonkeyPatch) -> None:
    slot = engine.slot
    decode = Context.decode

    def slowly(self: Context, tokens: Sequence[int], n_rows: int = 1) -> Any:
        if self is slot.target_context:
            time.sleep(0.05)
        return decode(self, tokens, n_rows)

    monkeypatch.setattr(Context, "decode", slowly)  # or a draft might not pay, and not be asked
    drafts = Drafts(slot.new_draft(slot.new_policy(DraftConfig(4, 8, "sync"))))
    run = InProcess(engine, lambda _: drafts).write(job("Ten things to pack for a week in the mountains:\n1."), NEVER)
    assert run.n_verified
    assert run.n_accepted
    assert run.hidden == 0  # in turns, nothing is
    assert run.tokens_per_decode is not None
    assert run.tokens_per_decode > 1
    assert None not in (run.target_ms, run.draft_ms, run.waste, run.first_token_s, run.prompt_tokens_per_s)
    plain = ways["plain"].writer.write(job("The"), NEVER)
    assert plain.n_verified is plain.draft_ms is plain.hidden is plain.waste is None


@pytest.mark.parametrize("mode", ["plain", "sync"])
def test_a_prompt_that_was_read_before_is_read_again(ways: dict[str, Contestant], mode: str) -> None:
    asked = job("The harbour master kept two clocks, and whoever asked him for the time")
    for _ in range(2):
        metrics = ways[mode].writer.write(asked, NEVER).metrics
        assert metrics is not None
        read = sum(event.n for event in metrics.events if event.name == "prompt")
        assert read == metrics.n_prompt > 10


def test_the_draft_of_remote_is_another_process(ways: dict[str, Contestant]) -> None:
    run = ways["remote"].writer.write(job("Once upon a time there was a clock that ran backwards, and"), NEVER)
    assert run.metrics is not None
    assert run.metrics.draft_events


def test_a_text_can_be_interrupted(ways: dict[str, Contestant]) -> None:
    stop = threading.Event()
    stop.set()
    for mode in MODES:
        with pytest.raises(Interrupted):
            ways[mode].writer.write(job("The"), stop)
