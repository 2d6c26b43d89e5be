"""Vocabulary: the tokens of a model file and its chat templates."""

import ctypes
import functools
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from itertools import groupby
from typing import Any

import llama_cpp

from duo.errors import PromptError
from duo.llama.chat_template import TAGS, ChatTemplate, ChatText, Messages, Tools, begun
from duo.llama.gguf_header import GgufHeader
from duo.llama.lifeline import Handle

_MAX_TEXT = 2**30  # bytes; llama.cpp counts in 32 bits
_HEAD = 256  # first characters of a text, in which BOS may be
_SMALL = 4096  # bytes that can be tokenised on any stack
_STACK, _STACK_PER_BYTE = 2**23, 1024  # bytes of the stack; about 450 were needed per byte of the text
_PAGE = 65_536  # a multiple of every system's
# Tokens that are found in a text before anything else is tokenised.
_SPECIAL = (
    llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_USER_DEFINED | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN
)
# What is none where special tokens are not parsed: user-defined tokens are tokens everywhere.
_CONTROL = llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN
_RSTRIP = llama_cpp.LLAMA_TOKEN_ATTR_RSTRIP

_stack_size = threading.Lock()  # a setting of the process


class Vocabulary(Handle):
    """The vocabulary of a model that llama.cpp has loaded, with its weights or without."""

    template_variables: Mapping[str, Any] | None = None  # of its chat templates

    def __init__(self, pointer: Any, header: GgufHeader, call: AbstractContextManager[None]) -> None:
        """`pointer`: llama_model, which this frees; `header`: of its file; `call`: see Handle."""
        super().__init__(pointer, llama_cpp.llama_model_free, call=call)
        self.header, self.path = header, header.path
        self.vocabulary = vocabulary = llama_cpp.llama_model_get_vocab(pointer)  # llama.cpp's, valid until close()
        self.vocab_type = int(llama_cpp.llama_vocab_type(vocabulary))  # llama.h, enum llama_vocab_type
        self._is_spm = self.vocab_type == llama_cpp.LLAMA_VOCAB_TYPE_SPM  # SentencePiece
        self.n_vocab = int(llama_cpp.llama_vocab_n_tokens(vocabulary))
        self.bos = int(llama_cpp.llama_vocab_bos(vocabulary))  # begins a text; -1: none
        self.eos = int(llama_cpp.llama_vocab_eos(vocabulary))  # ends a text; -1: none
        end = int(llama_cpp.llama_vocab_eot(vocabulary))
        self.end = end if end >= 0 else self.eos  # ends a message; -1: none
        self.adds_bos = bool(llama_cpp.llama_vocab_get_add_bos(vocabulary))
        self.adds_eos = bool(llama_cpp.llama_vocab_get_add_eos(vocabulary))
        self._pieces: dict[int, bytes] = {}

    def is_end(self, token: int) -> bool:
        """Whether `token` ends a generation."""
        with self.use():
            return bool(llama_cpp.llama_vocab_is_eog(self.vocabulary, token))

    @functools.cached_property
    def end_tokens(self) -> list[int]:
        """All tokens that end a generation."""
        is_end = llama_cpp.llama_vocab_is_eog
        with self.use():
            return [token for token in range(self.n_vocab) if is_end(self.vocabulary, token)]

    @functools.cached_property
    def longest_token(self) -> int:
        """The most bytes of a text that one token replaces."""
        return max(map(len, self.header.tokens))

    def n_unknown(self, text: str) -> int:
        """Number of characters of `text` that a SentencePiece vocabulary (others: 0) must spell in bytes."""
        return sum(character not in self._characters for character in text) if self._is_spm else 0

    @functools.cached_property
    def _characters(self) -> frozenset[str]:
        """The tokens that are one character; ▁ is the space."""
        texts = (text.decode("utf-8", "replace").replace("▁", " ") for text in self.header.tokens)
        return frozenset(text for text in texts if len(text) == 1)

    @functools.cached_property
    def _missing_bytes(self) -> frozenset[int]:
        """Bytes without a token, if it is a SentencePiece vocabulary, where unknown characters become bytes."""
        if not self._is_spm:
            return frozenset()
        texts = set(self.header.tokens)
        return frozenset(n for n in range(256) if texts.isdisjoint((b"<0x%02X>" % n, bytes([n]))))

    def _spellable(self, text: str) -> str:
        """`text` without the characters that have no tokens, on which llama.cpp would end the process."""

        def is_known(one: str) -> bool:
            return one in self._characters or self._missing_bytes.isdisjoint(one.replace(" ", "▁").encode())

        return "".join(filter(is_known, text)) if self._missing_bytes else text

    def tokenize(self, text: str, *, add_bos: bool = True, parse_special: bool = True) -> list[int]:
        """Tokens of `text`, after BOS if the vocabulary adds it and `text` does not begin with it. Raises PromptError.

        parse_special: whether the spelling of a special token becomes that token; in a ChatText, only the template's.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise PromptError(f"the prompt is not text: {error}") from None
        if len(self._spellable(f" {text}")) <= len(text):
            raise PromptError(f"{self.path.name} has no tokens for some characters of the prompt")
        tokens = self._begin(text, add_bos=add_bos, special=parse_special)
        if parse_special and isinstance(text, ChatText):
            control = self._control(tokens)
            marked, mark = text.marked(control)
            return self._tokenize_marked(marked, mark, control, add_bos=add_bos) if mark else tokens
        return tokens

    def _begin(self, text: str, *, add_bos: bool, special: bool) -> list[int]:
        """Tokens of a text or, without BOS, of a part of one."""
        if add_bos := add_bos and self.adds_bos:
            add_bos = self._tokenize(text[:_HEAD].encode(), special=special)[:1] != [self.bos]
        # Not [bos, *tokens]: some vocabularies put a space in front of the first word.
        tokens = self._tokenize(text.encode(), add_bos=add_bos, special=special)
        if add_bos and self.adds_eos and tokens[-1:] == [self.eos]:
            tokens.pop()
        return tokens

    def _control(self, tokens: Sequence[int]) -> dict[str, int]:
        """The spellings of the control tokens among `tokens`, and llama.cpp's attributes of each."""
        with self.use():
            attributes = {token: llama_cpp.llama_vocab_get_attr(self.vocabulary, token) for token in set(tokens)}
            return {
                llama_cpp.llama_vocab_get_text(self.vocabulary, token).decode("utf-8", "replace"): of
                for token, of in attributes.items()
                if of & _CONTROL
            }

    def _tokenize_marked(self, text: str, mark: str, control: Mapping[str, int], *, add_bos: bool) -> list[int]:
        """Tokens of `text`. Between its `control` tokens, a part that has the mark has none, whatever it spells."""
        names = sorted(control, key=len, reverse=True)
        # With the space after it that llama.cpp leaves out at some tokens, of Phi-3 for one.
        patterns = (re.escape(name) + (r"\s*" if control[name] & _RSTRIP else "") for name in names)
        parts, tokens = re.split(f"({'|'.join(patterns)})", text, flags=re.ASCII), list[int]()
        for is_marked, same in groupby(parts, lambda part: mark in part):
            part = "".join(same).replace(mark, "")
            tokens += self._begin(part, add_bos=add_bos and not tokens, special=not is_marked)
        return tokens

    def _tokenize(self, data: bytes, *, add_bos: bool = False, special: bool = False) -> list[int]:
        if len(data) > _MAX_TEXT:
            raise PromptError(f"the prompt has {len(data)} bytes: llama.cpp tokenises at most {_MAX_TEXT}")

        def work() -> list[int]:
            n = -len(data) - 2
            for _ in range(2):
                buffer = (llama_cpp.llama_token * -n)()
                with self.use():
                    n = llama_cpp.llama_tokenize(self.vocabulary, data, len(data), buffer, -n, add_bos, special)
                if n >= 0:
                    return list(buffer[:n])
            raise PromptError(f"llama.cpp could not tokenise the prompt ({n})")

        if self.vocab_type != llama_cpp.LLAMA_VOCAB_TYPE_BPE or len(data) <= _SMALL:
            return work()
        # Some of these vocabularies split texts with std::regex, which recurses for each character of a word.
        try:
            return _on_large_stack(_STACK + _STACK_PER_BYTE * len(data), work)
        except MemoryError:
            raise PromptError(f"there is not enough memory to tokenise a prompt of {len(data)} bytes") from None

    def fragment(self, text: bytes) -> list[int]:
        """Tokens of a piece from the middle of a text, without what has no token. Raises PromptError."""
        data = self._spellable(text.decode("utf-8", "ignore")).encode()
        if not self._adds_space:
            return self._tokenize(data)
        # The space is then in front of another character, whose tokens are removed.
        for before, tokens_before in self._before.items():
            tokens = self._tokenize(before + data)
            if tokens[: len(tokens_before)] == tokens_before:
                return tokens[len(tokens_before) :]
        return []

    @functools.cached_property
    def _adds_space(self) -> bool:
        """Whether the vocabulary puts a space in front of a text: SentencePiece may do so."""
        return self._is_spm and self.header.integer("tokenizer.ggml.add_space_prefix") != 0

    @functools.cached_property
    def _before(self) -> dict[bytes, list[int]]:
        """Characters to put in front of a fragment, and their tokens at the start of a text."""
        usable = self._spellable("\n|0").encode() if self._spellable(" ") else b""
        return {bytes([one]): self._tokenize(bytes([one])) for one in usable}

    def piece(self, token: int) -> bytes:
        """The bytes of `token` in a text: none if special, unless a tag of thoughts or calls. Raises PromptError."""
        if token not in self._pieces:
            piece = self._piece(token, special=False)
            if not piece and (spelled := self._piece(token, special=True)) in TAGS:
                piece = spelled
            self._pieces[token] = piece
        return self._pieces[token]

    def spelling(self, tokens: Sequence[int]) -> bytes:
        """The bytes of `tokens` in a prompt, where special tokens are visible."""
        return b"".join(map(self._spelled(tokens).__getitem__, tokens))

    def _spelled(self, tokens: Sequence[int]) -> dict[int, bytes]:
        return {token: self._piece(token, special=True) for token in set(tokens)}

    def prompt_text(self, tokens: Sequence[int]) -> bytes:
        """The text of a prompt with visible special tokens, without its BOS and the spaces that tokenize() adds."""
        if tokens[:1] == [self.bos]:
            tokens = tokens[1:]
        spelled, attributes = self._spelled(tokens), llama_cpp.llama_vocab_get_attr
        with self.use():
            special = {token for token in spelled if _SPECIAL & attributes(self.vocabulary, token)}
        text, space = bytearray(), b" " if self._adds_space else b""
        begins = True  # a text, before which tokenize() adds the space
        for token in tokens:
            text += spelled[token] if token in special else self.piece(token).removeprefix(space if begins else b"")
            begins = token in special
        return bytes(text)

    def _piece(self, token: int, *, special: bool) -> bytes:
        if not 0 <= token < self.n_vocab:  # llama.cpp would end the process
            raise PromptError(f"no token {token} in a vocabulary of {self.n_vocab}")
        n = -64
        while n < 0:
            buffer = ctypes.create_string_buffer(-n)
            with self.use():
                n = llama_cpp.llama_token_to_piece(self.vocabulary, token, buffer, -n, 0, special)
        return buffer.raw[:n]

    # Chat

    @functools.cached_property
    def chat_template(self) -> ChatTemplate:
        """The chat template. Raises PromptError if the file has none, or an invalid one."""
        return self._template("tokenizer.chat_template")

    @functools.cached_property
    def tool_template(self) -> ChatTemplate:
        """The chat template for conversations with tools: some files have two."""
        key = "tokenizer.chat_template.tool_use"
        return self._template(key) if self.header.text(key) else self.chat_template

    def apply_chat_template(self, messages: Messages, tools: Tools = ()) -> ChatText:
        """The prompt for `messages`, up to the assistant's answer, or the end of what begins it. Raises PromptError."""
        return (self.tool_template if tools else self.chat_template).render(messages, tools, None, begun(messages))

    def _template(self, key: str) -> ChatTemplate:
        source = self.header.text(key)
        if not source:
            raise PromptError(f"{self.path.name} has no chat template: send a plain prompt instead")
        bos, eos = (
            self.spelling([token]).decode("utf-8", "replace") if token >= 0 else "" for token in (self.bos, self.eos)
        )
        return ChatTemplate(source, name=self.path.name, bos=bos, eos=eos, variables=self.template_variables)


def _on_large_stack(n_bytes: int, work: Callable[[], list[int]]) -> list[int]:
    """The result of `work`, run on a thread with a stack of `n_bytes`. Raises what it raises, or MemoryError."""
    with ThreadPoolExecutor(1, "duo-stack") as pool:
        with _stack_size:
            before = threading.stack_size()
            try:
                threading.stack_size(-(-n_bytes // _PAGE) * _PAGE)
                future = pool.submit(work)
            except (RuntimeError, ValueError, OverflowError) as error:
                raise MemoryError(f"no memory for a stack of {n_bytes} bytes") from error
            finally:
                threading.stack_size(before)
        return future.result()
