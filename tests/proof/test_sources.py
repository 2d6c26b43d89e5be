"""With --exact the text is the target's own, with candidates from the text itself or of another vocabulary, too."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from duo.config import EngineConfig, ModelConfig
from duo.engine.engine import Engine
from duo.engine.generation import Proposers
from duo.engine.model_pair import ModelPair
from duo.engine.request import generation_config
from duo.engine.translated import Translation
from duo.llama.model import Model
from duo.speculation.modes import Schedule
from duo.speculation.types import TokenLogprobs
from tests.fakes import Eager, eager, restless
from tests.gguf_files import tiny_llama
from tests.prompts import SCRIPTS

CONFIG = EngineConfig(n_ctx=256, n_threads=1, draft_n_threads=1, exact=True, warmup=False)
TEMPERATURES = (0.0, 0.7, 1.2)  # one for each prompt


@pytest.fixture(scope="module")
def target(demo_pair: tuple[Path, Path]) -> Iterator[Model]:
    with closing(Model(ModelConfig(demo_pair[0]))) as model:
        yield model


def write(engine: Engine, i: int, prompt: list[int], sources: Proposers, n: int) -> tuple[list[TokenLogprobs], int]:
    """The `n` tokens of a text, with their logprobs, and how many candidates were accepted."""
    config = generation_config(max_tokens=n, temperature=TEMPERATURES[i % 3], seed=i, logprobs=5)
    with engine.start(prompt, config, sources=sources) as stream:
        tokens = [token for step in stream for token in step.logprobs]
    assert stream.request.metrics.draft_error is None
    return tokens, sum(step.n_accepted for step in stream.request.metrics.steps)


def test_the_text_is_the_same_with_lookup(target: Model) -> None:
    """The prompts, in several scripts, contain each text twice and begin it again."""
    n_accepted = 0
    with Engine(ModelPair(target, None, CONFIG)) as engine:
        engine.call(lambda slot: slot.reserve(1, -1))
        for i, text in enumerate(SCRIPTS):
            tokens = engine.tokenize(f"{text}\n{text}\n")[:200]
            prompt = tokens + tokens[: len(tokens) // 4]
            (plain, _), (found, n) = (
                write(engine, i, prompt, engine.slot.proposers(lookup=on), 12) for on in (False, True)
            )
            assert found == plain, text
            n_accepted += n
    assert n_accepted > len(SCRIPTS)


@pytest.fixture(scope="module")
def plain(target: Model) -> list[list[TokenLogprobs]]:
    """What the target writes alone."""
    with Engine(ModelPair(target, None, CONFIG)) as engine:
        return [
            write(engine, i, engine.tokenize(text), engine.slot.proposers(lookup=False), 8)[0]
            for i, text in enumerate(SCRIPTS)
        ]


@pytest.mark.parametrize("kind", ["good", "useless"])
def test_the_text_is_the_same_with_another_vocabulary(
    kind: str, target: Model, plain: list[list[TokenLogprobs]], demo_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    """The good draft has the same vocabulary, but is translated all the same; the other is random."""
    path = demo_pair[1] if kind == "good" else tiny_llama(tmp_path / "draft.gguf")
    n_accepted = 0
    with (
        closing(Model(ModelConfig(path))) as draft,
        Engine(ModelPair(target, draft, CONFIG, translation=Translation(target, draft))) as engine,
    ):
        engine.call(lambda slot: slot.reserve(1, -1))
        for i, text in enumerate(plain):
            estimates = (Eager(4, 8, Schedule.SYNC), Eager(4, 8), restless(i, 4, 8))[i // 3 % 3]
            sources = eager(engine.slot.new_draft(estimates))
            found, n = write(engine, i, engine.tokenize(SCRIPTS[i]), sources, 8)
            assert found == text, (SCRIPTS[i], estimates.schedules)
            n_accepted += n
    assert kind != "good" or n_accepted > sum(map(len, plain)) / 10
