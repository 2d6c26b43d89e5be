"""Values on which llama.cpp would crash: refused in one line that names the file, the key and the value."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from duo.config import ModelConfig
from duo.errors import ModelError, PromptError
from duo.llama.gguf_head import Head as Header
from duo.llama.gguf_head import check_head
from duo.llama.model import Model
from tests.gguf_files import tiny_gemma, tiny_hybrid, tiny_llama, tiny_mamba, tiny_qwen35
from tests.gguf_head import Head, Tensor


def head(tmp_path: Path, architecture: str = "llama") -> Head:
    """That of a good file, which says that it is of this architecture."""
    make = tiny_qwen35 if architecture == "qwen35" else tiny_llama
    return Head.read(make(tmp_path / "good.gguf")).set("general.architecture", architecture.encode())


def refusal(head: Head, path: Path) -> str:
    with pytest.raises(ModelError) as raised:
        Model(ModelConfig(head.write(path), n_gpu_layers=0))
    text = str(raised.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    return text.removeprefix(f"{path}: ")


def tensor(head: Head, name: str) -> Tensor:
    return next(tensor for tensor in head.tensors if tensor.name == name.encode())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("qwen35.full_attention_interval", 0),
        ("qwen35.ssm.group_count", 0),
        ("llama.rope.dimension_count", 0),
        ("llama.attention.sliding_window", 2**31),
        ("llama.context_length", 2**31),
        ("phimoe.attention.head_count", 0),
        ("glm4moe.expert_count", 0),
    ],
)
def test_values_that_llama_cpp_divides_by_or_allocates(tmp_path: Path, key: str, value: int) -> None:
    changed = head(tmp_path, key.partition(".")[0]).set(key, value)
    assert refusal(changed, tmp_path / "bad.gguf") == f"{key} is {value}: the file is damaged"


def test_tensors_that_are_absent_or_of_integers_and_a_vocabulary_without_tokens(tmp_path: Path) -> None:
    absent, integers = head(tmp_path, "qwen35"), head(tmp_path)
    tensor(absent, "blk.0.attn_gate.weight").name = b"other"
    tensor(integers, "blk.0.attn_output.weight").kind = 26
    empty = head(tmp_path).set("llama.vocab_size", 2**32 - 1).set("tokenizer.ggml.model", b"no_vocab")
    assert [refusal(changed, tmp_path / "bad.gguf") for changed in (absent, integers, empty)] == [
        "there is no tensor blk.0.attn_gate.weight: the file is damaged",
        "blk.0.attn_output.weight has integers: the file is damaged",
        "this GGUF has no vocabulary",
    ]


def test_a_later_part_of_a_split_model(tmp_path: Path) -> None:
    parts = ModelConfig(tiny_llama(tmp_path / "split.gguf", max_tensors=3)).shards
    assert refusal(Head.read(parts[1]), tmp_path / "bad.gguf").startswith("name the first file of a split model")


def test_what_is_allowed(tmp_path: Path) -> None:
    for make in (tiny_mamba, tiny_hybrid, tiny_qwen35, partial(tiny_gemma, window=4)):
        check_head(Header(make(tmp_path / "model.gguf")))
    zero = head(tmp_path, "plamo2").set("plamo2.ssm.group_count", 0).write(tmp_path / "zero.gguf")
    check_head(Header(zero))  # there it has a meaning
    no_heads = head(tmp_path, "olmo2").write(tmp_path / "no-heads.gguf")
    check_head(Header(no_heads), vocabulary_only=True)


# Vocabularies that lack what llama.cpp takes for granted


def test_a_vocabulary_that_adds_a_token_it_lacks(tmp_path: Path) -> None:
    changed = head(tmp_path)
    changed.keys = [key for key in changed.keys if key.name != b"tokenizer.ggml.bos_token_id"]
    changed.set("tokenizer.ggml.model", b"t5").set("tokenizer.ggml.add_bos_token", 1)
    assert refusal(changed, tmp_path / "bad.gguf").startswith("the vocabulary adds a BOS or EOS that it lacks")


def test_characters_without_tokens(tmp_path: Path) -> None:
    changed = head(tmp_path)
    tokens = next(key for key in changed.keys if key.name == b"tokenizer.ggml.tokens")
    tokens.value[3 + "é".encode()[0]] = b"other"
    with closing(Model(ModelConfig(changed.write(tmp_path / "bad.gguf"), n_gpu_layers=0))) as model:
        assert model.tokenize("the cat")
        with pytest.raises(PromptError, match="no tokens for some characters of the prompt"):
            model.tokenize("the caté")
        assert model.fragment("theé cat".encode()) == model.fragment(b"the cat"), "in a fragment they are left out"
