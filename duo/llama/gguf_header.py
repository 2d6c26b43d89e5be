"""The header of a GGUF file: its tensors and its metadata, a check of them, and what they say about a model.

check_header() refuses values on which llama.cpp would crash, because it divides by them, or allocates as much as they
say. llama.cpp asserts others, which ends the process with one line: see duo.llama.lifeline.
"""

import ctypes
import functools
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from duo.errors import ModelError
from duo.llama import library
from duo.llama.fingerprint import Fingerprint, text_difference
from duo.llama.limits import failure

DAMAGED = "the file is truncated or damaged: download it again"
_TOKENS = "tokenizer.ggml.tokens"
MAX_LAYERS = 512  # llama-hparams.h, LLAMA_MAX_LAYERS

# gguf.h, enum gguf_type, and the formats of struct
_INTEGERS = dict(enumerate("BbHhIi")) | {7: "?", 10: "Q", 11: "q"}
_STRING, _ARRAY = 8, 9
_INTEGER_TENSORS = range(24, 28)  # ggml.h, enum ggml_type
_MAX_NUMBERS = 4096  # in an array: more than any model has layers
_MERGES = "tokenizer.ggml.merges"  # many texts, which are not read

# llama.cpp reserves four bytes for each token of a window, and returns the length of a context as an int32.
_MAX_VALUES = {"attention.sliding_window": 2**24, "context_length": 2**31 - 1}
_NO_WINDOW = ("attention.sliding_window", 2**32 - 1)
# Keys that llama.cpp divides by or steps with, and the architectures of which it does not: there 0 has a meaning.
_DIVISORS = {
    "attention.output_group_count": "", "experts_per_group": "", "full_attention_interval": "",
    "interleave_moe_layer_step": "llama4", "rope.dimension_count": "", "ssm.group_count": "plamo2",
    "ssm.time_step_rank": "", "wkv.head_size": "",
}  # fmt: skip
# Architectures of which llama.cpp divides by the number of heads, or by that of the experts that one token uses.
_BY_HEADS = ("deepseek2", "olmo2", "phimoe")
_BY_EXPERTS = ("glm4moe", "grovemoe", "llada-moe", "nemotron_h_moe", "qwen35moe", "qwen4exp")
_LINEAR = ("qwen35", "qwen35moe")  # llama.cpp reads tensors of their linear attention also if they are absent

# Architectures of heads: see duo.llama.heads. The second, for Gemma 4, reads the target's cache, too. The third
# is that of all block drafts.
EAGLE3, ASSISTANT, DFLASH = "eagle3", "gemma4-assistant", "dflash"
# Architectures of which llama.cpp can decode an MTP layer by itself (src/models, graph_mtp).
_MTP_TARGETS = (
    "bailingmoe3", "cohere2moe", "deepseek2", "deepseek32", "glm-dsa", "glm4moe", "hy_v3", "mimo2", "nemotron_h_moe",
    "qwen35", "qwen35moe", "qwen3next", "step35",
)  # fmt: skip
_CHAINS = ("mimo2", "step35")  # architectures with several MTP layers, each for one depth
_MTP_TENSORS = ("eh_proj", "enorm", "hnorm")
_BLOCK_TENSORS = {"selector_hidden.weight": "DFlash2", "markov_w1.weight": "DSpark"}
_FIRST_LAYER = "blk.0.attn_norm.weight"  # llama.cpp knows a file with nothing but MTP layers by its absence
_ENCODERS = ("pooling_type", "attention.causal", "decoder_start_token_id")  # keys of embedding models, BERT, T5
# Keys of models that keep a state, which cannot be rolled back token by token.
_STATES = ("ssm.conv_kernel", "ssm.state_size", "shortconv.l_cache", "wkv.head_size", "kda.head_dim")
# llama.h, enum llama_vocab_type, by the names of tokenisers. Others differ in their tokens, too.
_TYPES = {"llama": 1, "gpt2": 2, "bert": 3, "t5": 4, "rwkv": 5, "plamo2": 6}


