from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from duo.config import ContextConfig, ModelConfig
from duo.errors import ModelError, UsageError
from duo.llama.context import cache_bytes
from duo.llama.gguf_file import ModelSize, model_size
from duo.llama.model import Model
from tests.gguf_files import N_EMBD, N_FF, N_HEAD, tiny_gemma, tiny_hybrid, tiny_llama, tiny_mamba

F32 = 4


def size_of(path: Path) -> ModelSize:
    return model_size(ModelConfig(path))


def loaded(path: Path) -> tuple[int, int, tuple[int, int]]:
    """Bytes, layers and cache widths of the model as llama.cpp finds them."""
    model = Model(ModelConfig(path, n_gpu_layers=0))
    found = model.n_bytes, model.n_layer, model.cache_width
    model.close()
    return found


def both_widths(size: ModelSize) -> tuple[int, int]:
    return sum(k for k, _ in size.cache_widths), sum(v for _, v in size.cache_widths)


@pytest.mark.parametrize("which", [0, 1])
def test_a_real_model(demo_pair: tuple[Path, Path], which: int) -> None:
    size = size_of(demo_pair[which])
    n_bytes, n_layer, widths = loaded(demo_pair[which])
    assert (size.n_bytes, len(size.layers), both_widths(size)) == (n_bytes, n_layer, widths)
    assert (size.n_vocab, size.n_embd, size.n_head, size.n_ff) == (49152, 576, 9, 1536)
    # Its output layer is the token embedding once more, and the last norm.
    assert sum(size.layers) + size.output == n_bytes


def test_the_cache_of_a_real_model_is_as_large_as_the_context_makes_it(demo_pair: tuple[Path, Path]) -> None:
    model = Model(ModelConfig(demo_pair[1], n_gpu_layers=0))
    config = ContextConfig(1024, 1, 1, type_k="q8_0", type_v="f16")
    assert sum(size_of(demo_pair[1]).cache_bytes(config)) == cache_bytes(model, config)
    model.close()


