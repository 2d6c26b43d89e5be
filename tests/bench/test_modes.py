"""duo's own ways, on the real pair: they share its contexts, and nothing of one text helps another."""

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
from duo.bench.modes import InProcess, Stage
from duo.config import ContextConfig, DraftConfig, ModelConfig, ThreadConfig
from duo.engine.pair import Pair
from duo.llama.context import Context
from duo.spec.schedule import Schedule

NEVER = threading.Event()
THREADS = ThreadConfig(1, 1, (1,), (1, 1))
MODES = ("plain", "sync", "async", "auto", "remote")
N_TOKENS = 24


@pytest.fixture(scope="module")
def ways(demo_pair: tuple[Path, Path]) -> Iterator[dict[str, Contestant]]:
    target, draft = (ModelConfig(path) for path in demo_pair)
    config = ContextConfig(128, 1, 1, n_outputs_max=17, exact=True)
    with Pair.load(target, draft) as pair, ExitStack() as stack:
        stage = Stage(pair, *pair.contexts(config, ContextConfig(128, 1, 1)), THREADS)
        found = own_ways(stage, MODES, {"auto": DraftConfig(4, 8)}, draft, stack)
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


def test_the_figures_of_a_draft(ways: dict[str, Contestant], monkeypatch: pytest.MonkeyPatch) -> None:
    stage: Stage = ways["sync"].writer._stage  # type: ignore[attr-defined]
    decode = Context.decode

    def slowly(self: Context, tokens: Sequence[int], n_rows: int = 1) -> Any:
        if self is stage.context:
            time.sleep(0.05)
        return decode(self, tokens, n_rows)

    monkeypatch.setattr(Context, "decode", slowly)  # or a draft might not pay, and not be asked
    in_turns = InProcess(stage, DraftConfig(4, 8), (Schedule.SYNC,))
    run = in_turns.write(job("Ten things to pack for a week in the mountains:\n1."), NEVER)
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
