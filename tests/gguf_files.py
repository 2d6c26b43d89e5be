"""Tiny GGUF files for tests: right in form, random in content."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf import TokenType

WORDS = ("▁the", "▁cat", "▁sat", "▁on", "▁mat", "▁and", "▁dog", "▁ran", "a", "b", "c", "d", "e", "f", "g", "▁")

N_EMBD = 64
N_FF = 128
N_HEAD = 2
N_EMBD_HEAD = N_EMBD // N_HEAD
N_CTX_TRAIN = 512


class _Model(gguf.GGUFWriter):
    """A file; its tensors are seeded noise, of shapes as numpy has them, the reverse of ggml's."""

    def __init__(
        self,
        path: Path,
        architecture: str,
        *,
        n_embd: int = N_EMBD,
        n_ff: int = N_FF,
        n_layer: int = 1,
        seed: int = 0,
        max_tensors: int = 0,
    ) -> None:
        super().__init__(path, architecture, split_max_tensors=max_tensors)
        self._path = path
        self._random = np.random.default_rng(seed)
        self.add(context_length=N_CTX_TRAIN, embedding_length=n_embd, block_count=n_layer, feed_forward_length=n_ff)

    left_out: tuple[str, ...] = ()  # beginnings of the names of tensors that the file lacks

    def add(self, **values: Any) -> None:
        """Keys, by the names of the writer's methods."""
        for name, value in values.items():
            getattr(self, f"add_{name}")(value)

    def write_attention(self, n_head_kv: int | list[int] = N_HEAD) -> None:
        self.add(head_count=N_HEAD, head_count_kv=n_head_kv, layer_norm_rms_eps=1e-5)
        self.add(rope_dimension_count=N_EMBD_HEAD, key_length=N_EMBD_HEAD, value_length=N_EMBD_HEAD)

    def write_gemma4(self) -> None:
        self.write_attention()
        self.add(key_length_swa=N_EMBD_HEAD, value_length_swa=N_EMBD_HEAD)
        self.add(sliding_window=64, sliding_window_pattern=[True, False], embedding_length_per_layer_input=0)

    def write_vocabulary(
        self, words: Sequence[str] = WORDS, padding: int = 0, *, add_bos: bool = False, control: Sequence[str] = ()
    ) -> int:
        """A SentencePiece vocabulary: special tokens, bytes, words, more special tokens, padding. Returns its size."""
        tokens = [
            *(("<unk>", TokenType.UNKNOWN), ("<s>", TokenType.CONTROL), ("</s>", TokenType.CONTROL)),
            *((f"<0x{byte:02X}>", TokenType.BYTE) for byte in range(256)),
            *((word, TokenType.NORMAL) for word in words),
            *((text, TokenType.CONTROL) for text in control),
            *((f"<unused{i}>", TokenType.UNUSED) for i in range(padding)),
        ]
        self.add(tokenizer_model="llama", token_list=[text for text, _ in tokens])
        self.add(token_scores=[-float(i) for i in range(len(tokens))], token_types=[kind for _, kind in tokens])
        self.add(unk_token_id=0, bos_token_id=1, eos_token_id=2, add_bos_token=add_bos)
        return len(tokens)

    def values(self, *shape: int) -> npt.NDArray[np.float32]:
        values: npt.NDArray[np.float32] = self._random.standard_normal(shape, np.float32)
        values /= np.sqrt(np.float32(shape[-1]))
        return values

    def add_tensor(self, name: str, *arguments: Any, **more: Any) -> None:
        if not name.startswith(self.left_out):
            super().add_tensor(name, *arguments, **more)

    def noise(self, name: str, *shape: int, scale: float = 1.0) -> None:
        self.add_tensor(name, self.values(*shape) * np.float32(scale))

    def noises(self, layer: str, **shapes: tuple[int, ...]) -> None:
        """Weights of a layer."""
        for name, shape in shapes.items():
            self.noise(f"{layer}.{name}.weight", *shape)

    def norms(self, layer: str, *names: str, n: int = N_EMBD, value: float = 1.0) -> None:
        for name in names:
            self.constant(f"{layer}.{name}.weight", n, value=value)

    def constant(self, name: str, *shape: int, value: float = 1.0) -> None:
        self.add_tensor(name, np.full(shape, value, np.float32))

    def ends(self, n_vocab: int, norm: str = "output_norm") -> None:
        """What comes before the first layer and after the last."""
        self.noise("token_embd.weight", n_vocab, N_EMBD)
        self.noise("output.weight", n_vocab, N_EMBD)
        self.constant(f"{norm}.weight", N_EMBD)

    def attention(self, layer: str, depth: float = 1.0, *, gated: bool = False, head_norms: bool = False) -> None:
        self.constant(f"{layer}.attn_norm.weight", N_EMBD)
        square = (N_EMBD, N_EMBD)
        self.noises(layer, attn_q=((1 + gated) * N_EMBD, N_EMBD), attn_k=square, attn_v=square)
        self.noise(f"{layer}.attn_output.weight", N_EMBD, N_EMBD, scale=depth)
        if head_norms:
            self.norms(layer, "attn_q_norm", "attn_k_norm", n=N_EMBD_HEAD)

    def feed_forward(self, layer: str, depth: float = 1.0, norm: str = "ffn_norm") -> None:
        self.constant(f"{layer}.{norm}.weight", N_EMBD)
        self.noises(layer, ffn_gate=(N_FF, N_EMBD), ffn_up=(N_FF, N_EMBD))
        self.noise(f"{layer}.ffn_down.weight", N_EMBD, N_FF, scale=depth)

    def next_token(self, layer: str) -> None:
        """What an MTP layer has besides: it begins with the token, and a little of the hidden row."""
        row = 0.2 * self._random.standard_normal((N_EMBD, N_EMBD), np.float32) / np.sqrt(np.float32(N_EMBD))
        both = np.concatenate([np.eye(N_EMBD, dtype=np.float32), row], axis=1)
        self.add_tensor(f"{layer}.nextn.eh_proj.weight", both)
        self.norms(f"{layer}.nextn", "enorm", "hnorm")

    def finish(self) -> Path:
        self.write_header_to_file()
        self.write_kv_data_to_file()
        self.write_tensors_to_file()
        self.close()
        return self._path if self._path.exists() else next(self._path.parent.glob(f"{self._path.stem}-00001-of-*.gguf"))


