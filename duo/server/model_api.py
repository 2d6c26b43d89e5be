"""ModelApi: the endpoints that generate no text: /v1/models, /props, /tokenize, /detokenize, /apply-template."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from duo import __version__
from duo.config import GenerationConfig
from duo.config.option import declared
from duo.engine.engine import Engine
from duo.llama.model import Model
from duo.server.api import ChatBody, DetokenizeBody, TokenizeBody
from duo.server.api_error import ApiError, json_response
from duo.server.chat_prompt import ChatPrompt
from duo.server.generation_service import GenerationService
from duo.server.parse_request import check_text


@dataclass(slots=True)
class ModelApi:
    """What the lead says about its model."""

    service: GenerationService
    defaults: GenerationConfig
    random_seed: bool  # a new seed for each text
    created: int = field(default_factory=lambda: int(time.time()))

    async def models(self, request: Request) -> Response:
        """GET /v1/models and /v1/models/{name}."""
        slot, name, wanted = self.service.engine.slot, self.service.model_name, request.path_params.get("name")
        if wanted not in (None, "", "default", name):
            raise ApiError(404, f"unknown model {wanted[:100]!r}: this server has {name!r}", "model_not_found")
        target = slot.target
        model = {
            "id": name,
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
        slot = self.service.engine.slot
        model, params = slot.target, {option.name: option.default for option in declared(self.defaults)}
        params["n_predict"] = params["max_tokens"]
        if self.random_seed:
            params["seed"] = -1
        return json_response(
            {
                "default_generation_settings": {"n_ctx": slot.n_ctx, "params": params},
                "total_slots": 1,
                "model_alias": self.service.model_name,
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


def tokenize(body: TokenizeBody, engine: Engine) -> Response:
    """POST /tokenize."""
    model = engine.slot.target
    check_text(body.content, model, engine.slot.n_ctx, is_prompt=False)
    tokens = model.tokenize(body.content, add_bos=body.add_special, parse_special=body.parse_special)
    if not body.with_pieces:
        return json_response({"tokens": tokens})
    pieces = {token: msgspec.Raw(msgspec.json.encode(_piece(token, model))) for token in set(tokens)}
    return json_response({"tokens": [pieces[token] for token in tokens]})


def detokenize(body: DetokenizeBody, engine: Engine) -> Response:
    """POST /detokenize."""
    return json_response({"content": engine.detokenize(engine.prompt_tokens(body.tokens))})


def apply_template(body: ChatBody, engine: Engine) -> Response:
    """POST /apply-template."""
    return json_response({"prompt": ChatPrompt.of(body, engine.slot.target, engine.slot.n_ctx).text})


def _piece(token: int, model: Model) -> dict[str, object]:
    """A token with its text, or its bytes if they are not text."""
    piece = model.spelling([token])
    try:
        return {"id": token, "piece": piece.decode()}
    except UnicodeDecodeError:
        return {"id": token, "piece": list(piece)}


def _spelling(model: Model, token: int) -> str:
    """A special token in a prompt; empty if the vocabulary has none."""
    return model.spelling([token]).decode("utf-8", "replace") if token >= 0 else ""
