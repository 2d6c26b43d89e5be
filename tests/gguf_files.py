"""Tiny GGUF files for tests: right in form, random in content."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

Weights = npt.NDArray[np.float32]

WORDS = ("▁the", "▁cat", "▁sat", "▁on", "▁mat", "▁and", "▁dog", "▁ran", "a", "b", "c", "d", "e", "f", "g", "▁")

N_EMBD = 64
N_FF = 128
N_HEAD = 2
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
    max_tensors: int = 0,
) -> Path:
    """A llama of one layer, with a vocabulary of its own unless told otherwise.

    `padding` adds that many unused tokens; with `max_tensors` it is split into parts of so many tensors, and the
    first part's path is returned.
    """
    writer = gguf.GGUFWriter(path, "llama", split_max_tensors=max_tensors)
    _write_sizes(writer, N_FF)
    writer.add_head_count(N_HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(N_EMBD // N_HEAD)
    n_vocab = _write_vocabulary(writer, words, padding, add_bos) if vocabulary else 32
    if not vocabulary:
        writer.add_vocab_size(n_vocab)
    if tensors:
        weights = _Random(writer, seed)
        weights.add("token_embd.weight", n_vocab, N_EMBD)
        weights.add("output.weight", n_vocab, N_EMBD)
        weights.ones("output_norm.weight", N_EMBD)
        weights.ones("blk.0.attn_norm.weight", N_EMBD)
        weights.ones("blk.0.ffn_norm.weight", N_EMBD)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            weights.add(f"blk.0.{name}.weight", N_EMBD, N_EMBD)
        weights.add("blk.0.ffn_gate.weight", N_FF, N_EMBD)
        weights.add("blk.0.ffn_up.weight", N_FF, N_EMBD)
        weights.add("blk.0.ffn_down.weight", N_EMBD, N_FF)
    return _finish(writer, path)


def tiny_mamba(path: Path, *, seed: int = 0) -> Path:
    """A recurrent model of one layer, with the vocabulary of `tiny_llama`."""
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


def _write_sizes(writer: gguf.GGUFWriter, n_ff: int) -> None:
    writer.add_context_length(N_CTX_TRAIN)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(1)
    writer.add_feed_forward_length(n_ff)


def _write_vocabulary(writer: gguf.GGUFWriter, words: tuple[str, ...], padding: int, add_bos: bool) -> int:
    """A SentencePiece vocabulary: special tokens, bytes, words, padding. Returns its size."""
    special = [("<unk>", gguf.TokenType.UNKNOWN), ("<s>", gguf.TokenType.CONTROL), ("</s>", gguf.TokenType.CONTROL)]
    tokens = [
        *special,
        *((f"<0x{byte:02X}>", gguf.TokenType.BYTE) for byte in range(256)),
        *((word, gguf.TokenType.NORMAL) for word in words),
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

    def add(self, name: str, *shape: int) -> None:
        noise: Weights = self._random.standard_normal(shape, np.float32)
        self._writer.add_tensor(name, noise / np.sqrt(np.float32(shape[-1])))

    def ones(self, name: str, *shape: int) -> None:
        self._writer.add_tensor(name, np.ones(shape, np.float32))


def _finish(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path if path.exists() else next(path.parent.glob(f"{path.stem}-00001-of-*.gguf"))
