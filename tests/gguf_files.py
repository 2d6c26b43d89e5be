"""Tiny GGUF files for tests: right in form, random in content."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

Weights = npt.NDArray[np.float32]

WORDS = ("▁the", "▁cat", "▁sat", "▁on", "▁mat", "▁and", "▁dog", "▁ran", "a", "b", "c", "d", "e", "f", "g", "▁")

N_EMBD = 64
N_FF = 128
N_HEAD = 2
N_EMBD_HEAD = N_EMBD // N_HEAD
N_CTX_TRAIN = 512


def tiny_llama(
    path: Path,
    *,
    words: tuple[str, ...] = WORDS,
    padding: int = 0,
    add_bos: bool = False,
    vocabulary: bool = True,
    tensors: bool = True,
    seed: int = 0,
    depth: float = 1.0,
    n_layer: int = 1,
    max_tensors: int = 0,
    chat_template: str | Sequence[Mapping[str, str]] | None = None,
    control: tuple[str, ...] = (),
) -> Path:
    """A llama with a vocabulary of its own unless told otherwise.

    `depth` is how much a layer adds: with little of it, what comes next is mostly up to the last token, and models of
    the same seed often agree, whatever their architecture.

    `control` adds special tokens, and `padding` that many unused ones; with `max_tensors` it is split into parts of so
    many tensors, and the first part's path is returned.
    """
    writer = gguf.GGUFWriter(path, "llama", split_max_tensors=max_tensors)
    _write_sizes(writer, N_FF, n_layer)
    _write_attention(writer)
    n_vocab = _write_vocabulary(writer, words, padding, add_bos, control) if vocabulary else 32
    if not vocabulary:
        writer.add_vocab_size(n_vocab)
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    if tensors:
        weights = _Random(writer, seed)
        _add_ends(weights, n_vocab)
        for layer in [f"blk.{i}" for i in range(n_layer)]:
            _add_attention(weights, layer, depth)
            weights.ones(f"{layer}.ffn_norm.weight", N_EMBD)
            _add_feed_forward(weights, layer, depth)
    return _finish(writer, path)


def with_chat_template(source: Path, path: Path, template: str) -> Path:
    """A copy of a model with another chat template."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", "tokenizer.chat_template"):
            writer.add_key_value(name, field.contents(), field.types[0], field.types[-1] if field.types[1:] else None)
    writer.add_chat_template(template)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    return _finish(writer, path)


def tiny_bpe(path: Path, pre: str) -> Path:
    """Only a vocabulary: one token for each byte, and a pre-tokeniser of llama.cpp."""
    writer = gguf.GGUFWriter(path, "llama")
    _write_sizes(writer, N_FF)
    _write_attention(writer)
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]  # GPT-2 spells the other bytes from U+0100 on
    others = iter(range(256, 512))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([*(chr(byte if byte in visible else next(others)) for byte in range(256)), "<|end|>"])
    writer.add_token_types([*[gguf.TokenType.NORMAL] * 256, gguf.TokenType.CONTROL])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(256)
    writer.add_add_bos_token(False)
    return _finish(writer, path)


