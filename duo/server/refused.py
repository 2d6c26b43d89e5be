"""Paths of llama-server that a lead does not serve, and what to use instead."""

from collections.abc import Iterator
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from duo.errors import ApiError

# In the words of the command line: see duo/cli/llama_flags.txt.
_INSTEAD = {
    "/embedding /embeddings /v1/embeddings /rerank /reranking /v1/rerank /v1/reranking":
        "duo generates text only: use llama-server for embeddings and reranking",
    "/infill": "duo completes text only at its end: write the model's own tokens for infilling into a prompt of "
        "/completion",
    "/lora-adapters": "no LoRA adapters here: merge it into a copy of the model (llama-export-lora of llama.cpp)",
    "/audio/transcriptions /v1/audio/transcriptions": "text only here: use llama.cpp for images, audio and video",
    "/models/load /models/unload /models/sse": "a lead serves one model: start one for each, on different ports",
    "/v1/chat/completions/control": "a thought is not ended on request: disconnect, or send reasoning_effort none",
    "/v1/stream /v1/streams/lookup": "a text ends when its client disconnects: send it again",
    "/tools": "duo lead runs no tools: let the client run them",
    "/cors-proxy": "duo lead fetches no pages: let the client do it",
}  # fmt: skip


def refused_routes() -> Iterator[BaseRoute]:
    """A route for each path."""
    for paths, instead in _INSTEAD.items():
        refuse = partial(_refuse, instead)
        yield from (Route(path, refuse, methods=["GET", "POST", "DELETE"]) for path in paths.split())


async def _refuse(instead: str, request: Request) -> Response:
    # As llama-server has it for what it does not support.
    raise ApiError(501, f"{request.url.path}: {instead}")
