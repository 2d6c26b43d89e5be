"""The models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from duo.cli.options.declare import MAIN, MODELS, option

# fmt: off
OfflineOpt = Annotated[bool, option(
    "--offline", panel=MODELS, env="LLAMA_ARG_OFFLINE", help="Use only what has been fetched before.")]


@dataclass(frozen=True)
class ModelOptions:
    """The models, as files."""

    model: Annotated[Path | None, option(
        "-m", "--model", panel=MAIN, metavar="GGUF", env="LLAMA_ARG_MODEL",
        help="The target: the model whose text you want. Without it, a small demo pair.")] = None
    model_draft: Annotated[Path | None, option(
        "-md", "--model-draft", "--spec-draft-model", panel=MAIN, metavar="GGUF",
        env=["LLAMA_ARG_SPEC_DRAFT_MODEL", "LLAMA_ARG_MODEL_DRAFT"],
        help="The draft: a small model with the same vocabulary. Without it, plain decoding.")] = None


@dataclass(frozen=True)
class HubOptions:
    """The models, on Hugging Face."""

    hf_repo: Annotated[str | None, option(
        "-hf", "-hfr", "--hf-repo", panel=MODELS, metavar="USER/REPO[:QUANT]", env="LLAMA_ARG_HF_REPO",
        help="The target from Hugging Face (default quantisation Q4_K_M).")] = None
    hf_repo_draft: Annotated[str | None, option(
        "-hfd", "-hfrd", "--hf-repo-draft", panel=MODELS, metavar="USER/REPO[:QUANT]",
        env="LLAMA_ARG_SPEC_DRAFT_HF_REPO", help="The draft from Hugging Face.")] = None
    offline: OfflineOpt = False


@dataclass(frozen=True)
class WeightOptions:
    """How the weights get into memory."""

    mlock: Annotated[bool, option(
        "--mlock", panel=MODELS, env="LLAMA_ARG_MLOCK", help="Keep the weights in memory, never swapped.")] = False
    mmap: Annotated[bool, option(
        "--mmap/--no-mmap", panel=MODELS, env="LLAMA_ARG_MMAP",
        help="Map the weights from the file, or read them all at the start.")] = True
