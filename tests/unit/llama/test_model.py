"""Sizes from headers: those of tiny models, and of published ones as llama.cpp logged them."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Type
from gguf import GGUFValueType as Kind

from duo.config import ContextConfig, ModelConfig
from duo.errors import UsageError
from duo.llama.model import Model, ModelSize, model_size
from tests.gguf_files import N_EMBD, N_FF, WORDS, tiny_gemma, tiny_hybrid, tiny_llama, tiny_mamba, tiny_mixture
from tests.gguf_header import GgufHeader, Key, Tensor

F32, MIB = 4, 1 << 20
N_VOCAB = 259 + len(WORDS)  # of the tiny llama


def size_of(path: Path) -> ModelSize:
    return model_size(ModelConfig(path))


@pytest.fixture
def llama(tmp_path: Path) -> ModelSize:
    return size_of(tiny_llama(tmp_path / "model.gguf"))


# Models that llama.cpp knows


@pytest.mark.parametrize("make", [tiny_llama, tiny_mamba, tiny_mixture, lambda path: tiny_gemma(path, window=16)])
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


def test_experts_are_counted_apart_and_what_is_elsewhere_is_not_in_a_layer(tmp_path: Path) -> None:
    path = tiny_mixture(tmp_path / "model.gguf")
    size, expert = size_of(path), F32 * 4 * N_EMBD * N_FF
    assert (size.experts, size.share, size.elsewhere) == (3 * (3 * expert,), 0.5, {})
    named = (("override_tensor", "blk.0.*_exps=CPU"), ("override_tensor", "attn_q|up_exps=CPU"))
    moved = model_size(ModelConfig(path, overrides=named))
    query = F32 * N_EMBD * N_EMBD
    assert moved.experts == (0, 2 * expert, 2 * expert)
    assert moved.elsewhere == {"CPU": (5 * expert + 3 * query, 5 * expert, 0)}
    assert sum(moved.layers) == sum(size.layers) - 5 * expert - 3 * query
    assert [size.expert_bytes(n) for n in (0, 2, 3)] == [(9 * expert, n * expert) for n in (9, 3, 0)]
    assert [moved.expert_bytes(n) for n in (0, 2, 3)] == [(9 * expert, n * expert) for n in (9, 5, 5)]
    output = model_size(ModelConfig(path, overrides=(("override_tensor", "^output=CPU"),)))
    assert (output.output, output.layers) == (0, size.layers)


def test_of_what_is_elsewhere_an_input_is_read_by_the_row_unless_it_is_the_output_too(tmp_path: Path) -> None:
    path, embedding = tiny_mixture(tmp_path / "model.gguf"), F32 * N_VOCAB * N_EMBD
    both = model_size(ModelConfig(path, overrides=(("override_tensor", "^(token_embd|output).weight=CPU"),)))
    assert both.elsewhere == {"CPU": (2 * embedding, 0, embedding)}
    written(tmp_path, 1)
    tied = model_size(ModelConfig(tmp_path / "new.gguf", overrides=(("override_tensor", "token_embd=CPU"),)))
    assert tied.elsewhere == {"CPU": (F32 * 10, 0, 0)}


@pytest.mark.parametrize(
    ("pattern", "n"),
    [
        ("exps", 9), (r"\.ffn_(up|down|gate)_exps", 9), ("blk.[0-1].*exps", 6), (r"blk\.[^0]\.ffn_up_exps", 2),
        (r"blk\.\d{1}\.ffn_(?:up|down)_", 6), ("^output.weight$", 1), (r"blk\.(?!1\.).*_exps", 6), ("exps.?weight", 9),
        *((wrong, 0) for wrong in (
            "(?i)exps", "(?<!_)exps", "(?P<a>exps)", "[[:alpha:]]exps", r"(a)\1|exps", "exps*+", "exps**", "{exps",
            "exps)", "[exps", "exps]", r"exps\Z", "[z-a]exps", "exps{2,1}", 999 * "(" + "exps" + 999 * ")",
            5000 * "exps|", "éxps|exps", "exps|\0",
        )),
    ],
)  # fmt: skip
def test_patterns_that_mean_the_same_to_llama_cpp(tmp_path: Path, pattern: str, n: int) -> None:
    path = tiny_mixture(tmp_path / "model.gguf")
    config = ModelConfig(path, n_gpu_layers=0, overrides=(("override_tensor", f"{pattern}=CPU"),))
    if not n:
        with pytest.raises(UsageError, match=r"^override_tensor: .* is not a regular expression"):
            Model(config)
        return
    with closing(Model(config)) as model:
        (found,) = model.size.overrides
        assert len(found.names) == n


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
        ({"head_count": 16, "head_count_kv": 1, "key_length": 576, "value_length": 512, "key_length_mla": 192},
         ((576, 0),) * 2),
    ],
    ids=["wrong types", "equal heads", "latent attention"],
)  # fmt: skip
def test_cache_widths_from_the_metadata(
    tmp_path: Path, facts: dict[str, Any], widths: tuple[tuple[int, int], ...]
) -> None:
    attention = {f"attention__{key}": value for key, value in facts.items()}
    assert written(tmp_path, 1, block_count=2, embedding_length=64, **attention).cache_widths == widths


def test_a_split_model_is_one(tmp_path: Path, llama: ModelSize) -> None:
    assert size_of(tiny_llama(tmp_path / "split.gguf", max_tensors=3)) == llama


# Published models, in MiB, as others have loaded them

_ALIGNMENT = 32


@dataclass(frozen=True)
class Shape:
    """The sizes of a model, as in its config.json."""

    architecture: str
    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    n_vocab: int
    n_embd_head: int = 128
    biases: bool = False  # of Q, K and V
    ffn_norm: bool = True
    tied: bool = False  # the token embedding is also the output


LLAMA_70B = Shape("llama", 80, 8192, 28672, 64, 8, 128256)
QWEN_32B = Shape("qwen2", 64, 5120, 27648, 40, 8, 152064, biases=True)  # Qwen2.5 and R1-Distill-Qwen
COMMAND_R = Shape("command-r", 40, 8192, 22528, 64, 64, 256000, ffn_norm=False, tied=True)


def header(path: Path, shape: Shape, quantization: str) -> Path:
    """Write a GGUF file with all keys that describe sizes, and all tensors, but without their data."""
    tensors, offset = [], 0
    for name, dims, kind in _tensors(shape, quantization):
        suffix = "" if name.endswith("bias") else ".weight"
        tensors.append(Tensor(f"{name}{suffix}".encode(), dims, int(kind), offset))
        values, n_bytes = GGML_QUANT_SIZES[kind]
        offset += -(-prod(dims) // values * n_bytes // _ALIGNMENT) * _ALIGNMENT
    numbers = {
        "block_count": shape.n_layer, "embedding_length": shape.n_embd, "feed_forward_length": shape.n_ff,
        "attention.head_count": shape.n_head, "attention.head_count_kv": shape.n_head_kv,
        "attention.key_length": shape.n_embd_head, "attention.value_length": shape.n_embd_head,
    }  # fmt: skip
    keys = [
        Key(b"general.architecture", int(Kind.STRING), shape.architecture.encode()),
        *(Key(f"{shape.architecture}.{name}".encode(), int(Kind.UINT32), n) for name, n in numbers.items()),
        Key(b"tokenizer.ggml.tokens", int(Kind.STRING), [b""] * shape.n_vocab, array=True),
    ]
    return GgufHeader(keys, tensors, b"").write(path)


def _tensors(shape: Shape, quantization: str) -> Iterator[tuple[str, list[int], Type]]:
    """Name, dimensions and type of each tensor."""
    n_embd, n_q, n_kv = shape.n_embd, shape.n_head * shape.n_embd_head, shape.n_head_kv * shape.n_embd_head
    most, output = _MOST[quantization]
    yield "token_embd", [n_embd, shape.n_vocab], output if shape.tied else most
    yield "output_norm", [n_embd], Type.F32
    if not shape.tied:
        yield "output", [n_embd, shape.n_vocab], output
    vectors = {"attn_norm": n_embd}
    if shape.ffn_norm:
        vectors |= {"ffn_norm": n_embd}
    if shape.biases:
        vectors |= {"attn_q.bias": n_q, "attn_k.bias": n_kv, "attn_v.bias": n_kv}
    for i in range(shape.n_layer):
        # In Q4_K_S, V and the second feed-forward matrix of the first layers have more bits.
        value, down = (Type.Q5_K if most == Type.Q4_K and i < n else most for n in (4, shape.n_layer // 8))
        for name, n_in, n_out, kind in (
            ("attn_q", n_embd, n_q, most), ("attn_k", n_embd, n_kv, most), ("attn_v", n_embd, n_kv, value),
            ("attn_output", n_q, n_embd, most), ("ffn_gate", n_embd, shape.n_ff, most),
            ("ffn_up", n_embd, shape.n_ff, most), ("ffn_down", shape.n_ff, n_embd, down),
        ):  # fmt: skip
            yield f"blk.{i}.{name}", [n_in, n_out], kind
        for name, length in vectors.items():
            yield f"blk.{i}.{name}", [length], Type.F32


# llama-quant.cpp, llama_tensor_get_type_impl(): the types of most tensors, and of the output.
_MOST = {"Q8_0": (Type.Q8_0, Type.Q8_0), "Q4_K_S": (Type.Q4_K, Type.Q6_K)}


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
