"""Translation between real vocabularies: every ordered pair of those that llama.cpp tests."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import permutations

import llama_cpp
import pytest

from duo.config import ModelConfig
from duo.llama.model import Model
from tests import vocabularies
from tests.fuzz.cases import FULL, n_cases
from tests.translating import Translating, spell

_ABLE = (llama_cpp.LLAMA_VOCAB_TYPE_SPM, llama_cpp.LLAMA_VOCAB_TYPE_BPE)  # others change what they tokenise
_LONG = 400  # characters
_N_TEXTS = 50 if FULL else 8  # for each pair
_AHEAD = 3  # candidates that the target is offered


@pytest.fixture(scope="module")
def texts(pytestconfig: pytest.Config) -> list[str]:
    try:
        folder = vocabularies.fetch(pytestconfig.cache.mkdir("vocabularies"))
    except vocabularies.Unavailable as error:
        pytest.skip(str(error))
    return [text for text in vocabularies.texts(folder) if len(text) < _LONG]


@pytest.fixture(scope="module")
def models(pytestconfig: pytest.Config, texts: list[str]) -> Iterator[dict[str, Model]]:
    folder = vocabularies.fetch(pytestconfig.cache.mkdir("vocabularies"))
    files = sorted(folder.glob("ggml-vocab-*.gguf"))
    found = {file.stem: Model(ModelConfig(file, n_gpu_layers=0), vocabulary_only=True) for file in files}
    yield found
    for model in found.values():
        model.close()


def able(models: dict[str, Model]) -> list[Model]:
    found = [model for model in models.values() if model.vocab_type in _ABLE]
    assert len(found) >= 15
    return found


def test_fragments_spell_their_text(models: dict[str, Model], texts: list[str]) -> None:
    """In the middle of a text, too: without the space that a vocabulary puts in front of one."""
    for model in able(models):
        for text in texts:
            data = text.encode()
            assert spell(model, model.fragment(data)) == data, (model.path.name, text)
            assert model.prompt_text(model.tokenize("a" + text)) == b"a" + data, (model.path.name, text)


def test_what_a_draft_writes_is_offered_as_the_target_writes_it(models: dict[str, Model], texts: list[str]) -> None:
    """A draft that is always right, a few candidates ahead: nearly all candidates are the target's own tokens."""
    for target, draft in permutations(able(models), 2):
        dice = random.Random(f"{target.path.stem} {draft.path.stem}")
        n, n_right = 0, 0
        for text in dice.sample(texts, min(_N_TEXTS, len(texts))):
            bench, written = Translating(target, draft), iter(draft.fragment(text.encode()))
            for token in target.fragment(text.encode()):
                while len(bench.pending) < _AHEAD and (drafted := next(written, None)) is not None:
                    bench.guess(drafted)
                bench.begin(tentative=True)
                n, n_right = n + 1, n_right + (bool(bench.pending) and bench.pending[0][0] == token)
                bench.accept(token)
                bench.check()
                if bench.translator.n_retold:
                    break  # its token was longer than all that was drafted, which now would continue elsewhere
        assert n_right >= 0.95 * n, (target.path.stem, draft.path.stem, n_right, n)


def test_any_bytes(models: dict[str, Model], texts: list[str]) -> None:
    """Any tokens on both sides, of any of the vocabularies: also those of no use as a draft."""
    dice = random.Random(1)
    every = list(models.values())
    for _ in range(n_cases(10_000)):
        target, draft = dice.sample(every, 2)
        bench = Translating(target, draft, replace=dice.random() < 0.5)
        tentative = dice.random() < 0.5
        for _ in range(dice.randrange(12)):
            if dice.random() < 0.6:
                bench.guess(*_some(dice, draft, texts), tentative=tentative)
            elif bench.pending and dice.random() < 0.7:
                bench.accept(bench.pending[0][0])
            else:
                bench.accept(*_some(dice, target, texts))
            if target.vocab_type in _ABLE and draft.vocab_type in _ABLE:
                bench.check()


def _some(dice: random.Random, model: Model, texts: list[str]) -> list[int]:
    """Some tokens: any, those of bytes, or those of a text."""
    kind = dice.randrange(3)
    if kind == 0:
        return [dice.randrange(model.n_vocab) for _ in range(dice.randrange(1, 4))]
    data = dice.randbytes(dice.randrange(1, 12)) if kind == 1 else dice.choice(texts).encode()[: dice.randrange(1, 30)]
    return model.fragment(data)[:6] or [dice.randrange(model.n_vocab)]
