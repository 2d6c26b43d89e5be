"""With --exact the text is the target's own, token for token, with candidates from the text itself, too."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from duo.config import EngineConfig, ModelConfig
from duo.engine.engine import Engine
from duo.engine.request import Drafts, generation_config
from duo.engine.slot import Slot
from duo.llama.model import Model
from tests.translation_prompts import PROMPTS

N = 12  # tokens of each text
TEMPERATURES = (0.0, 0.7, 1.2)
CONFIG = EngineConfig(n_ctx=256, n_threads=1, exact=True, warmup=False)


def test_the_text_is_the_same_with_and_without(demo_pair: tuple[Path, Path]) -> None:
    """The prompts, in several scripts, contain each text twice and begin it again."""
    n_accepted = 0
    with closing(Model(ModelConfig(demo_pair[0]))) as target, Engine(Slot(target, None, CONFIG)) as engine:
        engine.call(lambda slot: slot.reserve(1, -1))
        for i, text in enumerate(PROMPTS):
            tokens = engine.tokenize(f"{text}\n{text}\n")[:200]
            prompt = tokens + tokens[: len(tokens) // 4]
            config = generation_config(max_tokens=N, temperature=TEMPERATURES[i % 3], seed=i)
            texts = []
            for drafts in (Drafts(), Drafts(lookup=True)):
                with engine.start(prompt, config, drafts=drafts) as stream:
                    texts.append([token for step in stream for token in step.tokens])
                n_accepted += sum(step.n_accepted for step in stream.request.metrics.steps)
            assert texts[0] == texts[1], text
    assert n_accepted > len(PROMPTS)