def tiny_mamba(path: Path, *, seed: int = 0) -> Path:
    """A recurrent model of one layer, of which llama.cpp rolls nothing back; with the vocabulary of `tiny_llama`."""
    n_inner, n_state, n_conv, n_rank = 2 * N_EMBD, 16, 4, 4
    writer = gguf.GGUFWriter(path, "mamba")
    _write_sizes(writer, 0)
    writer.add_head_count(0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_ssm_conv_kernel(n_conv)
    writer.add_ssm_inner_size(n_inner)
    writer.add_ssm_state_size(n_state)
    writer.add_ssm_time_step_rank(n_rank)
    n_vocab = _write_vocabulary(writer, WORDS, padding=0, add_bos=False)
    weights = _Random(writer, seed)
    weights.add("token_embd.weight", n_vocab, N_EMBD)
    weights.ones("output_norm.weight", N_EMBD)
    weights.ones("blk.0.attn_norm.weight", N_EMBD)
    weights.add("blk.0.ssm_in.weight", 2 * n_inner, N_EMBD)
    weights.add("blk.0.ssm_conv1d.weight", n_inner, n_conv)
    weights.add("blk.0.ssm_conv1d.bias", n_inner)
    weights.add("blk.0.ssm_x.weight", n_rank + 2 * n_state, n_inner)
    weights.add("blk.0.ssm_dt.weight", n_inner, n_rank)
    weights.add("blk.0.ssm_dt.bias", n_inner)
    writer.add_tensor("blk.0.ssm_a", -np.ones((n_inner, n_state), np.float32))
    weights.ones("blk.0.ssm_d", n_inner)
    weights.add("blk.0.ssm_out.weight", N_EMBD, n_inner)
    return _finish(writer, path)


def tiny_hybrid(path: Path, *, seed: int = 0, depth: float = 1.0, n_layer: int = 2) -> Path:
    """A hybrid of layers of convolution and a last one of attention; vocabulary and `depth` as in `tiny_llama`."""
    n_conv = 4
    layers = [f"blk.{i}" for i in range(n_layer)]
    writer = gguf.GGUFWriter(path, "lfm2")
    _write_sizes(writer, N_FF, n_layer)
    _write_attention(writer, n_head_kv=[0] * (n_layer - 1) + [N_HEAD])
    writer.add_shortconv_l_cache(n_conv)
    n_vocab = _write_vocabulary(writer, WORDS, padding=0, add_bos=False)
    weights = _Random(writer, seed)
    _add_ends(weights, n_vocab, norm="token_embd_norm")
    for layer in layers[:-1]:
        weights.ones(f"{layer}.attn_norm.weight", N_EMBD)
        weights.add(f"{layer}.shortconv.conv.weight", N_EMBD, n_conv)
        weights.add(f"{layer}.shortconv.in_proj.weight", 3 * N_EMBD, N_EMBD)
        weights.add(f"{layer}.shortconv.out_proj.weight", N_EMBD, N_EMBD, scale=depth)
    _add_attention(weights, layers[-1], depth)
    _add_head_norms(weights, layers[-1])
    for layer in layers:
        weights.ones(f"{layer}.ffn_norm.weight", N_EMBD)
        _add_feed_forward(weights, layer, depth)
    return _finish(writer, path)


def tiny_qwen35(path: Path, *, seed: int = 0, depth: float = 1.0) -> Path:
    """A hybrid of a layer of linear attention and one of attention; vocabulary and `depth` as in `tiny_llama`."""
    n_state, n_heads, n_conv = 32, 2, 4
    n_inner = n_state * n_heads
    writer = gguf.GGUFWriter(path, "qwen35")
    _write_sizes(writer, N_FF, n_layer=2)
    _write_attention(writer)
    writer.add_rope_dimension_sections([N_EMBD_HEAD // 2, 0, 0, 0])
    writer.add_ssm_conv_kernel(n_conv)
    writer.add_ssm_inner_size(n_inner)
    writer.add_ssm_state_size(n_state)
    writer.add_ssm_time_step_rank(n_heads)
    writer.add_ssm_group_count(n_heads)
    writer.add_full_attention_interval(2)
    n_vocab = _write_vocabulary(writer, WORDS, padding=0, add_bos=False)
    weights = _Random(writer, seed)
    _add_ends(weights, n_vocab)
    weights.ones("blk.0.attn_norm.weight", N_EMBD)
    weights.add("blk.0.attn_qkv.weight", 3 * n_inner, N_EMBD)
    weights.add("blk.0.attn_gate.weight", n_inner, N_EMBD)
    weights.add("blk.0.ssm_conv1d.weight", 3 * n_inner, n_conv)
    weights.add("blk.0.ssm_dt.bias", n_heads)
    weights.ones("blk.0.ssm_a", n_heads, scale=-1.0)
    for name in ("ssm_alpha", "ssm_beta"):
        weights.add(f"blk.0.{name}.weight", n_heads, N_EMBD)
    weights.ones("blk.0.ssm_norm.weight", n_state)
    weights.add("blk.0.ssm_out.weight", N_EMBD, n_inner, scale=depth)
    _add_attention(weights, "blk.1", depth, gated=True)
    _add_head_norms(weights, "blk.1")
    for layer in ("blk.0", "blk.1"):
        weights.ones(f"{layer}.post_attention_norm.weight", N_EMBD)
        _add_feed_forward(weights, layer, depth)
    return _finish(writer, path)


def tiny_gemma(path: Path, *, window: int, seed: int = 0, depth: float = 1.0) -> Path:
    """A Gemma 3; the first of two layers sees only the last `window` tokens. The rest is as in `tiny_llama`."""
    writer = gguf.GGUFWriter(path, "gemma3")
    _write_sizes(writer, N_FF, n_layer=2)
    _write_attention(writer)
    writer.add_sliding_window(window)
    writer.add_sliding_window_pattern([True, False])
    n_vocab = _write_vocabulary(writer, WORDS, padding=0, add_bos=False)
    weights = _Random(writer, seed)
    _add_ends(weights, n_vocab)
    for layer in ("blk.0", "blk.1"):
        _add_attention(weights, layer)
        _add_head_norms(weights, layer)
        weights.ones(f"{layer}.ffn_norm.weight", N_EMBD)
        _add_feed_forward(weights, layer)
        for name in ("post_attention_norm", "post_ffw_norm"):
            weights.ones(f"{layer}.{name}.weight", N_EMBD, scale=depth)
    return _finish(writer, path)


def _write_sizes(writer: gguf.GGUFWriter, n_ff: int, n_layer: int = 1) -> None:
    writer.add_context_length(N_CTX_TRAIN)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(n_layer)
    writer.add_feed_forward_length(n_ff)


def _write_attention(writer: gguf.GGUFWriter, n_head_kv: int | list[int] = N_HEAD) -> None:
    writer.add_head_count(N_HEAD)
    writer.add_head_count_kv(n_head_kv)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(N_EMBD_HEAD)
    writer.add_key_length(N_EMBD_HEAD)
    writer.add_value_length(N_EMBD_HEAD)


def _write_vocabulary(
    writer: gguf.GGUFWriter, words: tuple[str, ...], padding: int, add_bos: bool, control: tuple[str, ...] = ()
) -> int:
    """A SentencePiece vocabulary: special tokens, bytes, words, more special tokens, padding. Returns its size."""
    special = [("<unk>", gguf.TokenType.UNKNOWN), ("<s>", gguf.TokenType.CONTROL), ("</s>", gguf.TokenType.CONTROL)]
    tokens = [
        *special,
        *((f"<0x{byte:02X}>", gguf.TokenType.BYTE) for byte in range(256)),
        *((word, gguf.TokenType.NORMAL) for word in words),
        *((text, gguf.TokenType.CONTROL) for text in control),
        *((f"<unused{i}>", gguf.TokenType.UNUSED) for i in range(padding)),
    ]
    writer.add_tokenizer_model("llama")
    writer.add_token_list([text for text, _ in tokens])
    writer.add_token_scores([-float(i) for i in range(len(tokens))])
    writer.add_token_types([kind for _, kind in tokens])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(add_bos)
    return len(tokens)


class _Random:
    """Adds tensors of seeded noise; shapes as numpy has them, the reverse of ggml's."""

    def __init__(self, writer: gguf.GGUFWriter, seed: int) -> None:
        self._writer = writer
        self._random = np.random.default_rng(seed)

    def add(self, name: str, *shape: int, scale: float = 1.0) -> None:
        noise: Weights = self._random.standard_normal(shape, np.float32)
        self._writer.add_tensor(name, noise * np.float32(scale) / np.sqrt(np.float32(shape[-1])))

    def ones(self, name: str, *shape: int, scale: float = 1.0) -> None:
        self._writer.add_tensor(name, np.full(shape, scale, np.float32))


def _add_ends(weights: _Random, n_vocab: int, norm: str = "output_norm") -> None:
    """What comes before the first layer and after the last."""
    weights.add("token_embd.weight", n_vocab, N_EMBD)
    weights.add("output.weight", n_vocab, N_EMBD)
    weights.ones(f"{norm}.weight", N_EMBD)


def _add_attention(weights: _Random, layer: str, depth: float = 1.0, *, gated: bool = False) -> None:
    weights.ones(f"{layer}.attn_norm.weight", N_EMBD)
    weights.add(f"{layer}.attn_q.weight", (1 + gated) * N_EMBD, N_EMBD)
    weights.add(f"{layer}.attn_k.weight", N_EMBD, N_EMBD)
    weights.add(f"{layer}.attn_v.weight", N_EMBD, N_EMBD)
    weights.add(f"{layer}.attn_output.weight", N_EMBD, N_EMBD, scale=depth)


def _add_head_norms(weights: _Random, layer: str) -> None:
    for name in ("attn_q_norm", "attn_k_norm"):
        weights.ones(f"{layer}.{name}.weight", N_EMBD_HEAD)


def _add_feed_forward(weights: _Random, layer: str, depth: float = 1.0) -> None:
    weights.add(f"{layer}.ffn_gate.weight", N_FF, N_EMBD)
    weights.add(f"{layer}.ffn_up.weight", N_FF, N_EMBD)
    weights.add(f"{layer}.ffn_down.weight", N_EMBD, N_FF, scale=depth)


def _finish(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path if path.exists() else next(path.parent.glob(f"{path.stem}-00001-of-*.gguf"))
