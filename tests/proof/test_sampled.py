"""On the demo pair, a token verified against a candidate has the distribution that the model says."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from duo.config import EngineConfig, GenerationConfig, ModelConfig, SamplingConfig, StopConfig
from duo.engine.decoder import decode_all
from duo.engine.engine import Engine
from duo.engine.request import choosing
from duo.engine.slot import Slot
from duo.llama.model import Model
from duo.spec.sampling import Chain
from duo.spec.schedule import Schedule
from duo.spec.types import Logits
from tests.fakes import Eager
from tests.goodness import chi_square
from tests.prompts import PROMPTS

N_ENGINE = 50  # tokens drawn by the engine
N_DRAWN = 3000  # tokens drawn in all
MAY_END = "<|im_start|>user\nWhat is 1+1?<|im_end|>\n<|im_start|>assistant\n1+1 is 2."


@pytest.fixture(scope="module")
def engine(demo_pair: tuple[Path, Path]) -> Iterator[Engine]:
    target, draft = (Model(ModelConfig(path)) for path in demo_pair)
    config = EngineConfig(n_ctx=512, n_threads=1, draft_n_threads=1, draft_n_max=6)
    with closing(target), closing(draft), Engine(Slot(target, draft, config)) as made:
        made.call(lambda slot: slot.reserve(1, -1))
        yield made


@dataclass
class Drawing:
    """The first token after a prompt, with any seed."""

    engine: Engine
    config: GenerationConfig
    prompt: list[int]

    def __post_init__(self) -> None:
        self.target, self.draft = self.engine.call(self._logits)

    def _logits(self, slot: Slot) -> tuple[Logits, Logits]:
        """Of the target, in a batch of two rows, as with a candidate, and of the draft."""
        assert slot.target_cache is not None
        assert slot.draft_cache is not None
        found = []
        for cache, n_rows in ((slot.target_cache, 2), (slot.draft_cache, 1)):
            context = cache.context
            context.set_threads(1, 1)
            context.rollback(0)
            decode_all(context, self.prompt[:-1])
            found.append(context.decode([self.prompt[-1]] * n_rows, n_rows).copy())
            context.rollback(0)
        return found[0], found[1]

    def seeded(self, seed: int) -> GenerationConfig:
        return replace(self.config, sampling=replace(self.config.sampling, seed=seed), stop=StopConfig(2))

    def by_engine(self, seed: int) -> int:
        """Written by the engine, with a candidate of the draft."""
        slot = self.engine.slot
        sources = slot.sources(slot.new_draft(Eager(1, 1, Schedule.SYNC)))
        with self.engine.start(self.prompt, self.seeded(seed), sources=sources) as stream:
            token = next(stream).tokens[0]
        assert stream.request.metrics.steps[0].n_candidates == (stream.request.n_cached > 0)
        return token

    def by_verifier(self, seed: int) -> tuple[int, bool]:
        """From the logits alone, by the same verifier; and whether the candidate was accepted."""
        verifier, guesser = choosing(self.engine.slot.target, self.seeded(seed))
        position = len(self.prompt)
        candidate = guesser.guess(self.draft[0], position)
        token, *bonus = verifier.verify(self.target, [candidate], position)
        return token, bool(bonus)


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
    drawing = Drawing(engine, GenerationConfig(sampling, verify=verify), engine.tokenize(text))
    drawing.by_engine(0)  # fills the caches
    drawn = [drawing.by_verifier(seed) for seed in range(N_DRAWN)]
    tokens = np.array([token for token, _ in drawn])
    assert [drawing.by_engine(seed) for seed in range(N_ENGINE)] == tokens[:N_ENGINE].tolist()
    assert 0.1 < np.mean([accepted for _, accepted in drawn]) < 0.975, "both happen often"
    assert text is not MAY_END or any(map(engine.slot.target.is_end, set(tokens.tolist())))
    expected = Chain(sampling).distribution(drawing.target[0], ())
    assert set(tokens.tolist()) <= set(expected.ids.tolist())
    counts = np.bincount(expected.ids.searchsorted(tokens), minlength=len(expected.ids))
    assert chi_square(counts, expected.probabilities) > 1e-6
