"""Model: weights, vocabulary and chat template of one GGUF file."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import llama_cpp

from duo.config import ModelConfig
from duo.errors import ModelError, PromptError
from duo.llama import library
from duo.llama.handle import Handle
from duo.llama.lifeline import lifeline
from duo.llama.offload import Offload

Progress = Callable[[float], bool]  # a share from 0 to 1; False stops the loading


class Model(Handle):
    """A loaded model. Free of threads: any number of contexts on any threads may read it."""

    def __init__(self, config: ModelConfig, progress: Progress | None = None, *, vocabulary_only: bool = False) -> None:
        """Load the file, or nothing but its vocabulary. Raises ModelError, DeviceError or UsageError."""
        library.start()
        self.config = config
        self.path = config.path
        self._offload = Offload(config)
        params = llama_cpp.llama_model_default_params()
        params.load_mode = _load_mode(config)
        params.vocab_only = vocabulary_only
        self._offload.fill(params)

        def on_progress(share: float, _: ctypes.c_void_p) -> bool:
            lifeline.beat()
            return progress is None or progress(share)

        params.progress_callback = llama_cpp.llama_progress_callback(on_progress)
        lifeline.is_loading = True
        with library.collect_errors() as errors, self.call():
            pointer = llama_cpp.llama_model_load_from_file(bytes(config.path), params)
        lifeline.is_loading = False
        if not pointer:
            raise ModelError(f"{config.path}: {_load_failure(errors)}")
        super().__init__(pointer, llama_cpp.llama_model_free)
        if llama_cpp.llama_vocab_type(self.vocabulary) == llama_cpp.LLAMA_VOCAB_TYPE_NONE:
            self.close()
            raise ModelError(f"{config.path}: this GGUF has no vocabulary")
        self.n_vocab: int = llama_cpp.llama_vocab_n_tokens(self.vocabulary)
        self.places = self._offload.places(self.n_layer)
        self._pieces: dict[int, bytes] = {}

    @property
    def is_remote(self) -> bool:
        """Whether another machine computes some of its layers."""
        return self._offload.is_remote

    def call(self) -> AbstractContextManager[None]:
        """Surrounds a call that may need another machine."""
        return lifeline if self.is_remote else nullcontext()

    def close(self) -> None:
        """See Handle."""
        with self.call():
            super().close()

    @property
    def vocabulary(self) -> Any:
        """llama.cpp's pointer to the vocabulary."""
        return llama_cpp.llama_model_get_vocab(self.pointer)

    # What it is

    @property
    def description(self) -> str:
        """Architecture, size and quantisation, as llama.cpp words them."""
        buffer = ctypes.create_string_buffer(256)
        llama_cpp.llama_model_desc(self.pointer, buffer, len(buffer))
        return buffer.value.decode()

    @property
    def quantisation(self) -> str:
        """The file's quantisation, such as `Q4_0`."""
        name = llama_cpp.llama_ftype_name(llama_cpp.llama_model_ftype(self.pointer))
        # llama.cpp says "all F32", and "(guessed) " where the file does not say.
        return str(name.decode()).removeprefix("(guessed) ").removeprefix("all ") if name else "unknown"

    @property
    def n_bytes(self) -> int:
        """Size of all weights in bytes."""
        return int(llama_cpp.llama_model_size(self.pointer))

    @property
    def n_params(self) -> int:
        """Number of weights."""
        return int(llama_cpp.llama_model_n_params(self.pointer))

    @property
    def n_layer(self) -> int:
        """Number of layers."""
        return int(llama_cpp.llama_model_n_layer(self.pointer))

    @property
    def n_ctx_train(self) -> int:
        """The longest text that the model was trained for, in tokens."""
        return int(llama_cpp.llama_model_n_ctx_train(self.pointer))

    @property
    def is_recurrent(self) -> bool:
        """Whether all it keeps of a text is one state, from which nothing can be taken back."""
        return bool(llama_cpp.llama_model_is_recurrent(self.pointer))

    @property
    def can_roll_back(self) -> bool:
        """Whether any number of tokens can be taken back. Of a hybrid model some may be: see Context.n_rollback."""
        return not self.is_recurrent and not llama_cpp.llama_model_is_hybrid(self.pointer)

    @property
    def cache_width(self) -> tuple[int, int]:
        """Values that one token takes in the K and the V cache of all layers: `(k, v)`."""
        n_head = llama_cpp.llama_model_n_head(self.pointer)
        per_head = llama_cpp.llama_model_n_embd(self.pointer) // max(1, n_head)
        heads = self.n_layer * llama_cpp.llama_model_n_head_kv(self.pointer)
        widths = (self._number("attention.key_length"), self._number("attention.value_length"))
        return heads * (widths[0] or per_head), heads * (widths[1] or per_head)

    def metadata(self, key: str) -> str | None:
        """The text of one metadata value, None if the file has no such key."""
        size = 256
        while True:
            buffer = ctypes.create_string_buffer(size)
            length = llama_cpp.llama_model_meta_val_str(self.pointer, key.encode(), buffer, size)
            if length < 0:
                return None
            if length < size:
                return buffer.value.decode("utf-8", "replace")
            size = length + 1

    def _number(self, key: str) -> int | None:
        value = self.metadata(f"{self.metadata('general.architecture')}.{key}")
        return int(value) if value is not None else None

    # Vocabulary

    @property
    def vocab_type(self) -> int:
        """llama.h, enum llama_vocab_type."""
        return int(llama_cpp.llama_vocab_type(self.vocabulary))

    @property
    def bos(self) -> int:
        """The token that begins a text; -1 if there is none."""
        return int(llama_cpp.llama_vocab_bos(self.vocabulary))

    @property
    def eos(self) -> int:
        """The token that ends a text; -1 if there is none."""
        return int(llama_cpp.llama_vocab_eos(self.vocabulary))

    @property
    def adds_bos(self) -> bool:
        """Whether the vocabulary asks for BOS before a text."""
        return bool(llama_cpp.llama_vocab_get_add_bos(self.vocabulary))

    @property
    def adds_eos(self) -> bool:
        """Whether the vocabulary asks for EOS after a text."""
        return bool(llama_cpp.llama_vocab_get_add_eos(self.vocabulary))

    def is_end(self, token: int) -> bool:
        """Whether `token` ends a generation."""
        return bool(llama_cpp.llama_vocab_is_eog(self.vocabulary, token))

    def end_tokens(self) -> list[int]:
        """All tokens that end a generation."""
        vocab, is_end = self.vocabulary, llama_cpp.llama_vocab_is_eog
        return [token for token in range(self.n_vocab) if is_end(vocab, token)]

    def token_texts(self, n: int) -> list[bytes]:
        """The vocabulary's own spelling of the first `n` tokens."""
        vocab, text = self.vocabulary, llama_cpp.llama_vocab_get_text
        return [text(vocab, token) for token in range(n)]

    def tokenize(self, text: str, *, add_bos: bool = True) -> list[int]:
        """Tokens of `text` with special tokens parsed, BOS in front if the vocabulary asks for it and `add_bos`.

        BOS is not added to a text that begins with it. Raises PromptError when llama.cpp cannot tokenise it.
        """
        tokens = self._tokenize(text.encode(), add_bos=False)
        if add_bos and self.adds_bos and tokens[:1] != [self.bos]:
            # Not simply [bos, *tokens]: some vocabularies put a space in front of the first word.
            tokens = self._tokenize(text.encode(), add_bos=True)
            if self.adds_eos and tokens[-1:] == [self.eos]:
                tokens.pop()
        return tokens

    def _tokenize(self, data: bytes, *, add_bos: bool) -> list[int]:
        size = len(data) + 2
        while True:
            buffer = (llama_cpp.llama_token * size)()
            n = llama_cpp.llama_tokenize(self.vocabulary, data, len(data), buffer, size, add_bos, True)
            if n >= 0:
                return list(buffer[:n])
            if -n <= size:
                raise PromptError(f"llama.cpp could not tokenise the prompt ({n})")
            size = -n

    def piece(self, token: int) -> bytes:
        """The bytes that `token` adds to a text; special tokens add none."""
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._piece(token, special=False)
        return piece

    def spelling(self, tokens: Sequence[int]) -> bytes:
        """The bytes of `tokens` with special tokens written out, as in a prompt."""
        return b"".join(self._piece(token, special=True) for token in tokens)

    def _piece(self, token: int, *, special: bool) -> bytes:
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            n = llama_cpp.llama_token_to_piece(self.vocabulary, token, buffer, size, 0, special)
            if n >= 0:
                return buffer.raw[:n]
            size = -n

    # Chat

    def apply_chat_template(self, messages: Sequence[dict[str, str]]) -> str:
        """The prompt text for `messages` (`role`, `content`), ready for the assistant's answer.

        Uses the template in the file, compiled once by jinja2. Raises PromptError if there is none or it refuses.
        """
        try:
            return str(self._chat_formatter(messages=list(messages)).prompt)
        except PromptError:
            raise
        except Exception as error:  # a template is a program: it may raise anything
            raise PromptError(f"{self.path.name}: its chat template refused: {error}") from error

    @functools.cached_property
    def _chat_formatter(self) -> Any:
        """The template, compiled. Raises PromptError if there is none."""
        from llama_cpp.llama_chat_format import Jinja2ChatFormatter  # noqa: PLC0415 - only chats pay for it

        template = self.metadata("tokenizer.chat_template")
        if template is None:
            raise PromptError(f"{self.path.name} has no chat template: write the prompt out")
        return Jinja2ChatFormatter(
            template=template,
            eos_token=self.spelling([self.eos]).decode("utf-8", "replace") if self.eos >= 0 else "",
            bos_token=self.spelling([self.bos]).decode("utf-8", "replace") if self.bos >= 0 else "",
        )


def _load_mode(config: ModelConfig) -> int:
    modes: dict[tuple[bool, bool], int] = {
        (False, False): llama_cpp.LLAMA_LOAD_MODE_NONE,
        (False, True): llama_cpp.LLAMA_LOAD_MODE_MLOCK,
        (True, False): llama_cpp.LLAMA_LOAD_MODE_MMAP,
        (True, True): llama_cpp.LLAMA_LOAD_MODE_MMAP_MLOCK,
    }
    return modes[config.use_mmap, config.use_mlock]


def _load_failure(errors: list[str]) -> str:
    """One line for what llama.cpp logged while it failed to load a file."""
    log = "\n".join(errors)
    if "not within the file bounds" in log or "failed to read" in log:
        return "the file is truncated or damaged: fetch it again"
    if "illegal split" in log or "invalid split" in log:
        return "name the first file of a split model (-00001-of-0000N.gguf)"
    if "key not found in model: tokenizer" in log:
        return "this GGUF has no vocabulary"
    causes = [line.split("error loading model: ", 1)[1] for line in errors if "error loading model: " in line]
    return f"llama.cpp cannot load it: {causes[0] if causes else 'no reason given'}"
