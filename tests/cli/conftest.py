"""Tiny models for what does not depend on the text."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gguf_files import tiny_llama, tiny_mamba


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="session")
def recurrent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_mamba(tmp_path_factory.mktemp("models") / "recurrent.gguf")
