"""What `duo` alone and `duo --version` print. It imports little, so that it is quick."""

import os
import sys
from collections.abc import Iterator

_PAGE = """\
duo runs a large language model (a GGUF file) faster, with a small draft model that runs concurrently.

  duo demo                                      see it: two small models, 360 MB, fetched on first use
  duo chat -m main.gguf                         chat with a model
  duo chat -m main.gguf -md draft.gguf          the same with a draft: the same text, faster
  duo -m main.gguf -md draft.gguf -p "Once"     complete a text (--chat: answer a question)
  duo lead -m main.gguf -md draft.gguf          a server with an OpenAI-compatible API
  duo tune -m main.gguf -md draft.gguf          is it faster with this draft, on this machine?
  duo tune -m main.gguf                         which draft is the fastest for this model?
  duo list                                      the models on this machine

From Hugging Face: -hf USER/REPO:QUANT instead of -m, -hfd instead of -md. llama.cpp's flags work.
duo --help has the main options and all commands."""


def show() -> bool:
    """Print what `duo` or `duo --version` prints; False for another command line, or a model in the environment."""
    if sys.argv[1:] == ["--version"]:
        show_versions()
    elif sys.argv[1:] or any(map(os.environ.get, ("LLAMA_ARG_MODEL", "LLAMA_ARG_HF_REPO", "_DUO_COMPLETE"))):
        return False
    else:
        print(_PAGE)  # noqa: T201 - the output
    return True


def show_versions(*, verbose: bool = False) -> None:
    """Print the versions that matter; if `verbose`, the licence and the third-party packages too."""
    from duo.llama.build import versions  # noqa: PLC0415 - not for the start page

    for name, version in versions().items():
        print(f"{name} {version}")  # noqa: T201 - the output
    if verbose:
        print("\n".join(["", *_notices()]))  # noqa: T201


def _notices() -> Iterator[str]:
    from importlib.metadata import distribution  # noqa: PLC0415 - only here

    from packaging.requirements import Requirement  # noqa: PLC0415

    duo = distribution("duo-llm")
    yield duo.read_text("licenses/LICENSE") or "Licence: see the file LICENSE"
    yield "Direct dependencies, each under its own licence:"
    for requirement in map(Requirement, duo.requires or []):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            package = distribution(requirement.name)
            found = package.metadata
            licence = found["License-Expression"] or found["License"] or "see its metadata"
            yield f"{package.name} {package.version}: {licence.splitlines()[0]}"
    yield "llama.cpp and ggml, compiled into llama-cpp-python: MIT, Copyright (c) 2023-2026 The ggml authors"
