"""Tiny models for what does not depend on the text."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gguf_files import tiny_gemma, tiny_hybrid, tiny_llama, tiny_mamba, tiny_qwen35


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="session")
def recurrent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_mamba(tmp_path_factory.mktemp("models") / "recurrent.gguf")


@pytest.fixture(scope="session")
def kin(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Models of several architectures that would write much the same text: every other guess of `llama` is right."""
    folder = tmp_path_factory.mktemp("models")
    return {
        "llama": tiny_llama(folder / "llama.gguf", seed=2, depth=0.02),
        "lfm2": tiny_hybrid(folder / "lfm2.gguf", seed=2, depth=0.05),
        "qwen35": tiny_qwen35(folder / "qwen35.gguf", seed=2, depth=0.05),
        "gemma": tiny_gemma(folder / "gemma.gguf", window=16, seed=2, depth=0.2),
    }
