"""Model: weights and vocabulary of one GGUF file."""

import ctypes
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import llama_cpp

from duo.config import SPLIT_MODES, ModelConfig
from duo.errors import ModelError, UsageError
from duo.llama import library
from duo.llama.build import CPU
from duo.llama.chat_template import ChatTemplate
from duo.llama.devices import RPC, Device, devices_for, holders
from duo.llama.gguf_header import ASSISTANT, GgufHeader, check_header, has_mtp, head_kind
from duo.llama.lifeline import lifeline
from duo.llama.memory import failure, of_size
from duo.llama.model_size import model_size
from duo.llama.vocabulary import Vocabulary

Progress = Callable[[float], bool]  # called with a share from 0 to 1; False stops the loading


class Model(Vocabulary):
    """A loaded model. Immutable: any number of contexts on any threads may share it."""

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
            self.size = model_size(config, header)
        names = None if vocabulary_only else self.size.names
        self.head_kind = head_kind(header, names)  # EAGLE-3 or MTP, if it is a head; empty for a model
        # Whether it has a layer for multi-token prediction, which is loaded.
        loads_mtp = not vocabulary_only and (config.heads or self.head_kind == "MTP")
        self.shares_cache = header.architecture == ASSISTANT  # it has none of its own, but reads its target's
        self.has_mtp = loads_mtp and (self.shares_cache or has_mtp(header, names))
        pointer = self._load(progress, vocabulary_only, call)
        super().__init__(pointer, header, call)
        self.template_variables = config.template_variables
        if self.adds_bos and (self.bos < 0 or (self.adds_eos and self.eos < 0)):  # it would abort at the first prompt
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
        self.places = frozenset({device.name for device in self.devices} | on_cpu)  # names of what holds its layers

        if not vocabulary_only:
            holders.add(self)

    def held_on(self, device: Device) -> int:
        """Bytes of its weights and caches on one of its devices, in proportion to `tensor_split`."""
        if self.closed or device not in self.devices:
            return 0
        n, i, split = len(self.devices), self.devices.index(device), self.config.tensor_split
        share = split[i] / sum(split) if len(split) == n and any(split) else 1 / n
        caches = sum(getattr(child, "n_device_bytes", 0) for child in list(self._children))
        return int(share * (self.size.offloaded_bytes(self.n_offloaded) + caches))

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
        params.n_gpu_layers, params.split_mode = config.n_gpu_layers, SPLIT_MODES.index(config.split_mode)
        params.main_gpu = 0 if config.split_mode == "none" else config.main_gpu  # then there is one device
        most = llama_cpp.llama_max_devices()
        if len(config.tensor_split) > most:
            raise UsageError(f"tensor_split: llama.cpp supports at most {most} devices", "tensor_split")
        if config.tensor_split:
            params.tensor_split = (ctypes.c_float * most)(*config.tensor_split)

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
            is_damaged = "not within the file bounds" in log or "failed to read" in log
            why = (
                "the file is truncated or damaged: download it again"
                if is_damaged
                else f"llama.cpp cannot load it: {cause}"
            )
            raise failure(path, log, needs, why)
        return pointer
