"""What headers say about models, and that vocabularies match by the same rule as loaded ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import permutations
from pathlib import Path

import gguf
import pytest

from duo.config import ModelConfig
from duo.llama.fingerprint import vocabulary_difference
from duo.llama.gguf_summary import NoTextModelError, summarize
from duo.llama.model import Model
from tests.gguf_files import WORDS, tiny_bpe, tiny_hybrid, tiny_llama, tiny_mamba

OTHER = (*WORDS[:-2], "▁bird", "▁")


@pytest.fixture
def models(tmp_path: Path) -> dict[str, Path]:
    return {
        "llama": tiny_llama(tmp_path / "llama.gguf"),
        "padded": tiny_llama(tmp_path / "padded.gguf", padding=128),
        "too much": tiny_llama(tmp_path / "too.gguf", padding=129),
        "other word": tiny_llama(tmp_path / "other.gguf", words=OTHER),
        "adds BOS": tiny_llama(tmp_path / "bos.gguf", add_bos=True),
        "hybrid": tiny_hybrid(tmp_path / "hybrid.gguf"),
        "bytes": tiny_bpe(tmp_path / "bytes.gguf", "gpt-2"),
    }


@pytest.fixture
def loaded(models: dict[str, Path]) -> Iterator[dict[str, Model]]:
    with ExitStack() as stack:
        found = {name: Model(ModelConfig(path), vocabulary_only=True) for name, path in models.items()}
        for model in found.values():
            stack.callback(model.close)
        yield found


def test_vocabularies_match_as_those_of_loaded_models(models: dict[str, Path], loaded: dict[str, Model]) -> None:
    summaries = {name: summarize(path) for name, path in models.items()}
    same = set()
    for one, another in permutations(models, 2):
        matches = summaries[one].shares_vocabulary(summaries[another])
        assert matches == (vocabulary_difference(loaded[one], loaded[another]) is None), (one, another)
        same |= {frozenset((one, another))} if matches else set()
    assert {"llama", "padded"} in same
    assert {"llama", "hybrid"} in same
    assert {"padded", "too much"} in same
    assert not any("other word" in pair or "adds BOS" in pair for pair in same)


def test_what_a_file_does_not_say_is_no_difference(tmp_path: Path) -> None:
    silent, says = (summarize(_vocabulary(tmp_path / f"{i}.gguf", bool(i))) for i in (0, 1))
    assert (silent.vocabulary.bos, says.vocabulary.bos) == (None, 1)
    assert silent.shares_vocabulary(says)
    assert says.shares_vocabulary(silent)


def _vocabulary(path: Path, adds_bos: bool) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["a", "b"])
    if adds_bos:
        writer.add_add_bos_token(True)
        writer.add_bos_token_id(1)
    return _finish(writer)


def _finish(writer: gguf.GGUFWriter) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return Path(writer.path)  # type: ignore[arg-type]


def test_formats_and_kinds(tmp_path: Path) -> None:
    assert summarize(tiny_llama(tmp_path / "llama.gguf")).keeps_state is False
    hybrid, recurrent = (summarize(make(tmp_path / f"{make.__name__}.gguf")) for make in (tiny_hybrid, tiny_mamba))
    assert (hybrid.keeps_state, hybrid.is_recurrent) == (True, False)
    assert (recurrent.keeps_state, recurrent.is_recurrent) == (True, True)
    names = {0: "F32", 1: "F16", 2: "Q4_0", 10: "Q2_K", 15: "Q4_K_M", 16: "Q5_K_S", 30: "IQ4_XS", 5: "", None: ""}
    assert {number: _format_of(tmp_path, number) for number in names} == names


def _format_of(folder: Path, number: int | None) -> str:
    path = folder / "format.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("A name")
    writer.add_token_list(["a"])
    if number is not None:
        writer.add_file_type(number)
    found = summarize(_finish(writer))
    assert found.name == "A name"
    return found.quantisation.split(" ")[0]


def test_what_is_no_text_model(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "projector.gguf", "clip")
    writer.add_type("mmproj")
    writer.add_token_list(["a"])
    encoder = gguf.GGUFWriter(tmp_path / "encoder.gguf", "bert")
    encoder.add_token_list(["a"])
    encoder.add_pooling_type(gguf.PoolingType.MEAN)
    numbers = gguf.GGUFWriter(tmp_path / "numbers.gguf", "llama")
    numbers.add_array("tokenizer.ggml.tokens", [1, 2])
    for path, reason in (
        (_finish(writer), "not a text model"),
        (_finish(encoder), "an encoder"),
        (_finish(numbers), "not a text model"),
    ):
        with pytest.raises(NoTextModelError, match=reason):
            summarize(path)
