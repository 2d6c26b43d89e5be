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

N_ROWS = 512  # at first

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
    """The rows of one target, to which every decode of the target adds. They grow with the text.

    A row consists of what enters each of some `layers`; the number of the target's layers stands for what leaves the
    last one. `array`: `[n, width]`, by position + 1, as nothing is before the first token; valid until the target
    decodes. `first`: the first position whose row is there: a restored text comes without. `is_lost`: llama.cpp has
    returned no rows.
    """

    def __init__(self, target: Context, layers: list[int]) -> None:
        """From now on, the target keeps its rows. Raises ModelError if this build has no functions for it."""
        self._call, self._target, self._n_layer = functions(), target, target.model.n_layer
        model = target.model
        self._layers = [(layer, model.n_embd_out if layer == self._n_layer else model.n_embd) for layer in layers]
        self.width = sum(width for _, width in self._layers)
        self.array: Rows = np.zeros((N_ROWS, self.width), np.float32)
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

    def _keep(self, first: int, n: int) -> None:
        """The target has decoded `n` tokens from position `first` on."""
        self.first = min(self.first, first)
        pointer, column = self._target.pointer, 0
        # A new array, where it has to be larger: the head's thread may be reading the old one.
        self.array = array = grown(self.array, first + n + 1)
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
            array[first + 1 : first + 1 + n, column : column + width] = self._given[address, n]
            column += width


def grown(rows: Rows, n: int) -> Rows:
    """These rows, with room for `n`."""
    if n <= len(rows):
        return rows
    found = np.zeros((max(n, 2 * len(rows)), rows.shape[1]), np.float32)
    found[: len(rows)] = rows
    return found
