"""Facts, tokens and templates of a real model, and the back ends of this build."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from duo.config import ModelConfig
from duo.errors import ModelError
from duo.llama.model import Model


@pytest.fixture(scope="module")
def model(demo_pair: tuple[Path, Path]) -> Iterator[Model]:
    loaded = Model(ModelConfig(demo_pair[0]))
    yield loaded
    loaded.close()


def test_facts(model: Model) -> None:
    assert model.quantisation == "F16"
    assert model.n_layer == 30
    assert model.n_ctx_train == 8192
    assert model.n_vocab == 49152
    assert model.can_roll_back
    assert model.size.cache_widths == ((3 * 64, 3 * 64),) * 30
    assert model.metadata("general.architecture") == "llama"
    assert model.metadata("no.such.key") is None
    assert len(model.metadata("tokenizer.chat_template") or "") > 256, "longer than the first buffer"


@pytest.mark.parametrize("text", ["a", "Grüße, 世界 🙂\n\n", " leading", "x" * 3000])
def test_tokens_spell_the_text(model: Model, text: str) -> None:
    assert b"".join(map(model.piece, model.tokenize(text))).decode() == text


def test_end_tokens(model: Model) -> None:
    assert model.eos in model.end_tokens()
    assert model.is_end(model.eos)
    assert not model.is_end(model.tokenize("a")[0])


def test_loading_can_be_stopped(demo_pair: tuple[Path, Path]) -> None:
    seen: list[float] = []

    def stop(share: float) -> bool:
        seen.append(share)
        return False

    with pytest.raises(ModelError):
        Model(ModelConfig(demo_pair[0]), stop)
    assert seen
