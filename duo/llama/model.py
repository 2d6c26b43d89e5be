"""Model: weights and vocabulary of one GGUF file."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from typing import Any

import llama_cpp

from duo.config import ModelConfig
from duo.errors import ModelError
from duo.llama import library
from duo.llama.devices import Offload
from duo.llama.gguf_head import Head, check_head
from duo.llama.lifeline import blaming, lifeline
from duo.llama.model_size import read_size
from duo.llama.vocabulary import Vocabulary

Progress = Callable[[float], bool]  # called with a share from 0 to 1; False stops the loading

_LOAD_MODES: dict[tuple[bool, bool], int] = {  # by use_mmap and use_mlock
    (False, False): llama_cpp.LLAMA_LOAD_MODE_NONE,
    (False, True): llama_cpp.LLAMA_LOAD_MODE_MLOCK,
    (True, False): llama_cpp.LLAMA_LOAD_MODE_MMAP,
    (True, True): llama_cpp.LLAMA_LOAD_MODE_MMAP_MLOCK,
}


class Model(Vocabulary):
    """A loaded model. Immutable: any number of contexts on any threads may share it."""

    def __init__(self, config: ModelConfig, progress: Progress | None = None, *, vocabulary_only: bool = False) -> None:
        """Load the file, or only its vocabulary. Raises ModelError, DeviceError or UsageError."""
        library.start()
        self.config = config
        self._offload = Offload(config)
        call = lifeline if self._offload.is_remote else nullcontext()
        pointer = self._load(progress, vocabulary_only, call)
        super().__init__(pointer, config.path, call)
        self._check_vocabulary()
        self.description = _description(pointer)
        self.quantisation = _quantisation(pointer)
        self.n_bytes = int(llama_cpp.llama_model_size(pointer))  # of all weights
        self.n_params = int(llama_cpp.llama_model_n_params(pointer))
        self.n_layer = int(llama_cpp.llama_model_n_layer(pointer))
        self.n_ctx_train = int(llama_cpp.llama_model_n_ctx_train(pointer))
        # Whether its memory of a text is one recurrent state, which cannot be rolled back.
        self.is_recurrent = bool(llama_cpp.llama_model_is_recurrent(pointer))
        # Whether any number of tokens can be rolled back. A hybrid model may support a few: see Context.n_rollback.
        self.can_roll_back = not self.is_recurrent and not llama_cpp.llama_model_is_hybrid(pointer)
        self.is_remote = self._offload.is_remote  # whether an RPC server holds some of its layers
        self.places = self._offload.places(self.n_layer)
        self.devices = self._offload.devices
        self.n_offloaded = self._offload.n_layers(self.n_layer)  # layers on these devices

    def _load(self, progress: Progress | None, vocabulary_only: bool, call: AbstractContextManager[None]) -> Any:
        with closing(Head(self.config.path)) as head:
            check_head(head, vocabulary_only=vocabulary_only)
            if not vocabulary_only:
                self.size = read_size(head, self.config)
        params = llama_cpp.llama_model_default_params()
        params.load_mode = _LOAD_MODES[self.config.use_mmap, self.config.use_mlock]
        params.vocab_only = vocabulary_only
        self._offload.fill(params)

        def on_progress(share: float, _: ctypes.c_void_p) -> bool:
            lifeline.beat()
            return progress is None or progress(share)

        params.progress_callback = llama_cpp.llama_progress_callback(on_progress)
        lifeline.is_loading = True
        with library.collect_errors() as errors, call, blaming(self.config.path):
            pointer = llama_cpp.llama_model_load_from_file(bytes(self.config.path), params)
        lifeline.is_loading = False
        if not pointer:
            raise ModelError(f"{self.config.path}: {_load_failure(errors)}")
        return pointer

    def _check_vocabulary(self) -> None:
        reason = ""
        if self.vocab_type == llama_cpp.LLAMA_VOCAB_TYPE_NONE:
            reason = "this GGUF has no vocabulary"
        elif self.adds_bos and (self.bos < 0 or (self.adds_eos and self.eos < 0)):  # it would abort at the first prompt
            reason = "the vocabulary adds a BOS or EOS that it lacks: the file is damaged"
        if reason:
            self.close()
            raise ModelError(f"{self.path}: {reason}")


def _description(pointer: Any) -> str:
    """Architecture, size and quantisation."""
    buffer = ctypes.create_string_buffer(256)
    llama_cpp.llama_model_desc(pointer, buffer, len(buffer))
    return buffer.value.decode()


def _quantisation(pointer: Any) -> str:
    """The file's quantisation, such as `Q4_0`."""
    name = llama_cpp.llama_ftype_name(llama_cpp.llama_model_ftype(pointer))
    # "all F32", or with "(guessed) " in front where the file does not name it.
    return str(name.decode()).removeprefix("(guessed) ").removeprefix("all ") if name else "unknown"


def _load_failure(errors: list[str]) -> str:
    """The reason, in one line, why llama.cpp could not load a file, from the errors that it logged."""
    log = "\n".join(errors)
    if "not within the file bounds" in log or "failed to read" in log:
        return "the file is truncated or damaged: download it again"
    if "illegal split" in log or "invalid split" in log:
        return "name the first file of a split model (-00001-of-0000N.gguf)"
    if "key not found in model: tokenizer" in log:
        return "this GGUF has no vocabulary"
    causes = [line.split("error loading model: ", 1)[1] for line in errors if "error loading model: " in line]
    return f"llama.cpp cannot load it: {causes[0] if causes else 'no reason given'}"
