"""Above temperature 0, on the demo pair: the same text with a draft and without, and tokens as often as they should."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from duo.config import EngineConfig, GenerationConfig, ModelConfig, SamplingConfig, StopConfig
from duo.diagnose.check import Checker
from duo.engine.engine import Engine
from duo.engine.slot import Slot
from duo.llama.model import Model
from duo.spec.sampling import Chain
from duo.spec.schedule import Schedule
from tests.drawing import draw
from tests.fakes import Eager
from tests.prompts import PROMPTS

N_TOKENS = 16
MAY_END = "<|im_start|>user\nWhat is 1+1?<|im_end|>\n<|im_start|>assistant\n1+1 is 2."
SHORT = ["chat", "code", "json", "story", "list", "question and answer", "german", "html", "c code", "emoji"]


@pytest.fixture(scope="module")
def models(demo_pair: tuple[Path, Path]) -> Iterator[tuple[Model, Model]]:
    target, draft = (Model(ModelConfig(path)) for path in demo_pair)
    yield target, draft
    target.close()
    draft.close()


@pytest.fixture
def engine(models: tuple[Model, Model], request: pytest.FixtureRequest) -> Iterator[Engine]:
    """The demo pair, with exact decodes if the parameter says so, on one thread each."""
    config = EngineConfig(n_ctx=512, n_threads=1, draft_n_threads=1, draft_n_max=6, exact=request.param)
    with Engine(Slot(*models, config)) as made:
        made.call(lambda slot: slot.reserve(1, -1))
        yield made


@pytest.mark.parametrize("engine", [True], indirect=True, ids=["exact"])
@pytest.mark.parametrize("temperature", [0.3, 0.8, 1.2])
def test_a_seed_gives_the_same_text_with_and_without_a_draft(engine: Engine, temperature: float) -> None:
    config = GenerationConfig(SamplingConfig(temp=temperature), StopConfig(N_TOKENS))
    checker = Checker(engine, config, threading.Event())
    texts, accepted = [], 0
    for name, seed in product(SHORT, (1, 2, 3)):
        found = checker.compare(engine.tokenize(PROMPTS[name]), seed, Eager(6, 12, Schedule.SYNC))
        texts.append((name, seed, found.difference))
        accepted += found.n_accepted
    assert [text for text in texts if text[2] is not None] == []
    assert accepted > 50, "the draft has guessed many of them"


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("engine", [False], indirect=True, ids=["not exact"])
@pytest.mark.parametrize(
    ("verify", "text", "n"),
    [("coupled", PROMPTS["story"], 2000), ("rejection", PROMPTS["story"], 2000), ("rejection", MAY_END, 600)],
    ids=["coupled", "rejection", "rejection, where the text may end"],
)
def test_a_token_beside_a_candidate_comes_as_often_as_the_model_says(
    engine: Engine, verify: str, text: str, n: int
) -> None:
    # One of the two over all of the vocabulary, which takes longer.
    sampling = SamplingConfig(temp=0.9)
    if verify == "rejection":
        sampling = replace(sampling, top_k=0, top_p=1.0, min_p=0.0)
    chain = Chain(sampling)
    config = GenerationConfig(sampling, verify=verify)
    drawn = draw(engine, config, engine.tokenize(text), range(n), lambda row: chain.distribution(row, ()))
    assert drawn.n_verified == n
    assert 0.1 * n < drawn.n_accepted < 0.975 * n, "both happen often"
    assert drawn.variation < drawn.bound
    assert drawn.p_value > 1e-6
    assert text is not MAY_END or any(map(engine.slot.target.is_end, drawn.counts))
    assert np.isclose(drawn.expected.probabilities.sum(), 1)