class GgufHeader:
    """The header of one GGUF file.

    `tensors`: bytes of each, by name. `integers`: names of those that have integers. `values`: the integers, truth
    values or texts of each key, one or an array; none for other types.
    """

    def __init__(self, path: Path) -> None:
        """Read it. Raises ModelError for a missing file, or one that is not a GGUF file."""
        if not path.is_file():
            raise ModelError(f"{path}: no such file")
        lib = _gguf()
        with library.errors_of(path) as errors:
            pointer = lib.gguf_init_from_file(bytes(path), _InitParams(no_alloc=True))
        if not pointer:
            reason = errors[0].partition(": ")[2] if errors else "no reason given"
            if "invalid magic" in reason or "read magic" in reason:
                raise ModelError(f"{path}: not a GGUF file")
            raise failure(path, "\n".join(errors), "its header needs more", f"{DAMAGED} ({reason})")
        try:
            tensors, keys = range(lib.gguf_get_n_tensors(pointer)), range(lib.gguf_get_n_kv(pointer))
            self.tensors: dict[str, int] = {
                _decoded(lib.gguf_get_tensor_name(pointer, i)): lib.gguf_get_tensor_size(pointer, i) for i in tensors
            }
            kinds = {name: lib.gguf_get_tensor_type(pointer, i) for i, name in enumerate(self.tensors)}
            self.integers = [name for name, kind in kinds.items() if kind in _INTEGER_TENSORS]
            self.values = {(key := _decoded(lib.gguf_get_key(pointer, i))): _values(pointer, i, key) for i in keys}
        finally:
            lib.gguf_free(pointer)
        self.path = path
        self.tokens = tuple(text for text in self.values.pop(_TOKENS, ()) if isinstance(text, bytes))
        self.architecture = self.text("general.architecture")

    def add_files(self, paths: Iterable[Path]) -> None:
        """Add the tensors in the model's other files. Raises ModelError."""
        for path in paths:
            self.tensors |= GgufHeader(path).tensors

    def use_template(self, source: str) -> None:
        """Replace the chat templates of the file."""
        others = {key: value for key, value in self.values.items() if not key.startswith("tokenizer.chat_template")}
        self.values = others | {"tokenizer.chat_template": [source.encode("utf-8", "surrogateescape")]}

    def has(self, key: str) -> bool:
        """Whether there is a value, of any type, for the architecture's `key`."""
        return f"{self.architecture}.{key}" in self.values

    @property
    def head_sizes(self) -> tuple[int, int]:
        """Values of a token in the K and V cache of a head."""
        per_head = self.number("embedding_length") // max(1, *(self.numbers("attention.head_count") or [0]))
        return self.number("attention.key_length") or per_head, self.number("attention.value_length") or per_head

    def number(self, key: str) -> int:
        """The maximum of numbers(); 0 if there are none."""
        return max(self.numbers(key), default=0)

    def numbers(self, key: str) -> list[int]:
        """The integer, or the array of integers, of the architecture's `key`, none below 0; empty for anything else."""
        values = self.values.get(f"{self.architecture}.{key}", ())
        return [max(0, number) for number in values if not isinstance(number, bytes)]

    def flag(self, key: str, default: bool) -> bool:
        """The truth value of the architecture's `key`."""
        return bool((self.numbers(key) or [default])[0])

    def text(self, key: str) -> str:
        """The text of `key`; empty if there is no such key, or something else."""
        match self.values.get(key):
            case [bytes() as text]:
                return _decoded(text)
        return ""

    def integer(self, key: str) -> int | None:
        """The integer or the truth value of `key`; None if there is no such key, or something else."""
        match self.values.get(key):
            case [int() as value]:
                return value
        return None

    @property
    def keeps_state(self) -> bool:
        """Whether the model is recurrent or hybrid: it cannot draft."""
        return any(map(self.has, _STATES))

    @property
    def is_recurrent(self) -> bool:
        """Whether the model has no attention: it cannot be a target with a draft."""
        return self.keeps_state and not self.number("attention.head_count")

    @property
    def quantisation(self) -> str:
        """The format, as file names spell it, such as Q4_K_M; empty if the file does not say."""
        file_type = self.integer("general.file_type")
        name = library.file_type_name(file_type) if file_type is not None else ""
        kind, _, size = name.partition(" - ")
        if size in ("Small", "Medium", "Large") and name != "Q2_K - Medium":
            return f"{kind}_{size[0]}"
        return "" if "unknown" in name else kind

    def shares_vocabulary(self, other: "GgufHeader") -> bool:
        """Whether one could draft for the other, as far as headers can tell."""
        return not (self.vocabulary().difference(other.vocabulary()) or text_difference(self.tokens, other.tokens))

    def vocabulary(self) -> Fingerprint:
        """The fingerprint of the vocabulary as far as the file tells, without hashes."""
        vocab_type = _TYPES.get(self.text("tokenizer.ggml.model"), -1)
        return Fingerprint(vocab_type, len(self.tokens), self._added("bos"), self._added("eos"))

    def _added(self, name: str) -> int | None:
        """The token `name` (bos, eos) if it is added to a text; -1: it is not; None: the file does not say."""
        is_added = self.integer(f"tokenizer.ggml.add_{name}_token")
        return self.integer(f"tokenizer.ggml.{name}_token_id") if is_added else None if is_added is None else -1


