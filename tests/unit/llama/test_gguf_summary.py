"""What headers say about models, and that vocabularies match by the same rule as loaded ones."""

from __future__ import annotations

from contextlib import closing
from itertools import permutations
from pathlib import Path

import pytest
from gguf import GGUFValueType as Kind

from duo.config import ModelConfig
from duo.llama.fingerprint import vocabulary_difference
from duo.llama.gguf_head import NoTextModelError, summarize
from duo.llama.model import Model
from tests.gguf_files import WORDS, tiny_bpe, tiny_hybrid, tiny_llama, tiny_mamba
from tests.gguf_head import Head, Key

OTHER = (*WORDS[:-2], "▁bird", "▁")


def test_vocabularies_match_as_those_of_loaded_models(tmp_path: Path) -> None:
    models = {
        "llama": tiny_llama(tmp_path / "llama.gguf"),
        "padded": tiny_llama(tmp_path / "padded.gguf", padding=128),
        "too much": tiny_llama(tmp_path / "too.gguf", padding=129),
        "other word": tiny_llama(tmp_path / "other.gguf", words=OTHER),
        "adds BOS": tiny_llama(tmp_path / "bos.gguf", add_bos=True),
        "hybrid": tiny_hybrid(tmp_path / "hybrid.gguf"),
        "bytes": tiny_bpe(tmp_path / "bytes.gguf", "gpt-2"),
    }
    same = set()
    for one, another in permutations(models, 2):
        with (
            closing(Model(ModelConfig(models[one]), vocabulary_only=True)) as first,
            closing(Model(ModelConfig(models[another]), vocabulary_only=True)) as second,
        ):
            matches = vocabulary_difference(first, second) is None
        assert summarize(models[one]).shares_vocabulary(summarize(models[another])) == matches, (one, another)
        same |= {f"{one}, {another}"} if matches and one < another else set()
    assert same == {"llama, padded", "hybrid, llama", "hybrid, padded", "padded, too much"}


def written(path: Path, **values: object) -> Path:
    """A file with these values."""
    head = Head([], [], b"").set("general.architecture", b"llama")
    head.keys.append(Key(b"tokenizer.ggml.tokens", Kind.STRING, [b"a", b"b"], array=True))
    for name, value in values.items():
        head.set(name.replace("__", "."), value)
    return head.write(path)


def test_what_a_file_does_not_say_is_no_difference(tmp_path: Path) -> None:
    adds = {"tokenizer__ggml__add_bos_token": 1, "tokenizer__ggml__bos_token_id": 1}
    silent, says = summarize(written(tmp_path / "silent.gguf")), summarize(written(tmp_path / "says.gguf", **adds))
    assert (silent.vocabulary.bos, says.vocabulary.bos) == (None, 1)
    assert silent.shares_vocabulary(says)
    assert says.shares_vocabulary(silent)


def test_formats_and_kinds(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    for make, kind in {tiny_llama: (False, False), tiny_hybrid: (True, False), tiny_mamba: (True, True)}.items():
        found = summarize(make(path))
        assert (found.keeps_state, found.is_recurrent) == kind
    names = {0: "F32", 1: "F16", 2: "Q4_0", 10: "Q2_K", 15: "Q4_K_M", 16: "Q5_K_S", 30: "IQ4_XS", 5: ""}
    for number, name in names.items():
        found = summarize(written(path, general__file_type=number, general__name=b"A name"))
        assert (found.name, found.quantisation.split(" ")[0]) == ("A name", name)
    for values, reason in (
        ({"general__type": b"mmproj"}, "not a text model"),
        ({"llama__pooling_type": 1}, "an encoder"),
    ):
        with pytest.raises(NoTextModelError, match=reason):
            summarize(written(path, **values))
