"""Paths of llama-server, and of Ollama, that a lead does not serve, and what to use instead."""

from collections.abc import Iterator

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from duo.server.api_error import ApiError

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
    "/api/{path:path}": "this is not Ollama's API: OpenAI's is at http://HOST:PORT/v1, llama-server's /completion at /",
}  # fmt: skip


def refused_routes() -> Iterator[BaseRoute]:
    """A route for each path: 501, as llama-server has it for what it does not support; 404 for another API."""
    for paths, instead in _INSTEAD.items():

        async def refuse(request: Request, instead: str = instead) -> Response:
            path = request.url.path
            raise ApiError(404 if path.startswith("/api/") else 501, f"{path[:100]}: {instead}")

        yield from (Route(path, refuse, methods=["GET", "POST", "DELETE"]) for path in paths.split())
