"""Model: weights, vocabulary and chat template of one GGUF file."""

from __future__ import annotations

import ctypes
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import llama_cpp

from duo.config import ModelConfig
from duo.errors import ModelError, PromptError
from duo.llama import library
from duo.llama.chat_template import TAGS, ChatTemplate, Messages, Tools
from duo.llama.gguf_check import check_file
from duo.llama.gguf_file import ModelSize, model_size
from duo.llama.handle import Handle
from duo.llama.lifeline import blaming, lifeline
from duo.llama.offload import Offload
from duo.llama.stack import on_large_stack

Progress = Callable[[float], bool]  # called with a share from 0 to 1; False stops the loading

_MAX_TEXT = 2**30  # bytes; llama.cpp counts in 32 bits
_HEAD = 256  # first characters of a text, in which BOS may be
_FIRST_TOKENS = 1024  # among which the bytes usually are
_SMALL = 4096  # bytes that can be tokenised on any stack
_STACK, _STACK_PER_BYTE = 2**23, 1024  # bytes of the stack; about 450 were needed per byte of the text


class Model(Handle):
    """A loaded model. Immutable: any number of contexts on any threads may share it."""

    def __init__(self, config: ModelConfig, progress: Progress | None = None, *, vocabulary_only: bool = False) -> None:
        """Load the file, or only its vocabulary. Raises ModelError, DeviceError or UsageError."""
        library.start()
        self.config = config
        self.path = config.path
        self._offload = Offload(config)
        pointer = self._load(progress, vocabulary_only)
        super().__init__(pointer, llama_cpp.llama_model_free)
        vocabulary = self.vocabulary
        self.vocab_type = int(llama_cpp.llama_vocab_type(vocabulary))  # llama.h, enum llama_vocab_type
        if self.vocab_type == llama_cpp.LLAMA_VOCAB_TYPE_NONE:
            self.close()
            raise ModelError(f"{config.path}: this GGUF has no vocabulary")
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
        self.n_vocab = int(llama_cpp.llama_vocab_n_tokens(vocabulary))
        self.bos = int(llama_cpp.llama_vocab_bos(vocabulary))  # begins a text; -1: none
        self.eos = int(llama_cpp.llama_vocab_eos(vocabulary))  # ends a text; -1: none
        self.end = _end_of_message(vocabulary, self.eos)
        self.adds_bos = bool(llama_cpp.llama_vocab_get_add_bos(vocabulary))
        self.adds_eos = bool(llama_cpp.llama_vocab_get_add_eos(vocabulary))
        if self.adds_bos and (self.bos < 0 or (self.adds_eos and self.eos < 0)):
            self.close()  # llama.cpp would abort at the first prompt
            raise ModelError(f"{config.path}: the vocabulary adds a BOS or EOS that it lacks: the file is damaged")
        self.is_remote = self._offload.is_remote  # whether an RPC server holds some of its layers
        self.places = self._offload.places(self.n_layer)
        self.devices = self._offload.devices
        self.n_offloaded = self._offload.n_layers(self.n_layer)  # layers on these devices
        self._vocabulary = vocabulary
        self._pieces: dict[int, bytes] = {}
        self._ends: dict[int, bool] = {}

    def _load(self, progress: Progress | None, vocabulary_only: bool) -> Any:
        check_file(self.path, vocabulary_only=vocabulary_only)
        params = llama_cpp.llama_model_default_params()
        params.load_mode = _load_mode(self.config)
        params.vocab_only = vocabulary_only
        self._offload.fill(params)

        def on_progress(share: float, _: ctypes.c_void_p) -> bool:
            lifeline.beat()
            return progress is None or progress(share)

        params.progress_callback = llama_cpp.llama_progress_callback(on_progress)
        lifeline.is_loading = True
        with library.collect_errors() as errors, self.call(), blaming(self.path):
            pointer = llama_cpp.llama_model_load_from_file(bytes(self.path), params)
        lifeline.is_loading = False
        if not pointer:
            raise ModelError(f"{self.path}: {_load_failure(errors)}")
        return pointer

    @property
    def vocabulary(self) -> Any:
        """llama.cpp's pointer to the vocabulary. Raises ClosedError after close()."""
        return llama_cpp.llama_model_get_vocab(self.pointer)

    def call(self) -> AbstractContextManager[None]:
        """See Handle."""
        return lifeline if self._offload.is_remote else nullcontext()

    @functools.cached_property
    def size(self) -> ModelSize:
        """What each layer needs, from the file's header."""
        return model_size(self.config)

    @property
    def cache_width(self) -> tuple[int, int]:
        """Values that one token takes in the K and the V cache of all layers: `(k, v)`."""
        n_head = llama_cpp.llama_model_n_head(self.pointer)
        per_head = llama_cpp.llama_model_n_embd(self.pointer) // max(1, n_head)
        heads = self.n_layer * llama_cpp.llama_model_n_head_kv(self.pointer)
        widths = (self._number("attention.key_length"), self._number("attention.value_length"))
        return heads * (widths[0] or per_head), heads * (widths[1] or per_head)

    def metadata(self, key: str) -> str | None:
        """One metadata value as text; None if the file has no such key."""
        size = 256
        while True:
            buffer = ctypes.create_string_buffer(size)
            with self.use() as pointer:
                length = llama_cpp.llama_model_meta_val_str(pointer, key.encode(), buffer, size)
            if length < 0:
                return None
            if length < size:
                return buffer.value.decode("utf-8", "replace")
            size = length + 1

    def _number(self, key: str) -> int | None:
        value = self.metadata(f"{self.metadata('general.architecture')}.{key}")
        return int(value) if value is not None else None

    @contextmanager
    def _use_vocabulary(self) -> Iterator[Any]:
        with self.use() as pointer:
            yield llama_cpp.llama_model_get_vocab(pointer)

    def is_end(self, token: int) -> bool:
        """Whether `token` ends a generation."""
        is_end = self._ends.get(token)
        if is_end is None:
            with self.use():
                is_end = self._ends[token] = bool(llama_cpp.llama_vocab_is_eog(self._vocabulary, token))
        return is_end

    def end_tokens(self) -> list[int]:
        """All tokens that end a generation."""
        is_end = llama_cpp.llama_vocab_is_eog
        with self._use_vocabulary() as vocab:
            return [token for token in range(self.n_vocab) if is_end(vocab, token)]

    def token_texts(self, n: int) -> list[bytes]:
        """The first `n` tokens as the vocabulary stores them."""
        text = llama_cpp.llama_vocab_get_text
        with self._use_vocabulary() as vocab:
            return [text(vocab, token) for token in range(n)]

    @functools.cached_property
    def longest_token(self) -> int:
        """The most bytes of a text that one token replaces."""
        return max(map(len, self.token_texts(self.n_vocab)))

    def n_unknown(self, text: str) -> int:
        """Number of characters of `text` that a SentencePiece vocabulary does not have: each byte becomes a token.

        0 for other vocabularies.
        """
        if self.vocab_type != llama_cpp.LLAMA_VOCAB_TYPE_SPM:
            return 0
        counts = Counter(text)
        return sum(counts[character] for character in counts.keys() - self._characters)

    @functools.cached_property
    def _characters(self) -> frozenset[str]:
        """The tokens that are one character, and the space."""
        texts = (text.decode("utf-8", "replace") for text in self.token_texts(self.n_vocab))
        return frozenset((" ", *(text for text in texts if len(text) == 1)))

    def tokenize(self, text: str, *, add_bos: bool = True, parse_special: bool = True) -> list[int]:
        """Tokens of `text`; with `add_bos`, BOS in front if the vocabulary adds it.

        parse_special: whether the spelling of a special token becomes that token; otherwise, it is plain text.
        BOS is not added to a text that begins with it. Raises PromptError if llama.cpp cannot tokenise the text.
        """
        try:
            data, head = text.encode(), text[:_HEAD].encode()
        except UnicodeEncodeError as error:
            raise PromptError(f"the prompt is not text: {error}") from None
        self._check_bytes(text)
        if add_bos := add_bos and self.adds_bos:
            add_bos = self._tokenize(head, add_bos=False, special=parse_special)[:1] != [self.bos]
        # Not [bos, *tokens]: some vocabularies put a space in front of the first word.
        tokens = self._tokenize(data, add_bos=add_bos, special=parse_special)
        if add_bos and self.adds_eos and tokens[-1:] == [self.eos]:
            tokens.pop()
        return tokens

    def _check_bytes(self, text: str) -> None:
        """Raise PromptError if a character has no tokens: llama.cpp would end the process."""
        if self._missing_bytes:
            others = set(f"▁{text}".replace(" ", "▁")) - self._characters
            if lacking := sorted(other for other in others if self._missing_bytes.intersection(other.encode())):
                said = "".join(lacking[:20])
                raise PromptError(f"{self.path.name} has no tokens for these characters of the prompt: {said!r}")

    @functools.cached_property
    def _missing_bytes(self) -> frozenset[int]:
        """Bytes without a token, if the vocabulary is a SentencePiece one, where unknown characters become bytes."""
        if self.vocab_type != llama_cpp.LLAMA_VOCAB_TYPE_SPM:
            return frozenset()
        bytes_ = {text: byte for byte in range(256) for text in (f"<0x{byte:02X}>".encode(), bytes([byte]))}
        found: set[int] = set()
        for n in (_FIRST_TOKENS, self.n_vocab):
            found = {bytes_[text] for text in self.token_texts(min(n, self.n_vocab)) if text in bytes_}
            if len(found) == len(set(bytes_.values())):
                break
        return frozenset(bytes_.values()) - found

    def _tokenize(self, data: bytes, *, add_bos: bool, special: bool = True) -> list[int]:
        if len(data) > _MAX_TEXT:
            raise PromptError(f"the prompt has {len(data)} bytes: llama.cpp tokenises at most {_MAX_TEXT}")
        if self.vocab_type != llama_cpp.LLAMA_VOCAB_TYPE_BPE or len(data) <= _SMALL:
            return self._tokenize_here(data, add_bos=add_bos, special=special)
        # Some of these vocabularies split texts with std::regex, which recurses for each character of a word.
        work = functools.partial(self._tokenize_here, data, add_bos=add_bos, special=special)
        try:
            return on_large_stack(_STACK + _STACK_PER_BYTE * len(data), work)
        except MemoryError:
            raise PromptError(f"there is not enough memory to tokenise a prompt of {len(data)} bytes") from None

    def _tokenize_here(self, data: bytes, *, add_bos: bool, special: bool) -> list[int]:
        size = len(data) + 2
        with self._use_vocabulary() as vocab:
            while True:
                buffer = (llama_cpp.llama_token * size)()
                n = llama_cpp.llama_tokenize(vocab, data, len(data), buffer, size, add_bos, special)
                if n >= 0:
                    return list(buffer[:n])
                if -n <= size:
                    raise PromptError(f"llama.cpp could not tokenise the prompt ({n})")
                size = -n

    def fragment(self, text: bytes) -> list[int]:
        """Tokens of a piece from the middle of a text, without special tokens and without anything added in front.

        Bytes that are not UTF-8, and characters without tokens, are left out. Raises PromptError as tokenize() does.
        """
        data = self._spellable(text)
        if not self._adds_space:
            return self._tokenize(data, add_bos=False, special=False)
        # The space is then in front of another character, whose tokens are removed.
        for before, tokens_before in self._before.items():
            tokens = self._tokenize(before + data, add_bos=False, special=False)
            if tokens[: len(tokens_before)] == tokens_before:
                return tokens[len(tokens_before) :]
        return []

    def _spellable(self, text: bytes) -> bytes:
        """The characters of `text` that have tokens."""
        characters = text.decode("utf-8", "ignore")
        if missing := self._missing_bytes:
            known = self._characters
            if self._adds_space and not (known >= {"▁"} or missing.isdisjoint("▁".encode())):
                return b""
            kept = (c for c in characters if c in known or missing.isdisjoint(c.replace(" ", "▁").encode()))
            characters = "".join(kept)
        return characters.encode()

    @functools.cached_property
    def _adds_space(self) -> bool:
        """Whether the vocabulary puts a space in front of a text: SentencePiece may do so."""
        if self.vocab_type != llama_cpp.LLAMA_VOCAB_TYPE_SPM:
            return False
        return self.metadata("tokenizer.ggml.add_space_prefix") != "false"

    @functools.cached_property
    def _before(self) -> dict[bytes, list[int]]:
        """Characters to put in front of a fragment, and their tokens at the start of a text."""
        usable = [one for one in (b"\n", b"|", b"0") if self._spellable(one)]
        return {one: self._tokenize(one, add_bos=False, special=False) for one in usable}

    def piece(self, token: int) -> bytes:
        """The bytes of `token` in a text; empty for special tokens, except the tags of thoughts and calls.

        Raises PromptError if there is no such token.
        """
        piece = self._pieces.get(token)
        if piece is None:
            spelled = self._piece(token, special=True)
            piece = self._pieces[token] = spelled if spelled in TAGS else self._piece(token, special=False)
        return piece

    def spelling(self, tokens: Sequence[int]) -> bytes:
        """The bytes of `tokens` in a prompt, where special tokens are visible."""
        pieces = {token: self._piece(token, special=True) for token in set(tokens)}
        return b"".join(map(pieces.__getitem__, tokens))

    def prompt_text(self, tokens: Sequence[int]) -> bytes:
        """The text of a prompt with visible special tokens, without its BOS and the spaces that tokenize() adds."""
        if tokens[:1] == [self.bos]:
            tokens = tokens[1:]
        special = {token: self._piece(token, special=True) for token in set(tokens) if self._is_special(token)}
        text = bytearray()
        begins = self._adds_space
        for token in tokens:
            piece = special.get(token)
            text += self.piece(token).removeprefix(b" " if begins else b"") if piece is None else piece
            begins = piece is not None and self._adds_space
        return bytes(text)

    def _is_special(self, token: int) -> bool:
        """Whether the token is found in a text before anything else is tokenised. Raises PromptError: see _check."""
        self._check(token)
        kinds = llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_USER_DEFINED
        with self.use():
            attributes = llama_cpp.llama_vocab_get_attr(self._vocabulary, token)
        return bool(attributes & (kinds | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN))

    def _check(self, token: int) -> None:
        """Raise PromptError for a token outside the vocabulary: llama.cpp would end the process."""
        if not 0 <= token < self.n_vocab:
            raise PromptError(f"no token {token} in a vocabulary of {self.n_vocab}")

    def _piece(self, token: int, *, special: bool) -> bytes:
        self._check(token)
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            with self.use():
                n = llama_cpp.llama_token_to_piece(self._vocabulary, token, buffer, size, 0, special)
            if n >= 0:
                return buffer.raw[:n]
            size = -n

    # Chat

    @functools.cached_property
    def chat_template(self) -> ChatTemplate:
        """The chat template. Raises PromptError if the file has none, or an invalid one."""
        return self._template("tokenizer.chat_template")

    @functools.cached_property
    def tool_template(self) -> ChatTemplate:
        """The chat template for conversations with tools: some files have two."""
        key = "tokenizer.chat_template.tool_use"
        return self.chat_template if self.metadata(key) is None else self._template(key)

    def apply_chat_template(self, messages: Messages, tools: Tools = ()) -> str:
        """The prompt for `messages`, up to the beginning of the assistant's answer: see ChatTemplate.

        Raises PromptError if there is no chat template or it fails.
        """
        return (self.tool_template if tools else self.chat_template).render(messages, tools)

    def _template(self, key: str) -> ChatTemplate:
        source = self.metadata(key)
        if source is None:
            raise PromptError(f"{self.path.name} has no chat template: send a plain prompt instead")
        bos, eos = (
            self.spelling([token]).decode("utf-8", "replace") if token >= 0 else "" for token in (self.bos, self.eos)
        )
        return ChatTemplate(source, name=self.path.name, bos=bos, eos=eos)


def _end_of_message(vocabulary: Any, eos: int) -> int:
    """The token that ends a message, by default EOS; -1: none."""
    eot = int(llama_cpp.llama_vocab_eot(vocabulary))
    return eot if eot >= 0 else eos


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


def _load_mode(config: ModelConfig) -> int:
    modes: dict[tuple[bool, bool], int] = {
        (False, False): llama_cpp.LLAMA_LOAD_MODE_NONE,
        (False, True): llama_cpp.LLAMA_LOAD_MODE_MLOCK,
        (True, False): llama_cpp.LLAMA_LOAD_MODE_MMAP,
        (True, True): llama_cpp.LLAMA_LOAD_MODE_MMAP_MLOCK,
    }
    return modes[config.use_mmap, config.use_mlock]


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
