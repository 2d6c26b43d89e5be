"""What `duo` alone prints. It imports little, so that it is quick."""

from __future__ import annotations

import os
import sys

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


def show_start() -> int:
    """Print the lines of help that matter most, and what to type next. Returns the exit status."""
    print(_PAGE)  # noqa: T201 - the output
    return 0


def is_needed() -> bool:
    """Whether this is shown: for `duo` alone, but not if the environment names a model or the shell completes words."""
    return len(sys.argv) < 2 and not any(map(os.environ.get, ("LLAMA_ARG_MODEL", "LLAMA_ARG_HF_REPO", "_DUO_COMPLETE")))