def tiny_llama(
    path: Path,
    *,
    words: tuple[str, ...] = WORDS,
    padding: int = 0,
    add_bos: bool = False,
    tensors: bool = True,
    seed: int = 0,
    depth: float = 1.0,
    n_layer: int = 1,
    max_tensors: int = 0,
    chat_template: str | Sequence[Mapping[str, str]] | None = None,
    control: tuple[str, ...] = (),
) -> Path:
    """A llama with a vocabulary of its own.

    `depth` is how much a layer adds: with little of it, what comes next is mostly up to the last token, and models of
    the same seed often agree, whatever their architecture.

    `control` adds special tokens, and `padding` that many unused ones; with `max_tensors` it is split into parts of so
    many tensors, and the first part's path is returned.
    """
    model = _Model(path, "llama", n_layer=n_layer, seed=seed, max_tensors=max_tensors)
    model.write_attention()
    n_vocab = model.write_vocabulary(words, padding, add_bos=add_bos, control=control)
    if chat_template is not None:
        model.add_chat_template(chat_template)
    if tensors:
        model.ends(n_vocab)
        for layer in [f"blk.{i}" for i in range(n_layer)]:
            model.attention(layer, depth)
            model.feed_forward(layer, depth)
    return model.finish()


def tiny_bpe(path: Path, pre: str) -> Path:
    """Only a vocabulary: one token for each byte, and a pre-tokeniser of llama.cpp."""
    model = _Model(path, "llama")
    model.write_attention()
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]  # GPT-2 spells the other bytes from U+0100 on
    others = iter(range(256, 512))
    tokens = [*(chr(byte if byte in visible else next(others)) for byte in range(256)), "<|end|>"]
    model.add(tokenizer_model="gpt2", tokenizer_pre=pre, token_list=tokens)
    model.add(token_types=[*[TokenType.NORMAL] * 256, TokenType.CONTROL], token_merges=["a b"])
    model.add(eos_token_id=256, add_bos_token=False)
    return model.finish()


