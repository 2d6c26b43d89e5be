"""Back ends that are libraries of their own are loaded from llama.cpp's folder, into every copy of ggml."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import llama_cpp
import pytest
from llama_cpp._ggml import libggml

from duo.llama import library


class FakeGgml:
    """A library with `n` back ends, which loads some more."""

    _name = "/somewhere/llama_cpp/lib/libggml.so"

    def __init__(self, n: int) -> None:
        self.loaded: list[bytes] = []
        self._functions = {
            "ggml_backend_reg_count": Mock(side_effect=lambda: n),
            "ggml_backend_load_all_from_path": Mock(side_effect=self.loaded.append),
        }

    def __getitem__(self, name: str) -> Any:
        return self._functions[name]


@pytest.mark.parametrize(("n", "n_other"), [(0, 0), (0, 2), (2, 0), (2, 2)])
def test_only_a_list_without_back_ends_is_filled(monkeypatch: pytest.MonkeyPatch, n: int, n_other: int) -> None:
    ggml, other = FakeGgml(n), FakeGgml(n_other)
    monkeypatch.setattr(library, "libggml", ggml)
    monkeypatch.setattr("llama_cpp.llama_cpp._lib", other)
    library._load_backends()
    folder = [bytes(Path(FakeGgml._name).parent)]
    assert ggml.loaded == (folder if n == 0 else [])
    assert other.loaded == (folder if n_other == 0 else [])


def test_this_build_has_back_ends_in_both_lists() -> None:
    library.start()
    for lib in (llama_cpp.llama_cpp._lib, libggml):
        assert lib["ggml_backend_reg_count"]() > 0
