"""Back ends that are libraries of their own are loaded into every copy of ggml, once."""

from __future__ import annotations

import llama_cpp
from llama_cpp._ggml import libggml

from duo.llama import library
from duo.llama.devices import list_backends


def test_this_build_has_its_back_ends_once_in_both_lists() -> None:
    library.start()
    names = list_backends()
    assert len(names) == len(set(names)) > 0
    for lib in (llama_cpp.llama_cpp._lib, libggml):
        assert lib["ggml_backend_reg_count"]() == len(names)