def tiny_mamba(path: Path) -> Path:
    """A recurrent model of one layer, of which llama.cpp rolls nothing back; with the vocabulary of `tiny_llama`."""
    n_inner, n_state, n_conv, n_rank = 2 * N_EMBD, 16, 4, 4
    model = _Model(path, "mamba", n_ff=0)
    model.add(head_count=0, layer_norm_rms_eps=1e-5, ssm_conv_kernel=n_conv, ssm_inner_size=n_inner)
    model.add(ssm_state_size=n_state, ssm_time_step_rank=n_rank)
    model.noise("token_embd.weight", model.write_vocabulary(), N_EMBD)
    model.constant("output_norm.weight", N_EMBD)
    model.constant("blk.0.attn_norm.weight", N_EMBD)
    model.noises("blk.0", ssm_in=(2 * n_inner, N_EMBD), ssm_conv1d=(n_inner, n_conv))
    model.noise("blk.0.ssm_conv1d.bias", n_inner)
    model.noises("blk.0", ssm_x=(n_rank + 2 * n_state, n_inner), ssm_dt=(n_inner, n_rank))
    model.noise("blk.0.ssm_dt.bias", n_inner)
    model.constant("blk.0.ssm_a", n_inner, n_state, value=-1.0)
    model.constant("blk.0.ssm_d", n_inner)
    model.noise("blk.0.ssm_out.weight", N_EMBD, n_inner)
    return model.finish()


def tiny_hybrid(path: Path, *, seed: int = 0, depth: float = 1.0, n_layer: int = 2) -> Path:
    """A hybrid of layers of convolution and a last one of attention; vocabulary and `depth` as in `tiny_llama`."""
    n_conv, layers = 4, [f"blk.{i}" for i in range(n_layer)]
    model = _Model(path, "lfm2", n_layer=n_layer, seed=seed)
    model.write_attention(n_head_kv=[0] * (n_layer - 1) + [N_HEAD])
    model.add_shortconv_l_cache(n_conv)
    model.ends(model.write_vocabulary(), norm="token_embd_norm")
    for layer in layers[:-1]:
        model.constant(f"{layer}.attn_norm.weight", N_EMBD)
        model.noises(f"{layer}.shortconv", conv=(N_EMBD, n_conv), in_proj=(3 * N_EMBD, N_EMBD))
        model.noise(f"{layer}.shortconv.out_proj.weight", N_EMBD, N_EMBD, scale=depth)
    model.attention(layers[-1], depth, head_norms=True)
    for layer in layers:
        model.feed_forward(layer, depth)
    return model.finish()


