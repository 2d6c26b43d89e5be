"""With --exact the text is the target's own, with candidates from the text itself or of another vocabulary, too."""

from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from duo.config import EngineConfig, ModelConfig
from duo.engine.engine import Engine
from duo.engine.generation import Proposers
from duo.engine.memories import Memories
from duo.engine.model_pair import ModelPair
from duo.engine.request import Request, generation_config
from duo.engine.translated import Translation
from duo.llama.model import Model
from duo.speculation.memory import Memory
from duo.speculation.modes import Schedule
from duo.speculation.types import TokenLogprobs
from tests.fakes import Eager, eager, eager_lookup, restless
from tests.gguf_files import tiny_llama
from tests.prompts import SCRIPTS

CONFIG = EngineConfig(n_ctx=256, n_threads=1, draft_n_threads=1, exact=True, warmup=False)
TEMPERATURES = (0.0, 0.7, 1.2)  # one for each prompt


def write(engine: Engine, i: int, prompt: list[int], sources: Proposers) -> tuple[list[TokenLogprobs], int]:
    """The tokens of a text, with their logprobs, and how many candidates were accepted."""
    config = generation_config(max_tokens=8, temperature=TEMPERATURES[i % 3], seed=i, logprobs=5)
    with engine.start(Request(prompt, config, proposers=sources)) as stream:
        tokens = [token for step in stream for token in step.logprobs]
    assert stream.request.metrics.draft_error is None
    return tokens, sum(step.n_accepted for step in stream.request.metrics.steps)


@pytest.mark.parametrize("kind", ["lookup", "memory", "good", "useless"])
def test_the_text_is_the_same(kind: str, demo_pair: tuple[Path, Path], tmp_path: Path) -> None:
    """The prompts of a lookup contain each text twice and begin it again; a memory has the text already.

    Of the drafts, which are translated, the good one has the target's vocabulary all the same; the other is random.
    """
    path = demo_pair[1] if kind == "good" else tiny_llama(tmp_path / "draft.gguf") if kind == "useless" else None
    n_accepted, texts = 0, SCRIPTS[path is not None :: 2]
    with ExitStack() as stack:
        target = stack.enter_context(closing(Model(ModelConfig(demo_pair[0]))))
        draft = stack.enter_context(closing(Model(ModelConfig(path)))) if path is not None else None
        translation = Translation(target, draft) if draft is not None else None
        engine = stack.enter_context(Engine(ModelPair(target, draft, CONFIG, translation=translation)))
        engine.call(lambda slot: slot.reserve(1, -1))
        for i, text in enumerate(texts):
            prompt = engine.tokenize(text)
            if kind == "memory":
                engine.slot.memories = Memories(Memory())
                sources = eager_lookup(engine.slot.proposers())
                write(engine, i, prompt, sources)  # is learned at its end
            elif draft is None:
                tokens = engine.tokenize(f"{text}\n{text}\n")[:200]
                prompt = tokens + tokens[: len(tokens) // 4]
                sources = eager_lookup(engine.slot.proposers())
            else:
                estimates = (Eager(4, 8, Schedule.SYNC), Eager(4, 8), restless(i, 4, 8))[i // 3 % 3]
                sources = eager(engine.slot.new_draft(estimates))
            plain, _ = write(engine, i, prompt, Proposers())
            found, n = write(engine, i, prompt, sources)
            assert found == plain, text
            n_accepted += n
    assert (
        n_accepted > {"lookup": len(texts) / 2, "memory": len(texts) / 2, "good": len(texts) / 2, "useless": -1}[kind]
    )