def _decoded(text: bytes) -> str:
    return text.decode("utf-8", "replace")


def _values(pointer: int, index: int, key: str) -> list[int | bytes]:
    lib = _gguf()
    kind, n = lib.gguf_get_kv_type(pointer, index), lib.gguf_get_arr_n(pointer, index)
    if kind == _ARRAY:
        kind = lib.gguf_get_arr_type(pointer, index)
    if kind == _STRING and key != _MERGES:
        return [lib.gguf_get_arr_str(pointer, index, i) for i in range(n)]
    if kind not in _INTEGERS or not n:
        return []
    numbers = struct.Struct(f"={min(n, _MAX_NUMBERS)}{_INTEGERS[kind]}")
    return list(numbers.unpack(ctypes.string_at(lib.gguf_get_arr_data(pointer, index), numbers.size)))


class _InitParams(ctypes.Structure):
    """gguf.h, struct gguf_init_params."""

    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p))


@functools.cache
def _gguf() -> ctypes.CDLL:
    lib = library.bind(
        "gguf_", get_n_tensors="np", get_tensor_name="spn", get_tensor_size="zpn", get_tensor_type="ipn",
        get_n_kv="np", get_key="spn", get_kv_type="ipn", get_arr_type="ipn", get_arr_n="zpn", get_arr_data="ppn",
        get_arr_str="spnz", free="vp",
    )  # fmt: skip
    lib.gguf_init_from_file.restype, lib.gguf_init_from_file.argtypes = ctypes.c_void_p, [ctypes.c_char_p, _InitParams]
    return lib


def check_header(header: GgufHeader, *, vocabulary_only: bool = False) -> None:
    """Check a file that llama.cpp is about to load, or of which it loads only the vocabulary. Raises ModelError."""
    if header.integer("split.no"):
        raise ModelError(f"{header.path}: name the first file of a split model (-00001-of-0000N.gguf)")
    # llama.cpp would fill a vocabulary of no kind with as many tokens as the file says.
    if header.text("tokenizer.ggml.model") in ("none", "no_vocab") or not header.tokens:
        raise ModelError(f"{header.path}: this GGUF has no vocabulary")
    if not vocabulary_only and (fault := next(_faults(header), "")):
        raise ModelError(f"{header.path}: {fault}: the file is damaged")