def tiny_qwen35(path: Path, *, seed: int = 0, depth: float = 1.0, mtp: bool = False) -> Path:
    """A hybrid of a layer of linear attention and one of attention; vocabulary and `depth` as in `tiny_llama`.

    `mtp`: with a layer for multi-token prediction, which often agrees if there is little `depth`.
    """
    n_state, n_heads, n_conv = 32, 2, 4
    n_inner = n_state * n_heads
    model = _Model(path, "qwen35", n_layer=2 + mtp, seed=seed)
    model.write_attention()
    model.add(rope_dimension_sections=[N_EMBD_HEAD // 2, 0, 0, 0], ssm_conv_kernel=n_conv, ssm_inner_size=n_inner)
    model.add(ssm_state_size=n_state, ssm_time_step_rank=n_heads, ssm_group_count=n_heads, full_attention_interval=2)
    model.ends(model.write_vocabulary())
    model.constant("blk.0.attn_norm.weight", N_EMBD)
    model.noises("blk.0", attn_qkv=(3 * n_inner, N_EMBD), attn_gate=(n_inner, N_EMBD), ssm_conv1d=(3 * n_inner, n_conv))
    model.noise("blk.0.ssm_dt.bias", n_heads)
    model.constant("blk.0.ssm_a", n_heads, value=-1.0)
    model.noises("blk.0", ssm_alpha=(n_heads, N_EMBD), ssm_beta=(n_heads, N_EMBD))
    model.constant("blk.0.ssm_norm.weight", n_state)
    model.noise("blk.0.ssm_out.weight", N_EMBD, n_inner, scale=depth)
    model.attention("blk.1", depth, gated=True, head_norms=True)
    for layer in ("blk.0", "blk.1"):
        model.feed_forward(layer, depth, norm="post_attention_norm")
    if mtp:
        model.add_nextn_predict_layers(1)
        model.attention("blk.2", depth, gated=True, head_norms=True)
        model.feed_forward("blk.2", depth, norm="post_attention_norm")
        model.next_token("blk.2")
    return model.finish()


def tiny_gemma(path: Path, *, window: int, seed: int = 0, depth: float = 1.0) -> Path:
    """A Gemma 3; the first of two layers sees only the last `window` tokens. The rest is as in `tiny_llama`."""
    model = _Model(path, "gemma3", n_layer=2, seed=seed)
    model.write_attention()
    model.add(sliding_window=window, sliding_window_pattern=[True, False])
    model.ends(model.write_vocabulary())
    for layer in ("blk.0", "blk.1"):
        model.attention(layer, head_norms=True)
        model.feed_forward(layer)
        model.norms(layer, "post_attention_norm", "post_ffw_norm", value=depth)
    return model.finish()


def tiny_glm(path: Path, *, seed: int = 0, depth: float = 1.0, mtp: bool = True, trunk: bool = True) -> Path:
    """A mixture of experts with one expert and an MTP layer; vocabulary and `depth` as in `tiny_llama`.

    Without `mtp`, it names that layer, but lacks it, as files do whose conversion has left it out. Without `trunk`, it
    has nothing else, as those that --mtp has made.
    """
    model = _Model(path, "glm4moe", n_layer=3, seed=seed)
    model.write_attention()
    model.add(expert_count=1, expert_used_count=1, expert_shared_count=1, expert_feed_forward_length=N_FF)
    model.add(leading_dense_block_count=0, nextn_predict_layers=1)
    model.ends(model.write_vocabulary())
    model.left_out = ("blk.0.", "blk.1.") * (not trunk) + ("blk.2.",) * (not mtp)
    for layer in ("blk.0", "blk.1", "blk.2"):
        model.attention(layer, depth)
        model.constant(f"{layer}.post_attention_norm.weight", N_EMBD)
        model.noise(f"{layer}.ffn_gate_inp.weight", 1, N_EMBD)
        model.constant(f"{layer}.exp_probs_b.bias", 1, value=0.0)
        for name, shape in (("gate", (N_FF, N_EMBD)), ("up", (N_FF, N_EMBD)), ("down", (N_EMBD, N_FF))):
            scale = depth if name == "down" else 1.0
            model.noise(f"{layer}.ffn_{name}_exps.weight", 1, *shape, scale=scale)
            model.noise(f"{layer}.ffn_{name}_shexp.weight", *shape, scale=scale)
    model.next_token("blk.2")
    return model.finish()


def tiny_mixture(
    path: Path, *, seed: int = 0, depth: float = 1.0, n_layer: int = 3, n_expert: int = 4, max_tensors: int = 0
) -> Path:
    """A Mixtral: each token reads two of the experts of each layer; vocabulary and the rest as in `tiny_llama`."""
    model = _Model(path, "llama", n_layer=n_layer, seed=seed, max_tensors=max_tensors)
    model.write_attention()
    model.add(expert_count=n_expert, expert_used_count=2)
    model.ends(model.write_vocabulary())
    for layer in [f"blk.{i}" for i in range(n_layer)]:
        model.attention(layer, depth)
        model.constant(f"{layer}.ffn_norm.weight", N_EMBD)
        model.noises(layer, ffn_gate_inp=(n_expert, N_EMBD))
        model.noises(layer, ffn_gate_exps=(n_expert, N_FF, N_EMBD), ffn_up_exps=(n_expert, N_FF, N_EMBD))
        model.noise(f"{layer}.ffn_down_exps.weight", n_expert, N_EMBD, N_FF, scale=depth)
    return model.finish()


def tiny_step35(path: Path, *, seed: int = 0, depth: float = 1.0, n_mtp: int = 2) -> Path:
    """A Step 3.5 of two dense layers and several for multi-token prediction; the rest is as in `tiny_llama`."""
    model = _Model(path, "step35", n_layer=2 + n_mtp, seed=seed)
    model.write_attention()
    model.add(expert_feed_forward_length=N_FF, sliding_window=64)
    model.add(sliding_window_pattern=[True, False, *n_mtp * [False]], nextn_predict_layers=n_mtp)
    model.ends(model.write_vocabulary())
    for i in range(2 + n_mtp):
        model.attention(f"blk.{i}", depth)
        model.feed_forward(f"blk.{i}", depth)
        if i >= 2:
            model.next_token(f"blk.{i}")
    return model.finish()


def tiny_gemma4(path: Path, *, seed: int = 0, depth: float = 1.0) -> Path:
    """A Gemma 4; the first of two layers has a window. Vocabulary and `depth` as in `tiny_llama`."""
    model = _Model(path, "gemma4", n_layer=2, seed=seed)
    model.write_gemma4()
    model.ends(model.write_vocabulary())
    model.constant("rope_freqs.weight", N_EMBD_HEAD // 2)
    for layer in ("blk.0", "blk.1"):
        model.attention(layer, head_norms=True)
        model.feed_forward(layer)
        model.norms(layer, "post_attention_norm", "post_ffw_norm", value=depth)
    return model.finish()


def tiny_assistant(path: Path, *, seed: int = 0, depth: float = 1.0) -> Path:
    """An assistant of `tiny_gemma4`, which knows half of the dimensions of its embedding and its output."""
    n_embd = N_EMBD // 2
    model = _Model(path, "gemma4-assistant", n_layer=2, n_embd=n_embd, seed=seed)
    model.add_embedding_length_out(N_EMBD)
    model.add_nextn_predict_layers(2)
    model.write_gemma4()
    n_vocab = model.write_vocabulary()
    model.values(n_vocab, N_EMBD)  # the target's embedding
    model.add_tensor("token_embd.weight", model.values(n_vocab, N_EMBD)[:, :n_embd])  # its output
    model.constant("output_norm.weight", n_embd)
    model.constant("rope_freqs.weight", N_EMBD_HEAD // 2)
    model.add_tensor("nextn.pre_projection.weight", np.eye(n_embd, 2 * N_EMBD, dtype=np.float32))
    model.noise("nextn.post_projection.weight", N_EMBD, n_embd)
    for layer in ("blk.0", "blk.1"):
        model.constant(f"{layer}.attn_norm.weight", n_embd)
        model.noises(layer, attn_q=(N_EMBD, n_embd), attn_output=(n_embd, N_EMBD))
        model.constant(f"{layer}.attn_q_norm.weight", N_EMBD_HEAD)
        model.constant(f"{layer}.layer_output_scale.weight", 1)
        model.constant(f"{layer}.ffn_norm.weight", n_embd)
        model.noises(layer, ffn_gate=(N_FF, n_embd), ffn_up=(N_FF, n_embd), ffn_down=(n_embd, N_FF))
        model.norms(layer, "post_attention_norm", "post_ffw_norm", n=n_embd, value=depth)
    return model.finish()


def tiny_eagle3(
    path: Path,
    *,
    layers: Sequence[int] = (0, 1, 1),
    n_embd: int = N_EMBD,
    words: tuple[str, ...] = WORDS,
    seed: int = 0,
    depth: float = 1.0,
    own_ends: bool = False,
) -> Path:
    """A head for a `tiny_llama` of two layers, whose embedding and output it uses unless it has `own_ends`.

    It mostly copies its last token, as that model does with little `depth`: the two then often agree. With its own
    ends, it can predict only some tokens.
    """
    model = _Model(path, "eagle3", seed=seed)
    model.write_attention()
    model.add_array("eagle3.target_layers", list(layers))
    model.add_uint32("eagle3.target_hidden_size", n_embd)
    n_vocab = model.write_vocabulary(words)
    model.constant("output_norm.weight", N_EMBD)
    if own_ends:
        model.noise("token_embd.weight", n_vocab, N_EMBD)
        known = np.arange(n_vocab)[n_vocab // 5 :]  # the tokens that it can predict
        model.add_tensor("output.weight", model.values(n_vocab, N_EMBD)[known])
        model.add_tensor("d2t", known.astype(np.int64))
    model.noise("fc.weight", N_EMBD, len(layers) * n_embd, scale=depth)
    model.norms("blk.0", "attn_norm", "attn_norm_2", "ffn_norm")
    token = np.concatenate([np.eye(N_EMBD, dtype=np.float32), np.zeros((N_EMBD, N_EMBD), np.float32)], axis=1)
    for name, scale in (("attn_q", 4), ("attn_k", 4), ("attn_v", 1)):  # a token looks at itself
        model.add_tensor(f"blk.0.{name}.weight", np.float32(scale) * token)
    model.add_tensor("blk.0.attn_output.weight", np.eye(N_EMBD, dtype=np.float32))
    model.noises("blk.0", ffn_gate=(N_FF, N_EMBD), ffn_up=(N_FF, N_EMBD))
    model.noise("blk.0.ffn_down.weight", N_EMBD, N_FF, scale=depth)
    return model.finish()


def tiny_block(
    path: Path,
    *,
    layers: Sequence[int] = (0, 1, 1),
    size: int = 8,
    causal: bool | None = None,
    markov: bool = False,
    confidence: bool = True,
    from_anchor: bool = True,
    top_k: int = 0,
    own_ends: bool = True,
    mask: int | None = 0,
    seed: int = 0,
    depth: float = 1.0,
    **more: int,
) -> Path:
    """A block draft for a `tiny_llama` of two layers and the same seed: DFlash, DSpark (`markov`) or DFlash2 (`top_k`).

    With its own ends, the masks look at the anchor: the first candidate is mostly right where `depth` is little, the
    others are if the text repeats that token. A Markov head makes all of them right. `more`: keys of the architecture.
    """
    model = _Model(path, "dflash", seed=seed)
    model.write_attention()
    model.add_array("dflash.target_layers", list(layers))
    model.add_uint32("dflash.block_size", size)
    for key, value in more.items():
        model.add_uint32(f"dflash.{key}", value)
    if causal is not None:
        model.add_bool("dflash.attention.causal", causal)
    if mask is not None:
        model.add_uint32("tokenizer.ggml.mask_token_id", mask)
    n_vocab = model.write_vocabulary()
    tokens, output = model.values(n_vocab, N_EMBD), model.values(n_vocab, N_EMBD)  # those of the target
    axis = np.ones(N_EMBD, np.float32) / np.sqrt(np.float32(N_EMBD))
    without = np.eye(N_EMBD, dtype=np.float32) - np.outer(axis, axis)  # leaves nothing in the direction of the axis
    plain = without if own_ends else np.eye(N_EMBD, dtype=np.float32)
    if own_ends:
        embedding = tokens @ without + axis
        embedding[0 if mask is None else mask] = -axis
        model.add_tensor("token_embd.weight", embedding)
        model.add_tensor("output.weight", output @ without)
    model.constant("output_norm.weight", N_EMBD)
    model.constant("enc.output_norm.weight", N_EMBD)
    model.add_tensor("fc.weight", without @ model.values(N_EMBD, len(layers) * N_EMBD))
    model.norms("blk.0", "attn_norm", "ffn_norm")
    looks = np.zeros((N_EMBD, N_EMBD), np.float32)
    looks[N_EMBD_HEAD - 1 :: N_EMBD_HEAD] = axis  # in the dimension of each head that positions hardly rotate
    for name, sign in (("attn_q", 1), ("attn_k", -1)):
        model.add_tensor(f"blk.0.{name}.weight", sign * looks + np.float32(0.1) * model.values(N_EMBD, N_EMBD))
    model.add_tensor("blk.0.attn_v.weight", plain)
    model.add_tensor("blk.0.attn_output.weight", 4 * np.eye(N_EMBD, dtype=np.float32))
    for name in ("attn_q_norm", "attn_k_norm"):
        model.constant(f"blk.0.{name}.weight", N_EMBD_HEAD, value=0.85)
    model.noises("blk.0", ffn_gate=(N_FF, N_EMBD), ffn_up=(N_FF, N_EMBD))
    model.noise("blk.0.ffn_down.weight", N_EMBD, N_FF, scale=depth)
    if markov:
        model.add_bool("dflash.sample_from_anchor", from_anchor)
        model.add_bool("dflash.has_confidence_head", confidence)
        model.add_tensor("markov_w1.weight", 32 * tokens)
        model.add_tensor("markov_w2.weight", output)
        if confidence:
            model.noise("conf_proj.weight", 1, 2 * N_EMBD)
    if top_k:
        for key, value in {"selector_rank": N_EMBD, "selector_top_k": top_k, "conv_kernel_size": 3}.items():
            model.add_uint32(f"dflash.{key}", value)
        model.add_uint32("dflash.conv_group_size", 16)
        model.add_tensor("selector_predecessor.weight", tokens)
        model.add_tensor("selector_successor.weight", output)
        model.noise("selector_hidden.weight", N_EMBD, N_EMBD)
        for part in ("attn", "ffn"):
            base = np.zeros((2, 3, N_EMBD), np.float32)
            base[:, 0] = 1.0
            model.add_tensor(f"blk.0.{part}_conv_base", base)
            model.noise(f"blk.0.{part}_conv_proj.weight", 2 * 3 * N_EMBD // 16, N_EMBD, scale=depth)
    return model.finish()
