"""Translation between real vocabularies: every ordered pair of those that llama.cpp tests."""

import random
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import llama_cpp
import pytest

from duo.config import ModelConfig
from duo.llama.model import Model
from tests import vocabularies
from tests.fuzz.cases import FULL
from tests.translating import Translating, spell

_ABLE = (llama_cpp.LLAMA_VOCAB_TYPE_SPM, llama_cpp.LLAMA_VOCAB_TYPE_BPE)
_LONG = 400  # characters
_N_TEXTS = 50 if FULL else 4  # for each pair
_AHEAD = 3  # candidates that the target is offered


@pytest.fixture(scope="module")
def folder(pytestconfig: pytest.Config) -> Path:
    return vocabularies.fetch(pytestconfig)


@pytest.fixture(scope="module")
def texts(folder: Path) -> list[str]:
    return [text for text in vocabularies.texts(folder) if len(text) < _LONG]


@pytest.fixture(scope="module")
def models(folder: Path) -> Iterator[list[Model]]:
    """Those of a kind that tokenises a text as it is."""
    configs = [ModelConfig(file, n_gpu_layers=0) for file in sorted(folder.glob("ggml-vocab-*.gguf"))]
    loaded = [Model(config, vocabulary_only=True) for config in configs]
    found = [model for model in loaded if model.vocab_type in _ABLE]
    assert len(found) >= 15
    yield found
    for model in loaded:
        model.close()


def test_fragments_spell_their_text(models: list[Model], texts: list[str]) -> None:
    """In the middle of a text, too: without the space that a vocabulary puts in front of one."""
    for model in models:
        for text in texts:
            data = text.encode()
            assert spell(model, model.fragment(data)) == data, (model.path.name, text)
            assert model.prompt_text(model.tokenize("a" + text)) == b"a" + data, (model.path.name, text)


def test_what_a_draft_writes_is_offered_as_the_target_writes_it(models: list[Model], texts: list[str]) -> None:
    """A draft that is always right, a few candidates ahead: nearly all candidates are the target's own tokens."""
    for target, draft in permutations(models, 2):
        dice = random.Random(f"{target.path.stem} {draft.path.stem}")
        n, n_right = 0, 0
        for text in dice.sample(texts, min(_N_TEXTS, len(texts))):
            bench, written = Translating(target, draft), iter(draft.fragment(text.encode()))
            for token in target.fragment(text.encode()):
                while len(bench.pending) < _AHEAD and (drafted := next(written, None)) is not None:
                    bench.candidate(drafted)
                bench.begin(tentative=True)
                n, n_right = n + 1, n_right + (bool(bench.pending) and bench.pending[0][0] == token)
                bench.accept(token)
                bench.check()
                if bench.translator.n_retold:
                    break  # its token was longer than all that was drafted, which now would continue elsewhere
        assert n_right >= 0.95 * n, (target.path.stem, draft.path.stem, n_right, n)
