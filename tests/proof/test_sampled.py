"""On the demo pair, a token verified against a candidate has the distribution that the model says."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from duo.config import EngineConfig, GenerationConfig, ModelConfig, SamplingConfig, StopConfig
from duo.engine.decoder import decode_all
from duo.engine.engine import Engine
from duo.engine.model_pair import ModelPair
from duo.engine.request import Request
from duo.llama.model import Model
from duo.speculation.modes import Schedule
from duo.speculation.sampling import Chain
from duo.speculation.types import Logits
from tests.fakes import Eager, eager
from tests.goodness import chi_square
from tests.prompts import PROMPTS

N = 300  # tokens that are drawn
MAY_END = "<|im_start|>user\nWhat is 1+1?<|im_end|>\n<|im_start|>assistant\n1+1 is 2."


@pytest.fixture(scope="module")
def engine(demo_pair: tuple[Path, Path]) -> Iterator[Engine]:
    target, draft = (Model(ModelConfig(path)) for path in demo_pair)
    config = EngineConfig(n_ctx=512, n_threads=1, draft_n_threads=1, draft_n_max=6)
    with closing(target), closing(draft), Engine(ModelPair(target, draft, config)) as made:
        made.call(lambda slot: slot.reserve(1, -1))
        yield made


def logits_after(slot: ModelPair, prompt: list[int]) -> Logits:
    """Of the target, in a batch of two rows, as with a candidate."""
    assert slot.target_cache is not None
    context = slot.target_cache.context
    context.rollback(0)
    decode_all(context, prompt[:-1])
    found: Logits = context.decode([prompt[-1]] * 2, 2)[0].copy()
    slot.forget()
    return found


@pytest.mark.parametrize(
    ("verify", "text"),
    [("coupled", PROMPTS["story"]), ("rejection", PROMPTS["story"]), ("rejection", MAY_END)],
    ids=["coupled", "rejection", "rejection, where the text may end"],
)
def test_a_verified_token_has_the_distribution_of_the_model(engine: Engine, verify: str, text: str) -> None:
    """Coupled sampling with filters, rejection sampling over all of the vocabulary."""
    sampling = SamplingConfig(temp=0.9)
    if verify == "rejection":
        sampling = replace(sampling, top_k=0, top_p=1.0, min_p=0.0)
    prompt, drawn = engine.tokenize(text), []
    for seed in range(-1, N):
        config = GenerationConfig(replace(sampling, seed=seed % 2**32), StopConfig(2), verify=verify)
        proposers = eager(engine.slot.new_draft(Eager(1, 1, Schedule.SYNC)))
        with engine.start(Request(prompt, config, proposers=proposers)) as stream:
            token = next(stream).tokens[0]
        if seed >= 0:  # the first text has filled the caches
            step = stream.request.metrics.steps[0]
            assert step.n_candidates == 1
            drawn.append((token, step.n_accepted))
    tokens = np.array([token for token, _ in drawn])
    assert 0.1 < np.mean([n_accepted for _, n_accepted in drawn]) < 0.99, "both happen often"
    assert text is not MAY_END or any(map(engine.slot.target.is_end, set(tokens.tolist())))
    expected = Chain(sampling).distribution(engine.call(lambda slot: logits_after(slot, prompt)), ())
    assert set(tokens.tolist()) <= set(expected.ids.tolist())
    counts = np.bincount(expected.ids.searchsorted(tokens), minlength=len(expected.ids))
    assert chi_square(counts, expected.probabilities) > 1e-6
