"""Values on which llama.cpp would end the process: refused in one line that names the file, the key and the value."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from duo.config import ModelConfig
from duo.errors import ModelError, PromptError
from duo.llama.gguf_head import Head as Header
from duo.llama.gguf_head import check_head
from duo.llama.model import Model
from tests.gguf_files import tiny_gemma, tiny_hybrid, tiny_llama, tiny_mamba, tiny_qwen35
from tests.gguf_head import Head


@pytest.fixture
def head(tmp_path: Path) -> Head:
    return Head.read(tiny_llama(tmp_path / "good.gguf"))


def check(path: Path) -> None:
    with closing(Header(path)) as header:
        check_head(header)


def refusal(head: Head, path: Path) -> str:
    with pytest.raises(ModelError) as raised:
        Model(ModelConfig(head.write(path), n_gpu_layers=0))
    text = str(raised.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    return text.removeprefix(f"{path}: ")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        *(({"block_count": n}, f"llama.block_count is {n}, but must be 1 to 512") for n in (0, 513)),
        ({"nextn_predict_layers": 2}, "llama.nextn_predict_layers is 2, but must be 0 to 1"),
        ({"expert_count": 1025, "expert_used_count": 2}, "llama.expert_count is 1025, but must be 0 to 1024"),
        ({"expert_count": 8}, "llama.expert_count is 8, but must be 0 in a file without expert_used_count"),
        ({"expert_count": 8, "expert_used_count": 9}, "llama.expert_used_count is 9, but must be 1 to 8"),
        (
            {"expert_count": 8, "expert_used_count": 2, "expert_group_count": 8},
            "llama.expert_group_count is 8, but must be 0 to 7",
        ),
        (
            {"expert_count": 8, "expert_used_count": 2, "expert_group_count": 3},
            "llama.expert_group_count is 3, but must be a divisor of 8",
        ),
        (
            {"expert_count": 8, "expert_used_count": 2, "expert_group_count": 4, "expert_group_used_count": 4},
            "llama.expert_group_used_count is 4, but must be 1 to 3",
        ),
        ({"rope.scaling.type": b"wide"}, "llama.rope.scaling.type is 'wide', but must be none or linear or"),
        ({"rope.dimension_count": 0}, "llama.rope.dimension_count is 0, but must be 1 or more"),
        ({"rope.dimension_count": 3}, "llama.rope.dimension_count is 3, but must be even"),
        ({"attention.sliding_window": 2**31}, "llama.attention.sliding_window is 2147483648, but must be 0 to"),
    ],
)
def test_values_that_llama_cpp_asserts(head: Head, tmp_path: Path, values: dict[str, int | bytes], said: str) -> None:
    for key, value in values.items():
        head.set(f"llama.{key}", value)
    assert refusal(head, tmp_path / "bad.gguf").startswith(said)


@pytest.mark.parametrize("key", ["full_attention_interval", "ssm.group_count"])
def test_values_that_llama_cpp_divides_by(tmp_path: Path, key: str) -> None:
    head = Head.read(tiny_qwen35(tmp_path / "good.gguf")).set(f"qwen35.{key}", 0)
    assert refusal(head, tmp_path / "bad.gguf").startswith(f"qwen35.{key} is 0, but must be 1 or more")


def test_a_tensor_that_llama_cpp_reads_although_it_is_absent(tmp_path: Path) -> None:
    head = Head.read(tiny_qwen35(tmp_path / "good.gguf"))
    gate = next(tensor for tensor in head.tensors if tensor.name == b"blk.0.attn_gate.weight")
    gate.name = b"other"
    assert refusal(head, tmp_path / "bad.gguf") == "there is no tensor blk.0.attn_gate.weight: the file is damaged"


def test_a_vocabulary_of_a_size_but_without_tokens(head: Head, tmp_path: Path) -> None:
    head.set("llama.vocab_size", 2**32 - 1).set("tokenizer.ggml.model", b"no_vocab")
    assert refusal(head, tmp_path / "bad.gguf") == "this GGUF has no vocabulary"


def test_of_a_vocabulary_alone_only_that_is_checked(head: Head, tmp_path: Path) -> None:
    path = head.set("llama.block_count", 0).write(tmp_path / "vocabulary.gguf")
    model = Model(ModelConfig(path), vocabulary_only=True)
    assert model.tokenize("the cat")
    model.close()


@pytest.mark.parametrize("make", [tiny_mamba, tiny_hybrid, tiny_qwen35, lambda path: tiny_gemma(path, window=4)])
def test_sound_files_pass(tmp_path: Path, make: object) -> None:
    assert callable(make)
    check(make(tmp_path / "model.gguf"))


@pytest.mark.parametrize(
    ("architecture", "key"),
    [(b"plamo2", "ssm.group_count"), (b"llama4", "interleave_moe_layer_step"), (b"hunyuan-dense", "expert_count")],
)
def test_a_zero_that_has_a_meaning(head: Head, tmp_path: Path, architecture: bytes, key: str) -> None:
    head.set("general.architecture", architecture).set(f"{architecture.decode()}.{key}", 0)
    check(head.write(tmp_path / "model.gguf"))


# Vocabularies that lack what llama.cpp takes for granted


def test_a_vocabulary_that_adds_a_token_it_lacks(head: Head, tmp_path: Path) -> None:
    head.keys = [key for key in head.keys if key.name != b"tokenizer.ggml.bos_token_id"]
    head.set("tokenizer.ggml.model", b"t5").set("tokenizer.ggml.add_bos_token", 1)
    assert refusal(head, tmp_path / "bad.gguf").startswith("the vocabulary adds a BOS or EOS that it lacks")


def test_characters_without_tokens(head: Head, tmp_path: Path) -> None:
    tokens = next(key for key in head.keys if key.name == b"tokenizer.ggml.tokens")
    tokens.value[3 + "é".encode()[0]] = b"other"
    model = Model(ModelConfig(head.write(tmp_path / "bad.gguf"), n_gpu_layers=0))
    assert model.tokenize("the cat")
    with pytest.raises(PromptError, match="no tokens for these characters of the prompt: 'é'"):
        model.tokenize("the caté")
    assert model.fragment("aéb c".encode()) == model.fragment(b"ab c"), "in a fragment they are left out"
    assert model.fragment("é the".encode()) == model.fragment(b" the")
    model.close()
