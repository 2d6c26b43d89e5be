"""Model: weights and vocabulary of one GGUF file. ModelSize: the memory that they need, their KV cache and buffers."""

import ctypes
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import llama_cpp

from duo.config import CACHE_TYPES, EXPERTS, SPLIT_MODES, ContextConfig, ModelConfig
from duo.errors import ModelError, UsageError
from duo.llama import library
from duo.llama.build import CPU
from duo.llama.chat_template import ChatTemplate
from duo.llama.devices import RPC, Device, devices_for, holders
from duo.llama.gguf_header import ASSISTANT, DAMAGED, MAX_LAYERS, GgufHeader, check_header, has_mtp, head_kind
from duo.llama.lifeline import lifeline
from duo.llama.limits import failure, of_size
from duo.llama.overrides import Override, as_array, read_overrides
from duo.llama.vocabulary import Vocabulary

Progress = Callable[[float], bool]  # called with a share from 0 to 1; False stops the loading

_LAYER = re.compile(r"(?:^|\.)blk\.(\d+)\.")
# A layer with tensors of the first kind and none of the second is recurrent: it has no KV cache.
_KIND = re.compile(r"^blk\.(\d+)\.(ssm_|attn_k\.)")
# llama-arch.cpp, LLM_TENSOR_LAYER_INPUT: one row is read per token, and llama.cpp keeps it on the host.
_INPUT = re.compile(r"(token_embd|token_embd_norm|per_layer_token_embd|position_embd|token_types)\.")
_COPIES = 4  # ggml-backend.cpp, GGML_SCHED_MAX_COPIES: of what a device receives, if there are several
BRANCH_CELLS = 32  # for each branch, besides those that it shares with the text: see Context.branch
_CELLS = 256  # of which the number of cells is a multiple


