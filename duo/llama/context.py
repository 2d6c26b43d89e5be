"""Context: one KV cache of one model, decoded by one thread at a time."""

import ctypes
import time
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

from duo.config import ContextConfig
from duo.errors import DecodeAborted, DecodeError, ModelError, RollbackError
from duo.llama import library
from duo.llama.build import CPU
from duo.llama.context_params import check_memory, context_params, flash_attention
from duo.llama.lifeline import Handle
from duo.llama.limits import failure, of_size
from duo.llama.model import Model
from duo.llama.sequences import Logits, SavedState, Sequences

ABORTED, _NO_MEMORY = 2, -2
# llama_get_logits, whose result is an address: an object for the pointer takes longer than the rest.
_get_logits = llama_cpp.llama_cpp._lib["llama_get_logits"]
_get_logits.argtypes, _get_logits.restype = [ctypes.c_void_p], ctypes.c_void_p
_LARGE = 65  # batches of a prompt: larger than those of candidates, and computed alike
_FIRST_BATCH, _BATCH_S = 32, 1.0  # first size and intended duration of a batch on RPC servers


class Context(Sequences):
    """A KV cache and its buffers. Its OpenMP threads belong to the thread that calls decode().

    `n_past` tokens are in the cache, and the next decode continues there. `n_batch`: the most tokens of one decode; on
    RPC servers it adapts to their speed. `n_rollback`: None if any number of tokens can be rolled back. A model with
    recurrent layers keeps its state after each of the last tokens of a batch, if llama.cpp grants it: then at most so
    many, once after each decode, and never the first of its batch. 0: only all tokens at once.

    The text is sequence 0. `n_branches` more sequences can continue beginnings of it, each in at most BRANCH_CELLS
    cells of its own; or `n_texts` - 1 can hold other texts, all in the same `n_cells`. Those of `alternatives` are used
    by decode_with(). `was_first`: the last decode was
    the first of its size on a device, which compiles for it.
    """

    def __init__(self, model: Model, config: ContextConfig, **more: Any) -> None:
        """Allocate the cache. Raises MemoryLimitError if it does not fit, ModelError or UsageError if this fails.

        `more`: further fields of llama_context_params.
        """
        config = replace(config, flash_attn=flash_attention(model, config))
        if "ctx_type" not in more:  # else its cache has one layer of the model
            check_memory(model, config)
        params, caches = context_params(model, config, more), model.size.cache_bytes(config)
        # A flag in C memory that ggml reads between two operations through strlen(): "" is 0, continue. No Python code
        # runs during a decode.
        self._abort_flag = ctypes.create_string_buffer(2)
        params.abort_callback = ctypes.cast(ctypes.CDLL(None).strlen, llama_cpp.ggml_abort_callback)
        params.abort_callback_data = ctypes.cast(self._abort_flag, ctypes.c_void_p)
        needs = f"a context of {config.n_ctx} tokens needs {of_size(sum(caches))} and buffers"
        fits = config.n_ctx <= model.n_ctx_train
        with model.use() as weights, library.errors_of(model.path, needs, is_longer=fits) as errors, model.call:
            pointer = llama_cpp.llama_init_from_model(weights, params)
            if not pointer:
                why = f"llama.cpp could not create a context: {''.join(errors[:1])}"
                raise failure(model.path.name, "\n".join(errors), needs, why)
            super().__init__(pointer, llama_cpp.llama_free, parent=model)
        self.model = model
        self.n_device_bytes = sum(caches[model.n_layer - model.n_offloaded :])
        self._aborted = False
        self.on_decoded = lambda *_: None
        self.on_loaded = lambda _: None
        # Sizes of the batches that were decoded, on devices that may compile for each.
        self._sizes: set[int] | None = None if model.places == {CPU} else set()
        self.was_first = False
        self._past = {0: 0}
        self.n_vocab = model.n_vocab
        self.exact, self.flash_attn = config.exact, config.flash_attn
        self.n_rollback: int | None = None if model.can_roll_back else int(llama_cpp.llama_n_rs_seq(pointer))
        self.is_windowed = model.header.number("attention.sliding_window") > 0
        self.can_save = not (self.is_windowed and config.exact)  # of a window, logits are not bit-equal
        self._floor = self._first = 0  # see load(): tokens that cannot be rolled back; position of the first cell
        self._n_removable = 0  # tokens of the last decode that can be rolled back, if n_rollback is a number
        # llama.cpp rounds up to 256. Exact decodes pad to two rows: the last cell is reserved for the second.
        self.n_ctx: int = min(config.n_ctx, llama_cpp.llama_n_ctx(pointer)) - config.exact
        self._n_batch_max = most = int(llama_cpp.llama_n_ubatch(pointer))
        self.n_branches = min(config.n_branches, most - 1)  # a decode may have a token of each
        first = config.n_texts + config.n_branches
        self.alternatives = range(first, first + config.n_alternatives)
        self.n_texts, self.n_cells = config.n_texts, int(llama_cpp.llama_n_ctx(pointer))
        self._is_remote = model.is_remote
        self.n_batch = min(most, _FIRST_BATCH) if model.is_remote else most
        self._threads = (config.n_threads, config.n_threads_batch)
        self._arrays: dict[tuple[int, int], Logits] = {}
        # The memory of a copy that is no longer used: new memory takes the system twice as long as the copy.
        self._spare: deque[npt.NDArray[np.uint8]] = deque(maxlen=1)
        # A llama_batch, which is filled through arrays of its memory.
        self._batch = batch = llama_cpp.llama_batch_init(most, 0, 1 + config.n_alternatives)
        self._batch_handle = Handle(batch, llama_cpp.llama_batch_free, parent=self)
        self._tokens, self._positions, self._outputs = (
            (type(field.contents) * most).from_address(ctypes.addressof(field.contents))
            for field in (batch.token, batch.pos, batch.logits)
        )
        for i in range(most):
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0

    @property
    def n_past(self) -> int:
        """Tokens of the text in the cache."""
        return self._past.get(0, 0)

    def decode(self, tokens: Sequence[int], n_rows: int = 1) -> Logits:
        """Decode `tokens` (1 to n_batch) and return the logits after the last `n_rows` of them.

        Returns `[n_rows, n_vocab]` float32: row i predicts the token after `tokens[:len(tokens) - n_rows + 1 + i]`.
        The array is llama.cpp's own memory: it is writable and valid until the next decode. With `exact`, every batch
        has at least two rows and two outputs: a single token is decoded twice and the second one rolled back. llama.cpp
        uses other kernels for one row than for several, so only then are logits bit-equal in any batch.

        Raises DecodeError if llama.cpp rejects the batch, which leaves an empty cache, and DecodeAborted after abort(),
        which leaves it as before, or empty if `n_rollback` is a number.
        """
        is_padded = self.exact and len(tokens) == 1
        tokens = [*tokens, tokens[-1]] if is_padded else tokens
        n, n_outputs = len(tokens), max(2, n_rows) if self.exact and n_rows else n_rows
        self._decode(tokens, range(self.n_past, self.n_past + n), of_last(n, n_outputs))
        self.on_decoded(self.n_past, n)
        self._past[0] += n
        self._n_removable = min(self.n_rollback or 0, n - 1)
        if is_padded:
            self.rollback(self.n_past - 1)
        rows = self._logits(n_outputs)
        return rows[:n_rows] if is_padded else rows[n_outputs - n_rows :]

    def _decode(
        self, tokens: Sequence[int], positions: Sequence[int], outputs: bytes, sequences: Sequence[tuple[int, ...]] = ()
    ) -> None:
        n = len(tokens)
        self._abort_flag[0] = b"\0"
        if self._aborted:  # checked after the flag is cleared, and set before the flag is: no abort is lost
            raise DecodeAborted("the context is aborted")
        with self.use() as pointer:  # the batch, which is closed too, is written to
            self._tokens[:n], self._positions[:n] = tokens, positions
            self._outputs[:n] = outputs
            self._batch.n_tokens = n
            if sequences:
                self._set_sequences(sequences)
            began = time.perf_counter()
            with self.call:
                status = llama_cpp.llama_decode(pointer, self._batch)
                if self._is_remote:
                    llama_cpp.llama_synchronize(pointer)
            if sequences:
                self._set_sequences([(0,)] * len(sequences))
        if status:
            raise self._failed(n, status)
        if self._is_remote:  # one batch is to take about a second
            seconds, most = time.perf_counter() - began, self._n_batch_max
            if n == self.n_batch and seconds < _BATCH_S / 2:
                self.n_batch = min(2 * n, most)
            elif seconds > 2 * _BATCH_S:
                self.n_batch = max(self.n_batch // 2, min(most, _FIRST_BATCH))
        if self._sizes is not None:
            size = min(n, _LARGE)
            self.was_first = size not in self._sizes
            self._sizes.add(size)

    def _failed(self, n: int, status: int) -> DecodeError:
        """The error for a status of llama_decode() other than 0, after what it requires."""
        if status != ABORTED:
            n_past = self.n_past
            self.reset()  # the cells may be the reason
            did = "is out of memory for" if status == _NO_MEMORY else "rejected"
            return DecodeError(f"llama.cpp {did} {n} tokens after {n_past} in a context of {self.n_ctx} ({status})")
        if self.n_rollback is not None:
            self.rollback(0)  # the state may include a part of the batch
        return DecodeAborted("the decode was aborted")

    def _set_sequences(self, sequences: Sequence[tuple[int, ...]]) -> None:
        for i, those in enumerate(sequences):
            self._batch.n_seq_id[i] = len(those)
            for j, sequence in enumerate(those):
                self._batch.seq_id[i][j] = sequence

    def _logits(self, n_rows: int) -> Logits:
        if not n_rows:
            return np.empty((0, self.n_vocab), np.float32)
        address = _get_logits(self.pointer)
        if not address:
            raise DecodeError("llama.cpp returned no logits: is this a text generation model?")
        # Cached: the memory seldom moves, and making an array of it takes longer than finding the largest logit.
        if (address, n_rows) not in self._arrays:
            self._arrays[address, n_rows] = floats_at(address, n_rows, self.n_vocab)
        rows = self._arrays[address, n_rows]
        if not -np.inf < rows.max() < np.inf:  # NaN, if any of them is
            raise ModelError(
                f"{self.model.path}: its logits are not numbers: the file is damaged, or does not fit llama.cpp"
            )
        return rows

    def rollback(self, n_past: int) -> None:
        """Remove everything from position `n_past` on. Raises RollbackError if the cache cannot."""
        if n_past == self.n_past:
            return
        bounded, memory = self.n_rollback is not None, self._memory()
        # Not left to llama.cpp: it may return True after a rollback to a state of an earlier batch.
        is_possible = not n_past or (n_past >= self._floor and not bounded) or self.n_past - n_past <= self._n_removable
        if not n_past:
            self._floor = self._first = 0
        removed = is_possible and llama_cpp.llama_memory_seq_rm(memory, 0, n_past, -1)
        first = llama_cpp.llama_memory_seq_pos_min(memory, 0)
        # With a sliding window it may return True without the beginning. A recurrent state has only a last position.
        if not removed or first != (self._first if n_past and not bounded else n_past - 1):
            raise RollbackError(f"the cache could not be rolled back from {self.n_past} to {n_past} tokens")
        self._past[0] = n_past

    def reset(self) -> None:
        """Empty the cache, whatever is in it; also the values of its cells, which may not be numbers."""
        with self.call:
            llama_cpp.llama_memory_clear(self._memory(), True)
        self._past, self._floor, self._first, self._n_removable = {0: 0}, 0, 0, 0

    @property
    def n_state_bytes(self) -> int:
        """The size of a copy of the text's cells."""
        return self.state_bytes(0)

    def copy_of(self, sequence: int) -> SavedState:  # noqa: D102
        with self.use() as pointer, self.call:
            size = llama_cpp.llama_state_seq_get_size(pointer, sequence)
            buffer = self._spare.pop() if self._spare else np.empty(0, np.uint8)
            if not size <= buffer.nbytes <= 2 * size:
                buffer = np.empty(size + size // 8, np.uint8)  # the text is longer when it comes back
            cells = buffer[: llama_cpp.llama_state_seq_get_data(pointer, _bytes(buffer), buffer.nbytes, sequence)]
        weakref.finalize(cells, self._spare.append, buffer)
        return SavedState(cells, self._past.get(sequence, 0))

    def restore(self, state: SavedState, sequence: int) -> bool:  # noqa: D102
        with self.use() as pointer, self.call:
            n_read = llama_cpp.llama_state_seq_set_data(pointer, _bytes(state.cells), state.cells.nbytes, sequence)
        return n_read == state.cells.nbytes and self._holds(state.n_past, sequence)

    def _holds(self, n_past: int, sequence: int) -> bool:
        """Whether its cells are those of so many tokens, as far as llama.cpp tells."""
        first, last = (
            of(self._memory(), sequence)
            for of in (llama_cpp.llama_memory_seq_pos_min, llama_cpp.llama_memory_seq_pos_max)
        )
        return last == n_past - 1 and (first <= 0 or self.n_rollback is not None or self.is_windowed)

    def save(self) -> SavedState:
        """A copy of the text's cells: one memory block, which load() accepts."""
        return self.copy_of(0)

    def load(self, state: SavedState) -> bool:
        """Hold what save() has copied, in consecutive cells, and nothing else. False: llama.cpp cannot restore it.

        Of layers with a window, only that is copied. So none of these tokens can be rolled back then, but all of them.
        """
        self.rollback(0)
        if not (restored := self.restore(state, 0)):
            self.reset()
        self._past[0], self._n_removable = state.n_past if restored else 0, 0
        if self.is_windowed and restored:
            self._floor, self._first = self.n_past, llama_cpp.llama_memory_seq_pos_min(self._memory(), 0)
        self.on_loaded(self.n_past)
        return restored

    def probe_rollback(self) -> bool:
        """Whether this cache can be rolled back: tries it, with one thread, since a team would slow down others."""
        if self.n_rollback == 0:
            return False
        self.set_threads(1, 1)
        try:
            self.decode([0] * (1 + (self.n_rollback or 1)), n_rows=0)
            self.rollback(1)
        except RollbackError:
            return False
        finally:
            self.reset()
            self.set_threads(*self._threads)
        return True

    def set_threads(self, n_threads: int, n_threads_batch: int) -> None:
        """Set the numbers of threads for single tokens and for batches, from the next decode on."""
        llama_cpp.llama_set_n_threads(self.pointer, n_threads, n_threads_batch)

    def cancel(self) -> None:
        """Abort the current decode, if there is one. From any thread; effective on the CPU only."""
        self._abort_flag[0] = b"x"

    def abort(self) -> None:
        """Abort the current decode and all later ones. From any thread."""
        self._aborted = True
        self.cancel()

    def resume(self) -> None:
        """Undo abort()."""
        self._aborted = False


def of_last(n: int, n_outputs: int) -> bytes:
    """Outputs of a batch of `n` tokens: logits of the last `n_outputs`."""
    return bytes(n - n_outputs) + b"\1" * n_outputs


def floats_at(address: int, n: int, width: int) -> Logits:
    """`[n, width]` floats of llama.cpp's memory."""
    memory: Any = (ctypes.c_float * (n * width)).from_address(address)
    return np.frombuffer(memory, np.float32).reshape(n, width)


def _bytes(array: npt.NDArray[np.uint8]) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
