"""Headers of published models: their shapes, and the types of their tensors as llama.cpp's quantize chooses them."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Type
from gguf import GGUFValueType as Kind

from tests.gguf_head import Head, Key, Tensor

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
        "block_count": shape.n_layer,
        "embedding_length": shape.n_embd,
        "feed_forward_length": shape.n_ff,
        "attention.head_count": shape.n_head,
        "attention.head_count_kv": shape.n_head_kv,
        "attention.key_length": shape.n_embd_head,
        "attention.value_length": shape.n_embd_head,
    }
    keys = [
        Key(b"general.architecture", int(Kind.STRING), shape.architecture.encode()),
        *(Key(f"{shape.architecture}.{name}".encode(), int(Kind.UINT32), n) for name, n in numbers.items()),
        Key(b"tokenizer.ggml.tokens", int(Kind.STRING), [b""] * shape.n_vocab, array=True),
    ]
    return Head(keys, tensors, b"").write(path)


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
        yield f"blk.{i}.attn_q", [n_embd, n_q], most
        yield f"blk.{i}.attn_k", [n_embd, n_kv], most
        yield f"blk.{i}.attn_v", [n_embd, n_kv], value
        yield f"blk.{i}.attn_output", [n_q, n_embd], most
        yield f"blk.{i}.ffn_gate", [n_embd, shape.n_ff], most
        yield f"blk.{i}.ffn_up", [n_embd, shape.n_ff], most
        yield f"blk.{i}.ffn_down", [shape.n_ff, n_embd], down
        for name, length in vectors.items():
            yield f"blk.{i}.{name}", [length], Type.F32


# llama-quant.cpp, llama_tensor_get_type_impl(): the types of most tensors, and of the output.
_MOST = {"Q8_0": (Type.Q8_0, Type.Q8_0), "Q4_K_S": (Type.Q4_K, Type.Q6_K)}
