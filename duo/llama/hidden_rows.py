"""HiddenRows: what a target computes in its layers, kept for the head that drafts for it.

The reference is common/speculative.cpp of llama.cpp, whose functions for it are not declared in llama.h.
"""

import ctypes
import functools
from contextlib import suppress
from types import SimpleNamespace

import llama_cpp
import numpy as np
import numpy.typing as npt

from duo.errors import ModelError
from duo.llama.context import Context, floats_at

Rows = npt.NDArray[np.float32]

N_ROWS = 512  # at first, and the last ones that stay in a long text: heads read no older ones

# llama-ext.h: the functions of a context, and their further arguments as the Itanium C++ ABI mangles them. Those that
# get something return its address.
_FUNCTIONS = {
    "llama_set_embeddings_nextn": "bb", "llama_set_nextn_layer_offset": "i", "llama_get_embeddings_nextn": "",
    "llama_set_embeddings_layer_inp": "jb", "llama_get_embeddings_layer_inp": "j",
}  # fmt: skip
_ARGUMENTS = {"b": ctypes.c_bool, "i": ctypes.c_int32, "j": ctypes.c_uint32}


@functools.cache
def functions() -> SimpleNamespace:
    """The functions, by name. Raises ModelError if this build lacks one."""
    found, lib = SimpleNamespace(), llama_cpp.llama_cpp._lib
    for name, arguments in _FUNCTIONS.items():
        function = getattr(lib, name, None) or getattr(lib, f"_Z{len(name)}{name}P13llama_context{arguments}", None)
        if function is None:
            raise ModelError(f"this build of llama.cpp has no {name}: heads need that of llama-cpp-python 0.3.36")
        function.restype = ctypes.c_void_p if "_get_" in name else None
        function.argtypes = [ctypes.c_void_p, *map(_ARGUMENTS.__getitem__, arguments)]
        setattr(found, name, function)
    return found


def supports_heads() -> bool:
    """Whether this build has all functions that heads need."""
    with suppress(ModelError):
        functions()
        return True
    return False


class HiddenRows:
    """The last rows of one target, to which every decode of the target adds.

    A row consists of what enters each of some `layers`; the number of the target's layers stands for what leaves the
    last one. `first`: the first position whose row is there: a restored text comes without, and old ones go, of which
    `n_kept` stay. `is_lost`: llama.cpp has returned no rows.
    """

    def __init__(self, target: Context, layers: list[int]) -> None:
        """From now on, the target keeps its rows. Raises ModelError if this build has no functions for it."""
        self._call, self._target, self._n_layer = functions(), target, target.model.n_layer
        model = target.model
        self._layers = [(layer, model.n_embd_out if layer == self._n_layer else model.n_embd) for layer in layers]
        self.width = sum(width for _, width in self._layers)
        # By position + 1, as nothing is before the first token, from `start` on: [n, width]. Never changed in place but
        # at its end, since the head's thread may be reading it.
        self._kept: tuple[Rows, int] = np.zeros((N_ROWS, self.width), np.float32), 0
        self.n_kept = N_ROWS
        self._given: dict[tuple[int, int], Rows] = {}  # llama.cpp's memory of the rows
        self.first, self.is_lost = 0, False
        self._ask(True)
        target.on_decoded, target.on_loaded = self._keep, self._lack

    def close(self) -> None:
        """The target keeps no more rows."""
        if not self._target.closed:
            self._ask(False)
            self._target.on_decoded, self._target.on_loaded = lambda *_: None, lambda _: None

    def _ask(self, wanted: bool) -> None:
        """Let the target compute rows, or not."""
        for layer, _ in self._layers:
            if layer == self._n_layer:
                self._call.llama_set_embeddings_nextn(self._target.pointer, wanted, False)
            else:
                self._call.llama_set_embeddings_layer_inp(self._target.pointer, layer, wanted)

    def _lack(self, n_tokens: int) -> None:
        """The target holds `n_tokens` of another text, whose rows HeadContext.load() may restore."""
        self.first = n_tokens

    def between(self, begin: int, end: int) -> Rows:
        """The rows of the positions from `begin` - 1 to `end` - 2, valid until the target decodes. Those lost are 0."""
        array, start = self._kept
        if begin >= start:
            return array[begin - start : end - start]
        found = np.zeros((end - begin, self.width), np.float32)
        found[start - begin :] = array[: max(0, end - start)]
        return found

    def save(self, n_past: int) -> tuple[Rows, int, int]:
        """A copy of those of the first `n_past` positions, for restore()."""
        array, start = self._kept
        return array[: max(0, n_past + 1 - start)].copy(), start, self.first

    def restore(self, array: Rows, start: int, first: int) -> None:
        """Hold what save() has copied."""
        self._kept, self.first = (grown(array, max(N_ROWS, len(array) + 1)), start), first  # a copy

    def _room(self, first: int, n: int) -> tuple[Rows, int]:
        """What is kept, with room for the rows of `n` positions from `first` on."""
        (before, began), end = self._kept, first + n + 1
        most = 2 * self.n_kept + self._target.n_batch
        if began <= first and end - began <= most:
            return grown(before, end - began), began
        start = max(0, end - n - self.n_kept)
        array: Rows = np.zeros((most, self.width), np.float32)
        if (oldest := max(start, began)) <= first:
            known = before[oldest - began : first + 1 - began]  # none in a text that was restored
            array[oldest - start : oldest - start + len(known)] = known
        return array, start

    def _keep(self, first: int, n: int) -> None:
        """The target has decoded `n` tokens from position `first` on."""
        pointer, column = self._target.pointer, 0
        self._kept = array, start = self._room(first, n)
        self.first = max(min(self.first, first), start - 1)
        for layer, width in self._layers:
            if layer == self._n_layer:
                address = self._call.llama_get_embeddings_nextn(pointer)
            else:
                address = self._call.llama_get_embeddings_layer_inp(pointer, layer)
            if not address:  # the text goes on without the head
                self.is_lost, self._target.on_decoded = True, lambda *_: None
                return
            # Cached, as in Context: after a decode the processor's caches are cold.
            if (address, n) not in self._given:
                self._given[address, n] = floats_at(address, n, width)
            begin = first + 1 - start
            array[begin : begin + n, column : column + width] = self._given[address, n]
            column += width


def grown(rows: Rows, n: int) -> Rows:
    """These rows, with room for `n`."""
    if n <= len(rows):
        return rows
    found = np.zeros((max(n, 2 * len(rows)), rows.shape[1]), np.float32)
    found[: len(rows)] = rows
    return found
