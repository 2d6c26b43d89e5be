"""With --exact the text is the target's own, whatever blocks a block draft makes, when, and how often it is probed."""

import random
from contextlib import ExitStack, closing
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from duo.config import EngineConfig, ModelConfig
from duo.engine.engine import Engine
from duo.engine.generation import Proposers
from duo.engine.model_pair import ModelPair
from duo.engine.request import Request, generation_config
from duo.llama.heads import check_pair
from duo.llama.model import Model
from duo.speculation.acceptance import N_DEPTHS
from duo.speculation.modes import OFF, SYNC
from duo.speculation.types import TokenLogprobs
from tests.fakes import Scripted, eager
from tests.gguf_files import tiny_block, tiny_llama

CONFIG = EngineConfig(n_ctx=256, n_threads=1, draft_n_threads=1, exact=True, warmup=False)
SIZE = 8
VARIANTS: dict[str, dict[str, Any]] = {
    "DFlash": {},
    "DSpark": {"markov": True, "layers": (1,)},
    "DSpark, causal, with a bonus anchor": {"markov": True, "causal": True, "from_anchor": False},
    "DFlash2": {"top_k": 6, "layers": (0, 2)},
    "useless": {"seed": 9},
}


class Blocks(Scripted):
    """Of a draft that makes blocks of any length, whenever the dice say so."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        schedules = (self._dice.choice((SYNC, SYNC, OFF)) for _ in repeat(0))
        probes = (self._dice.random() < 0.2 for _ in repeat(0))
        limits: dict[str, Any] = {"in_turns": True, "block": SIZE, "n_depths": N_DEPTHS}
        super().__init__(SIZE, 2 * SIZE, schedules, probes, **limits)

    @property
    def n_block(self) -> int:
        return self._dice.randrange(1, SIZE + 1)


def write(engine: Engine, i: int, prompt: list[int], sources: Proposers) -> tuple[list[TokenLogprobs], int]:
    """The tokens of a text, with their logprobs, and how many candidates were accepted."""
    temperature = (0.0, 0.7, 1.2)[i % 3]
    config = generation_config(max_tokens=24, temperature=temperature, seed=i, logprobs=5, ignore_eos=True)
    with engine.start(Request(prompt, config, proposers=sources)) as stream:
        tokens = [token for step in stream for token in step.logprobs]
    assert stream.request.metrics.draft_error is None
    return tokens, sum(step.n_accepted for step in stream.request.metrics.steps)


@pytest.mark.parametrize("kind", VARIANTS)
def test_the_text_is_the_same(kind: str, tmp_path: Path) -> None:
    paths = tiny_llama(tmp_path / "target.gguf", n_layer=3, depth=0.02), tmp_path / "draft.gguf"
    tiny_block(paths[1], depth=0.02, size=SIZE, **VARIANTS[kind])
    n_accepted = n_scored = 0
    with ExitStack() as stack:
        target, draft = (stack.enter_context(closing(Model(ModelConfig(path, heads=True)))) for path in paths)
        check_pair(target, draft)
        engine = stack.enter_context(Engine(ModelPair(target, draft, CONFIG)))
        engine.call(lambda slot: slot.reserve(1, -1))
        for i in range(30):
            prompt = random.Random(i).choices(range(3, 270), k=1 + 2 * i)
            plain, _ = write(engine, i, prompt, Proposers())
            estimates = Blocks(i)
            found, n = write(engine, i, prompt, eager(engine.slot.new_draft(estimates)))
            assert found == plain
            n_accepted, n_scored = n_accepted + n, n_scored + len(estimates.scores)
    assert n_scored > 100
    assert n_accepted > (-1 if kind == "useless" else 100)
