"""The models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from duo.cli.options.declare import MAIN, MODELS, option

DRAFT_FILE_VARIABLES = ["LLAMA_ARG_SPEC_DRAFT_MODEL", "LLAMA_ARG_MODEL_DRAFT"]


# fmt: off
OfflineOpt = Annotated[bool, option(
    "--offline", panel=MODELS, env="LLAMA_ARG_OFFLINE", help="Use only cached models, without network access.")]


@dataclass(frozen=True)
class ModelOptions:
    """Model files."""

    model: Annotated[Path | None, option(
        "-m", "--model", panel=MAIN, metavar="GGUF", env="LLAMA_ARG_MODEL",
        help="Target model, which decides every token of the text; demo: a small demo pair.")] = None
    model_draft: Annotated[Path | None, option(
        "-md", "--model-draft", "--spec-draft-model", panel=MAIN, metavar="GGUF",
        env=DRAFT_FILE_VARIABLES,
        help="Draft model: small, best with the vocabulary of the target. Without one, candidates come from the text "
        "itself only (--lookup).")] = None


@dataclass(frozen=True)
class HubOptions:
    """Models on Hugging Face."""

    hf_repo: Annotated[str | None, option(
        "-hf", "-hfr", "--hf-repo", panel=MODELS, metavar="USER/REPO[:QUANT]", env="LLAMA_ARG_HF_REPO",
        help="Hugging Face repository of the target; QUANT defaults to Q4_K_M.")] = None
    hf_repo_draft: Annotated[str | None, option(
        "-hfd", "-hfrd", "--hf-repo-draft", panel=MODELS, metavar="USER/REPO[:QUANT]",
        env="LLAMA_ARG_SPEC_DRAFT_HF_REPO", help="Hugging Face repository of the draft.")] = None
    offline: OfflineOpt = False


@dataclass(frozen=True)
class WeightOptions:
    """How weights are loaded."""

    mlock: Annotated[bool, option(
        "--mlock", panel=MODELS, env="LLAMA_ARG_MLOCK", help="Keep the weights in memory, never swapped.")] = False
    mmap: Annotated[bool, option(
        "--mmap/--no-mmap", panel=MODELS, env="LLAMA_ARG_MMAP",
        help="Memory-map the weights, or read them all at the start.")] = True
