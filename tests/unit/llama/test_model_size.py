"""Sizes from headers: those of tiny models, and of published ones as llama.cpp logged them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from duo.config import ContextConfig, ModelConfig
from duo.errors import ModelError
from duo.llama.model import Model
from duo.llama.model_size import ModelSize, model_size
from tests.gguf_files import N_EMBD, N_FF, WORDS, tiny_gemma, tiny_hybrid, tiny_llama, tiny_mamba
from tests.published import COMMAND_R, LLAMA_70B, QWEN_32B, Shape, header

F32, MIB = 4, 1 << 20
N_VOCAB = 259 + len(WORDS)  # of the tiny llama


def size_of(path: Path) -> ModelSize:
    return model_size(ModelConfig(path))


@pytest.fixture
def llama(tmp_path: Path) -> ModelSize:
    return size_of(tiny_llama(tmp_path / "model.gguf"))


# Models that llama.cpp knows


@pytest.mark.parametrize("make", [tiny_llama, tiny_mamba, lambda path: tiny_gemma(path, window=16)])
def test_sizes_agree_with_those_of_the_loaded_model(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    path = make(tmp_path / "model.gguf")
    size, model = size_of(path), Model(ModelConfig(path, n_gpu_layers=0))
    assert (size.n_bytes, len(size.layers)) == (model.n_bytes, model.n_layer)
    assert size == model.size
    model.close()


def test_the_token_embedding_stays_on_the_host_and_prefill_copies_weights_or_the_cache_of_a_layer(
    llama: ModelSize,
) -> None:
    attention, feed_forward, norms = 4 * N_EMBD * N_EMBD, 3 * N_EMBD * N_FF, 2 * N_EMBD
    assert llama.layers == (F32 * (attention + feed_forward + norms),)
    assert llama.output == F32 * (N_VOCAB * N_EMBD + N_EMBD)
    assert llama.n_bytes - llama.output - sum(llama.layers) == F32 * N_VOCAB * N_EMBD
    assert llama.staging_bytes(ContextConfig(64, 1, 1)) == 256 * 2 * N_EMBD * 2
    quantised = ContextConfig(64, 1, 1, type_k="q4_0", type_v="q4_0")
    assert llama.staging_bytes(quantised) == llama.largest == F32 * N_EMBD * N_FF


def test_layers_without_attention_have_no_cache(tmp_path: Path) -> None:
    size = size_of(tiny_hybrid(tmp_path / "model.gguf"))
    assert size.cache_widths == ((0, 0), (N_EMBD, N_EMBD))
    assert size.cache_bytes(ContextConfig(256, 1, 1)) == (0, 256 * 2 * N_EMBD * 2)


# Models that it may not know


def written(path: Path, n_tensors: int, **facts: Any) -> ModelSize:
    """Sizes of a file with so many layers of a float32 vector of length 10, and a token embedding like them."""
    writer = gguf.GGUFWriter(path / "new.gguf", "new")
    for key, value in facts.items():
        kind = gguf.GGUFValueType.INT32 if isinstance(value, int) else gguf.GGUFValueType.get_type(value)
        item = gguf.GGUFValueType.STRING if isinstance(value, list) else None
        writer.add_key_value(f"new.{key.replace('__', '.')}", value, kind, item)
    for name in ("token_embd.weight", *(f"blk.{i}.x" for i in range(n_tensors))):
        writer.add_tensor(name, np.ones(10, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return size_of(path / "new.gguf")


@pytest.mark.parametrize(("n_layer", "layers"), [(2, (40, 120)), (0, ()), (10**9, (40, 40, 40, 40, *[0] * 508))])
def test_layers_by_the_names_of_tensors(tmp_path: Path, n_layer: int, layers: tuple[int, ...]) -> None:
    size = written(tmp_path, 4, block_count=n_layer)
    assert (size.layers, len(size.cache_widths), size.n_bytes) == (layers, len(layers), F32 * 50)


@pytest.mark.parametrize(
    ("facts", "widths"),
    [
        ({"head_count": "many", "head_count_kv": ["a", "b"], "key_length": 3.5, "value_length": -7}, ((0, 0),) * 2),
        ({"head_count": 4, "key_length": 20, "value_length": -7}, ((80, 64),) * 2),
        (
            {"head_count": 16, "head_count_kv": 1, "key_length": 576, "value_length": 512, "key_length_mla": 192},
            ((576, 0),) * 2,
        ),
    ],
    ids=["wrong types", "equal heads", "latent attention"],
)
def test_cache_widths_from_the_metadata(
    tmp_path: Path, facts: dict[str, Any], widths: tuple[tuple[int, int], ...]
) -> None:
    attention = {f"attention__{key}": value for key, value in facts.items()}
    assert written(tmp_path, 1, block_count=2, embedding_length=64, **attention).cache_widths == widths


def test_a_split_model_is_one_and_damaged_files_are_refused(tmp_path: Path, llama: ModelSize) -> None:
    path = tiny_llama(tmp_path / "split.gguf", max_tensors=3)
    assert size_of(path) == llama
    ModelConfig(path).shards[1].unlink()
    with pytest.raises(ModelError, match=r"00002-of-.*no such file"):
        size_of(path)
    head = tiny_llama(tmp_path / "whole.gguf").read_bytes()[:1000]
    for content, said in ((b"", "not a GGUF file"), (b"no model", "not a GGUF file"), (head, "truncated or damaged")):
        (tmp_path / "bad.gguf").write_bytes(content)
        with pytest.raises(ModelError, match=f"bad.gguf: .*{said}"):
            size_of(tmp_path / "bad.gguf")


# Published models, in MiB, as others have loaded them


def published(folder: Path, shape: Shape, quantization: str) -> ModelSize:
    return size_of(header(folder / "model.gguf", shape, quantization))


@pytest.mark.parametrize(
    ("shape", "quantization", "layers", "on_devices", "on_host"),
    [
        # ollama/ollama#11986: split between two cards.
        (LLAMA_70B, "Q8_0", [range(28), range(28, 81)], [24277.75, 46151.91], 1064.62),
        # ggml-org/llama.cpp#6122: cards of 12 and 24 GB; the token embedding is also the output, and in memory twice.
        (COMMAND_R, "Q4_K_S", [range(12), range(12, 41)], [5434.38, 13989.53], 0),
    ],
)
def test_weights(
    tmp_path: Path, shape: Shape, quantization: str, layers: list[range], on_devices: list[float], on_host: float
) -> None:
    size = published(tmp_path, shape, quantization)
    weights = [*size.layers, size.output]
    # The log has two decimals.
    assert [sum(weights[i] for i in part) / MIB for part in layers] == pytest.approx(on_devices, abs=0.006)
    assert size.n_bytes / MIB == pytest.approx(sum(on_devices) + on_host, abs=0.018)


@pytest.mark.parametrize(
    ("shape", "config", "n_devices", "compute"),
    [
        # Each with logits of all tokens, unlike duo. ggml-org/llama.cpp#11861:
        (QWEN_32B, ContextConfig(16384, 1, 1, n_batch=512, n_outputs_max=512), 1, 307.00),
        # ggml-org/llama.cpp#6122: the first of two cards, without flash attention, "n_copies=4".
        (COMMAND_R, ContextConfig(4096, 1, 1, n_outputs_max=512, flash_attn="off"), 2, 672.01),
    ],
)
def test_compute_buffers_are_estimated_from_above(
    tmp_path: Path, shape: Shape, config: ContextConfig, n_devices: int, compute: float
) -> None:
    # By up to a quarter: tensors that llama.cpp places in memory that is free again count in full.
    estimate = published(tmp_path, shape, "Q8_0").compute_bytes(config, n_devices) / MIB
    assert compute <= estimate <= 1.25 * compute