class Model(Vocabulary):
    """A loaded model. Immutable: any number of contexts on any threads may share it."""

    was_found = False  # beside the target: nobody has asked for it

    def __init__(self, config: ModelConfig, progress: Progress | None = None, *, vocabulary_only: bool = False) -> None:
        """Load the file, or only its vocabulary. Raises ModelError, DeviceError or UsageError."""
        self.config = config
        self.devices = devices_for(config)
        self.is_remote = any(device.kind == RPC for device in self.devices)  # an RPC server holds some of its layers
        call = lifeline if self.is_remote else nullcontext()
        header = GgufHeader(config.path)
        if config.chat_template is not None:
            header.use_template(config.chat_template)
        if config.chat_template or config.template_variables:  # invalid ones fail before the weights are loaded
            ChatTemplate(config.chat_template or "", name="chat_template", variables=config.template_variables)
        check_header(header, vocabulary_only=vocabulary_only)
        if not vocabulary_only:
            self.size = model_size(config, header, self.devices)
        self._overrides = () if vocabulary_only else self.size.overrides
        self.head_kind = head_kind(header)  # EAGLE-3 or MTP, if it is a head; empty for a model
        # Whether it has a layer for multi-token prediction, which is loaded.
        loads_mtp = not vocabulary_only and (config.heads or self.head_kind == "MTP")
        self.shares_cache = header.architecture == ASSISTANT  # a head without a cache, which reads that of its target
        self.has_mtp = loads_mtp and (self.shares_cache or has_mtp(header))
        pointer = self._load(progress, vocabulary_only, call)
        super().__init__(pointer, header, call)
        self.template_variables = config.template_variables
        if self.adds_bos and (
            self.bos < 0 or (self.adds_eos and self.eos < 0)
        ):  # llama.cpp would abort at the first prompt
            self.close()
            raise ModelError(f"{self.path}: the vocabulary adds a BOS or EOS that it lacks: the file is damaged")
        description = ctypes.create_string_buffer(256)
        llama_cpp.llama_model_desc(pointer, description, len(description))
        self.description = description.value.decode()  # architecture, size and quantisation
        self.quantisation = library.file_type_name(llama_cpp.llama_model_ftype(pointer))  # such as Q4_0
        self.n_bytes = int(llama_cpp.llama_model_size(pointer))  # of all weights
        self.n_params = int(llama_cpp.llama_model_n_params(pointer))
        self.n_layer = int(llama_cpp.llama_model_n_layer(pointer))
        self.n_embd = int(llama_cpp.llama_model_n_embd(pointer))
        self.n_embd_out = int(llama_cpp.llama_model_n_embd_out(pointer))  # of its hidden rows
        self.n_ctx_train = int(llama_cpp.llama_model_n_ctx_train(pointer))
        # Whether its memory of a text is one recurrent state, which cannot be rolled back.
        self.is_recurrent = bool(llama_cpp.llama_model_is_recurrent(pointer))
        # Whether any number of tokens can be rolled back. A hybrid model may support a few: see Context.n_rollback.
        self.can_roll_back = not self.is_recurrent and not llama_cpp.llama_model_is_hybrid(pointer)
        n_given = config.n_gpu_layers if self.devices else 0  # llama.cpp counts the output as one more
        self.n_offloaded = min(self.n_layer, max(0, n_given - 1)) if n_given >= 0 else self.n_layer
        on_cpu = {CPU} if 0 <= n_given <= self.n_layer else set()
        self.layer_places = frozenset(
            {device.name for device in self.devices} | on_cpu
        )  # names of what holds its layers
        self.places = self.layer_places | {each.device for each in self._overrides}  # and single tensors of them

        if not vocabulary_only:
            holders.add(self)

    def held_on(self, device: Device) -> int:
        """Bytes of its weights and caches on one of its devices, in proportion to `tensor_split`."""
        if self.closed or device not in self.devices:
            return 0
        n, i, split = len(self.devices), self.devices.index(device), self.config.tensor_split
        share = split[i] / sum(split) if len(split) == n and any(split) else 1 / n
        caches = sum(getattr(child, "n_device_bytes", 0) for child in list(self._children))
        named = self.size.elsewhere.get(device.name, Moved()).n_bytes
        return named + int(share * (self.size.offloaded_bytes(self.n_offloaded) + caches))

    def _load(self, progress: Progress | None, vocabulary_only: bool, call: AbstractContextManager[None]) -> Any:
        config, path = self.config, self.config.path
        params = llama_cpp.llama_model_default_params()
        params.load_mode = config.use_mmap + 2 * config.use_mlock  # llama.h, enum llama_load_mode
        params.vocab_only = vocabulary_only
        params.load_mtp = self.has_mtp
        # Kernels for AMX end the process in a segmentation fault (llama.cpp's issue 20824).
        params.use_extra_bufts = "AMX_INT8 = 1" not in library.system_info()
        # Never NULL: that would be all devices, including those for the other model.
        pointers = (ctypes.c_void_p * (len(self.devices) + 1))(*(device.pointer for device in self.devices))
        params.devices = ctypes.addressof(pointers)
        split_mode = config.split_mode if self.devices else "layer"  # no tensors are split over no device
        params.n_gpu_layers, params.split_mode = config.n_gpu_layers, SPLIT_MODES.index(split_mode)
        params.main_gpu = 0 if config.split_mode == "none" else config.main_gpu  # then there is one device
        most = llama_cpp.llama_max_devices()
        if len(config.tensor_split) > most:
            raise UsageError(f"tensor_split: llama.cpp supports at most {most} devices", "tensor_split")
        if config.tensor_split:
            params.tensor_split = (ctypes.c_float * most)(*config.tensor_split)
        overrides = as_array(self._overrides)
        params.tensor_buft_overrides = ctypes.addressof(overrides)

        def on_progress(share: float, _: ctypes.c_void_p) -> bool:
            lifeline.beat()
            return progress is None or progress(share)

        params.progress_callback = llama_cpp.llama_progress_callback(on_progress)
        lifeline.is_loading = True
        needs = f"its weights need {of_size(self.size.n_bytes)}" if not vocabulary_only else "its vocabulary needs more"
        with library.errors_of(path, needs) as errors, call:
            pointer = llama_cpp.llama_model_load_from_file(bytes(path), params)
        lifeline.is_loading = False
        if not pointer:
            log = "\n".join(errors)
            cause = next(iter(log.partition("error loading model: ")[2].splitlines()), "no reason given")
            if "regular expression" in cause:  # a quantifier after a look-ahead
                raise config.error("override_tensor", f": llama.cpp refuses a pattern: {cause}")
            is_damaged = "not within the file bounds" in log or "failed to read" in log
            raise failure(path, log, needs, DAMAGED if is_damaged else f"llama.cpp cannot load it: {cause}")
        return pointer


