"""ModelApi: the endpoints that generate no text: /v1/models, /props, /tokenize, /detokenize."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from duo import __version__
from duo.llama.model import Model
from duo.server.api import DetokenizeBody, TokenizeBody
from duo.server.api_error import WARNING, ApiError, json_response
from duo.server.generation_request import Defaults
from duo.server.generation_service import GenerationService
from duo.server.parse_request import RequestWork, check_text, checked_tokens


@dataclass(slots=True)
class ModelApi:
    """What the lead says about its model, and its tokens."""

    service: GenerationService
    work: RequestWork
    alias: str | None  # the model's name for clients; None: the file's
    defaults: Defaults
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def name(self) -> str:
        """The model's name in the API. Raises BusyError before a model is loaded and after it has stopped."""
        return self.alias or self.service.engine.slot.target.path.stem

    def warn(self, request: Request, name: str | None) -> None:
        """Tell the client if it asks for another model: this one answers, as in llama-server."""
        if name not in (None, "", "default", self.name):
            note = f"unknown model {str(name)[:100]!a}: {self.name!a} answers"
            request.scope[WARNING] = "; ".join(filter(None, (request.scope[WARNING], note)))

    async def models(self, request: Request) -> Response:
        """GET /v1/models and /v1/models/{name}."""
        slot, wanted = self.service.engine.slot, request.path_params.get("name")
        if wanted not in (None, "", "default", self.name):
            raise ApiError(
                404, f"unknown model {wanted[:100]!r}: this server has {self.name!r}", code="model_not_found"
            )
        target = slot.target
        model = {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "duo",
            "max_model_len": slot.n_ctx,  # as in vLLM
            "meta": {
                "vocab_type": target.vocab_type,
                "n_vocab": target.n_vocab,
                "n_ctx": slot.n_ctx,
                "n_ctx_train": target.n_ctx_train,
                "n_params": target.n_params,
                "size": target.n_bytes,
            },
        }
        return json_response({"object": "list", "data": [model]} if wanted is None else model)

    async def props(self, _: Request) -> Response:
        """GET /props: llama-server's fields that are true here."""
        slot, defaults = self.service.engine.slot, self.defaults
        model, sampling, stop = slot.target, defaults.config.sampling, defaults.config.stop
        same = "top_k", "top_p", "min_p", "repeat_last_n", "repeat_penalty", "presence_penalty", "frequency_penalty"
        params = {
            "seed": -1 if defaults.random_seed else sampling.seed,
            "temperature": sampling.temp,
            "typical_p": sampling.typical,
            **{name: getattr(sampling, name) for name in same},
            "stop": stop.stop_strings,
            "max_tokens": stop.n_predict,
            "n_predict": stop.n_predict,
            "ignore_eos": stop.ignore_eos,
        }
        return json_response(
            {
                "default_generation_settings": {"n_ctx": slot.n_ctx, "params": params},
                "total_slots": 1,
                "model_alias": self.name,
                "model_path": model.path.name,  # clients need not know the folder
                "model_ftype": model.quantisation,
                "modalities": {"vision": False, "audio": False, "video": False},
                "endpoint_slots": False,
                "endpoint_props": False,
                "endpoint_metrics": True,
                "chat_template": model.metadata("tokenizer.chat_template") or "",
                "bos_token": _spelling(model, model.bos),
                "eos_token": _spelling(model, model.eos),
                "build_info": f"duo {__version__}",
                "is_sleeping": False,
            }
        )

    async def tokenize(self, request: Request) -> Response:
        """POST /tokenize."""
        slot = self.service.engine.slot
        body, n_bytes = await self.work.parse_request(request, TokenizeBody)

        def work() -> Response:
            check_text(body.content, slot.target, slot.n_ctx, is_prompt=False)
            tokens = slot.target.tokenize(body.content, add_bos=body.add_special, parse_special=body.parse_special)
            return json_response({"tokens": _with_pieces(tokens, slot.target) if body.with_pieces else tokens})

        return await self.work.run(n_bytes, work)

    async def detokenize(self, request: Request) -> Response:
        """POST /detokenize."""
        model = self.service.engine.slot.target
        body, n_bytes = await self.work.parse_request(request, DetokenizeBody)

        def work() -> Response:
            content = model.spelling(checked_tokens(body.tokens, model)).decode("utf-8", "replace")
            return json_response({"content": content})

        return await self.work.run(n_bytes, work)


def _with_pieces(tokens: Sequence[int], model: Model) -> list[msgspec.Raw]:
    """Each token with its text, or its bytes if they are not text."""
    found = {}
    for token in set(tokens):
        piece = model.spelling([token])
        try:
            text: str | list[int] = piece.decode()
        except UnicodeDecodeError:
            text = list(piece)
        found[token] = msgspec.Raw(msgspec.json.encode({"id": token, "piece": text}))
    return [found[token] for token in tokens]


def _spelling(model: Model, token: int) -> str:
    """A special token in a prompt; empty if the vocabulary has none."""
    return model.spelling([token]).decode("utf-8", "replace") if token >= 0 else ""