@pytest.mark.parametrize("make", [tiny_llama, tiny_mamba, lambda path: tiny_gemma(path, window=16)])
def test_tiny_models(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    path = make(tmp_path / "model.gguf")
    size = size_of(path)
    assert (size.n_bytes, len(size.layers), both_widths(size)) == loaded(path)


def test_the_token_embedding_stays_on_the_host(tmp_path: Path) -> None:
    size = size_of(tiny_llama(tmp_path / "model.gguf"))
    attention, feed_forward, norms = 4 * N_EMBD * N_EMBD, 3 * N_EMBD * N_FF, 2 * N_EMBD
    assert size.layers == (F32 * (attention + feed_forward + norms),)
    assert size.output == F32 * (size.n_vocab * N_EMBD + N_EMBD)
    assert size.n_bytes - size.output - sum(size.layers) == F32 * size.n_vocab * N_EMBD


def test_parts_of_a_split_model_are_one(tmp_path: Path) -> None:
    whole = size_of(tiny_llama(tmp_path / "whole.gguf"))
    path = tiny_llama(tmp_path / "split.gguf", max_tensors=3)
    assert len(ModelConfig(path).shards) > 2
    assert size_of(path) == whole


def test_layers_without_attention_have_no_cache(tmp_path: Path) -> None:
    size = size_of(tiny_hybrid(tmp_path / "model.gguf"))
    assert size.cache_widths == ((0, 0), (N_EMBD, N_EMBD))
    assert size.cache_bytes(ContextConfig(256, 1, 1)) == (0, 256 * 2 * N_EMBD * 2)


def test_a_context_is_rounded_up_as_llama_cpp_does(tmp_path: Path) -> None:
    size = size_of(tiny_llama(tmp_path / "model.gguf"))
    assert size.cache_bytes(ContextConfig(257, 1, 1)) == size.cache_bytes(ContextConfig(512, 1, 1))
    assert size.cache_bytes(ContextConfig(513, 1, 1)) == (768 * 2 * N_EMBD * 2,)


def test_what_is_computed_with_grows_with_the_batch_and_without_flash_attention(tmp_path: Path) -> None:
    size = size_of(tiny_llama(tmp_path / "model.gguf"))
    usual = size.compute_bytes(ContextConfig(4096, 1, 1))
    assert size.compute_bytes(ContextConfig(4096, 1, 1, n_ubatch=1024)) > 1.9 * usual
    assert size.compute_bytes(ContextConfig(4096, 1, 1, flash_attn="off")) == usual + 512 * N_HEAD * 4096 * F32


def test_cache_types_that_there_are_not(tmp_path: Path) -> None:
    size = size_of(tiny_llama(tmp_path / "model.gguf"))
    with pytest.raises(UsageError, match="q9"):
        size.cache_bytes(ContextConfig(256, 1, 1, type_v="q9"))


# Files that llama.cpp may not know


def write(path: Path, tensors: dict[str, int], facts: Callable[[gguf.GGUFWriter], None]) -> ModelSize:
    """Sizes of a file with float32 vectors of these lengths."""
    writer = gguf.GGUFWriter(path, "new")
    facts(writer)
    for name, length in tensors.items():
        writer.add_tensor(name, np.ones(length, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return size_of(path)


def test_layers_of_unknown_names_share_evenly(tmp_path: Path) -> None:
    tensors = {"token_embd.weight": 10, "stage.a": 64, "stage.b": 36}
    size = write(tmp_path / "a.gguf", tensors, lambda writer: writer.add_block_count(3))
    assert size.layers == (134, 133, 133)
    assert size.output == 0


def test_layers_beyond_the_number_that_is_named(tmp_path: Path) -> None:
    size = write(tmp_path / "a.gguf", {f"blk.{i}.x": 10 for i in range(4)}, lambda writer: writer.add_block_count(2))
    assert size.layers == (80, 80)


@pytest.mark.parametrize("n_layer", [None, 0, 10**9])
def test_a_number_of_layers_that_cannot_be(tmp_path: Path, n_layer: int | None) -> None:
    def facts(writer: gguf.GGUFWriter) -> None:
        if n_layer is not None:
            writer.add_block_count(n_layer)

    size = write(tmp_path / "a.gguf", {"blk.0.x": 10}, facts)
    assert not size.layers
    assert not size.cache_widths
    assert size.n_bytes == 40


def test_facts_of_other_types_count_as_absent(tmp_path: Path) -> None:
    def facts(writer: gguf.GGUFWriter) -> None:
        writer.add_block_count(2)
        writer.add_embedding_length(64)
        writer.add_string("new.attention.head_count", "many")
        writer.add_array("new.attention.head_count_kv", ["a", "b"])
        writer.add_float32("new.attention.key_length", 3.5)
        writer.add_int32("new.attention.value_length", -7)

    assert write(tmp_path / "a.gguf", {"blk.0.x": 10}, facts).cache_widths == ((0, 0), (0, 0))


def test_heads_are_taken_to_be_alike_unless_told_otherwise(tmp_path: Path) -> None:
    def facts(writer: gguf.GGUFWriter) -> None:
        writer.add_block_count(2)
        writer.add_embedding_length(64)
        writer.add_head_count(4)
        writer.add_key_length(20)
        writer.add_int32("new.attention.value_length", -7)

    assert write(tmp_path / "a.gguf", {"blk.0.x": 10}, facts).cache_widths == ((80, 64), (80, 64))


def test_latent_attention_has_no_cache_of_v(tmp_path: Path) -> None:
    def facts(writer: gguf.GGUFWriter) -> None:
        writer.add_block_count(1)
        writer.add_head_count(16)
        writer.add_head_count_kv(1)
        writer.add_key_length(576)
        writer.add_value_length(512)
        writer.add_uint32("new.attention.key_length_mla", 192)

    assert write(tmp_path / "a.gguf", {"blk.0.x": 10}, facts).cache_widths == ((576, 0),)


def test_missing_and_damaged_files(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "split.gguf", max_tensors=3)
    ModelConfig(path).shards[1].unlink()
    with pytest.raises(ModelError, match=r"00002-of-.*no such file"):
        size_of(path)
    head = tiny_llama(tmp_path / "whole.gguf").read_bytes()[:1000]
    for content in (b"", b"GGUF", b"no model", head):
        (tmp_path / "bad.gguf").write_bytes(content)
        with pytest.raises(ModelError, match="no GGUF file, or a damaged one"):
            size_of(tmp_path / "bad.gguf")