def n_cells(config: ContextConfig) -> int:
    """The number of cells, one per token: llama.cpp rounds it up."""
    return -(-max(config.n_ctx + config.n_branches * BRANCH_CELLS, config.n_cells) // _CELLS) * _CELLS


class Moved(NamedTuple):
    """Bytes of weights that overrides place on a device; of these, the experts' and those of which one row is read."""

    n_bytes: int = 0
    experts: int = 0
    inputs: int = 0


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Sizes of one model, in bytes unless stated otherwise."""

    layers: tuple[int, ...]  # weights of each layer, first to last, but for those that are elsewhere
    output: int  # weights of the output layer; of the token embedding if that is the same tensor
    largest: int  # the largest tensor of any layer
    n_bytes: int  # all weights
    cache_widths: tuple[tuple[int, int], ...]  # values of one token in the K and V cache of each layer
    header: GgufHeader = field(compare=False)
    experts: Sequence[int] = ()  # of `layers`, the experts'
    share: float = 1.0  # of the weights of experts: what one token reads
    elsewhere: Mapping[str, Moved] = field(default_factory=dict)  # by device
    overrides: Sequence[Override] = field(default=(), compare=False)  # which place the latter

    def offloaded_bytes(self, n_layers: int) -> int:
        """Weights of the last `n_layers` layers and the output, which are on devices."""
        return sum(self.layers[len(self.layers) - n_layers :]) + self.output

    def expert_bytes(self, n_offloaded: int) -> tuple[int, int]:
        """Weights of all experts, and of those on the CPU, if the last `n_offloaded` layers are on devices."""
        total = sum(self.experts) + sum(each.experts for each in self.elsewhere.values())
        here = sum(self.experts[: len(self.experts) - n_offloaded])
        return total, here + self.elsewhere.get(CPU, Moved()).experts

    def cache_bytes(self, config: ContextConfig) -> tuple[int, ...]:
        """KV cache of each layer: sliding windows in full, the states of recurrent layers, a few MiB, not at all."""
        cells = n_cells(config)
        per_k, per_v = CACHE_TYPES[config.type_k][1], CACHE_TYPES[config.type_v][1]
        return tuple(int(cells * (k * per_k + v * per_v)) for k, v in self.cache_widths)

    def compute_bytes(self, config: ContextConfig, n_devices: int = 2) -> int:
        """An upper estimate of the compute buffers of each device with layers, of `n_devices` in use.

        For a batch of n_ubatch tokens: seven times the embedding (the residual, the normed one, Q and its gate, K, V
        and a result), and the embedding that comes from the host or the device before. Then the larger of the logits
        and of what a layer needs: the attention masks, and the larger of its feed-forward halves and, without flash
        attention, the scores of all heads. Float32; the masks are float16 with flash attention.
        """
        number, cells, flash = self.header.number, n_cells(config), config.flash_attn != "off"
        n_tokens = min(config.n_ubatch, config.n_batch, cells)
        n_copies = _COPIES if n_devices > 1 else 1
        n_masks = 2 if number("attention.sliding_window") else 1
        # Of the widest layer, over all experts that one token uses.
        n_ff = max(number("feed_forward_length"), number("expert_used_count") * number("expert_feed_forward_length"))
        embeddings = n_tokens * 4 * number("embedding_length") * (7 + n_copies)
        masks = n_tokens * (2 if flash else 4) * cells * n_masks * n_copies
        scores = 0 if flash else self.scores_bytes(config)
        logits = min(n_tokens, config.n_reserved) * 4 * len(self.header.tokens)
        return embeddings + max(logits, masks + max(scores, n_tokens * 4 * 2 * n_ff))

    def scores_bytes(self, config: ContextConfig) -> int:
        """The scores of all heads of a layer for a batch of n_ubatch tokens, without flash attention."""
        cells = n_cells(config)
        return min(config.n_ubatch, config.n_batch, cells) * 4 * self.header.number("attention.head_count") * cells

    def staging_bytes(self, config: ContextConfig) -> int:
        """More of them if layers stay on the host: in a prefill, tensors and caches are copied to a device in turn."""
        return max(self.largest, *self.cache_bytes(config), 0)


def model_size(
    config: ModelConfig, header: GgufHeader | None = None, devices: Sequence[Device] | None = ()
) -> ModelSize:
    """Read the sizes from all headers of a model; `header`: the first. Raises ModelError, UsageError for overrides.

    `devices` None: they are not known.
    """
    header = header or GgufHeader(config.path)
    header.add_files(config.shards[1:])
    overrides = read_overrides(config, header, devices)
    named = {name: each.device for each in reversed(overrides) for name in each.names}  # the first counts
    layers, output, largest = [0] * min(header.number("block_count"), MAX_LAYERS), 0, 0
    experts, elsewhere = [0] * len(layers), dict[str, Moved]()
    is_tied = "output.weight" not in header.tensors  # the output reads all rows of the token embedding
    for name, size in header.tensors.items():
        match, of_experts = _LAYER.search(name), size if re.search(EXPERTS, name) else 0
        if match:
            largest = max(largest, size)
        if device := named.get(name):
            of_input = size if _INPUT.match(name) and not (is_tied and name == "token_embd.weight") else 0
            before = elsewhere.get(device, Moved())
            elsewhere[device] = Moved(*map(sum, zip(before, (size, of_experts, of_input), strict=True)))
        elif match and layers:
            layers[min(int(match[1]), len(layers) - 1)] += size
            experts[min(int(match[1]), len(layers) - 1)] += of_experts
        elif not _INPUT.match(name):
            output += size
    if is_tied and "token_embd.weight" not in named:
        output += header.tensors.get("token_embd.weight", 0)
    n_bytes, widths = sum(header.tensors.values()), _cache_widths(header, len(layers))
    share = header.number("expert_used_count") / max(1, header.number("expert_count"))
    mixture = tuple(experts), share if 0 < share <= 1 else 1.0, elsewhere, overrides
    return ModelSize(tuple(layers), output, largest, n_bytes, widths, header, *mixture)


def _cache_widths(header: GgufHeader, n_layer: int) -> tuple[tuple[int, int], ...]:
    """Values of one token in the K and V cache of each layer."""
    heads = header.numbers("attention.head_count") or [0]
    k, v = header.head_sizes
    if header.number("attention.key_length_mla"):
        v = 0  # multi-header latent attention stores both in K
    heads_kv = header.numbers("attention.head_count_kv") or heads
    heads_kv = heads_kv * n_layer if len(heads_kv) == 1 else [*heads_kv, *[0] * n_layer]
    kinds = {match.groups() for match in map(_KIND.search, header.tensors) if match}
    recurrent = {int(i) for i, kind in kinds if kind == "ssm_" and (i, "attn_k.") not in kinds}
    if header.architecture == ASSISTANT:  # a head without a cache
        return n_layer * ((0, 0),)
    if head_kind(header):  # the layers of the target are not in the file
        recurrent |= set(range(n_layer)) - {int(match[1]) for match in map(_LAYER.search, header.tensors) if match}
    return tuple((0, 0) if i in recurrent else (k * n, v * n) for i, n in enumerate(heads_kv[:n_layer]))