def _faults(header: GgufHeader) -> Iterator[str]:
    architecture = header.architecture
    for key, allowed in _DIVISORS.items():
        if header.numbers(key) == [0] and architecture != allowed:
            yield f"{architecture}.{key} is 0"
    if architecture in _BY_HEADS and not any(header.numbers("attention.head_count")[:1]):
        yield f"{architecture}.attention.head_count is 0"
    if architecture in _BY_EXPERTS and not any(map(header.number, ("expert_count", "expert_feed_forward_length"))):
        yield f"{architecture}.expert_count is 0"
    for key, most in _MAX_VALUES.items():
        if (value := header.number(key)) > most and (key, value) != _NO_WINDOW:
            yield f"{architecture}.{key} is {value}"
    # llama.cpp multiplies by no integers, and calls NULL instead. It does not multiply by tables of experts by token,
    # nor by the vocabulary of a head.
    yield from (f"{name} has integers" for name in header.integers if "tid2eid" not in name and name != "d2t")
    if architecture in _LINEAR and "split.count" not in header.values:
        linear = [name.removesuffix("ssm_out.weight") for name in header.tensors if name.endswith(".ssm_out.weight")]
        needed = (f"{layer}{name}.weight" for layer in linear for name in ("attn_qkv", "attn_gate"))
        yield from (f"there is no tensor {name}" for name in needed if name not in header.tensors)


def check_not_head(header: GgufHeader) -> None:
    """Raise ModelError if this is the header of a head, for a draft in another process than its target."""
    if kind := head_kind(header):
        why = "it reads the target's hidden rows, so it is a local draft, in the target's process"
        raise ModelError(f"{header.path}: {named(kind)}: {why}")


def named(kind: str) -> str:
    """A head of this kind, with its article."""
    return f"a {kind} draft" if kind[0] == "D" else f"an {kind} head"


def head_kind(header: GgufHeader) -> str:
    """EAGLE-3, MTP, DFlash, DSpark or DFlash2, if the model is a head without its target; empty for others."""
    if header.architecture == EAGLE3:
        return "EAGLE-3"
    if header.architecture == DFLASH:
        return next((kind for name, kind in _BLOCK_TENSORS.items() if name in header.tensors), "DFlash")
    is_mtp = header.architecture == ASSISTANT or (_FIRST_LAYER not in header.tensors and has_mtp(header))
    return "MTP" if is_mtp else ""


def has_mtp(header: GgufHeader) -> bool:
    """Whether the files that were read have a layer for multi-token prediction (MTP) that llama.cpp can draft with."""
    n_blocks, n = header.number("block_count"), n_mtp(header)
    is_known = header.architecture in _MTP_TARGETS and (n == 1 or (n > 1 and header.architecture in _CHAINS))
    needed = (f"blk.{n_blocks - i}.nextn.{name}.weight" for i in range(1, n + 1) for name in _MTP_TENSORS)
    return is_known and all(name in header.tensors for name in needed)


def n_mtp(header: GgufHeader) -> int:
    """Layers for multi-token prediction that the header names; 1 for those that one decode runs together."""
    return 1 if header.architecture == ASSISTANT else header.number("nextn_predict_layers")


def shape_of(header: GgufHeader) -> str:
    """What a model has in common with its MTP head."""
    if header.architecture == ASSISTANT:
        return f"a gemma4 with hidden rows of {header.number('embedding_length_out')}"
    if header.architecture == "gemma4":
        return f"a gemma4 with hidden rows of {header.number('embedding_length')}"
    n_layer = header.number("block_count") - header.number("nextn_predict_layers")
    return f"a {header.architecture} of {n_layer} layers with hidden rows of {header.number('embedding_length')}"


def may_fit(header: GgufHeader, target: GgufHeader) -> bool:
    """Whether a head was made for such a target, as far as headers can tell."""
    if header.architecture in (EAGLE3, DFLASH):
        key = "target_hidden_size" if header.architecture == EAGLE3 else "embedding_length"
        return header.number(key) == target.number("embedding_length")
    return shape_of(header) == shape_of(target)


class NoTextModelError(ModelError):
    """A valid GGUF file that continues no text: an encoder, a projector of images."""


def check_text_model(header: GgufHeader) -> None:
    """Raise NoTextModelError unless this is the header of a model that continues text."""
    if header.text("general.type") not in ("", "model") or not header.tokens:
        raise NoTextModelError(f"{header.path}: not a text model")
    if header.architecture != DFLASH and any(map(header.has, _ENCODERS)):
        raise NoTextModelError(f"{header.path}: an encoder, which continues no text")
