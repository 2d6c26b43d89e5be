"""What the lead says about its model, and its tokens: /v1/models, /props, /tokenize, /detokenize."""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from duo import __version__
from duo.link.guard import ApiError
from duo.llama.model import Model
from duo.server.api import Defaults, DetokenizeRequest, TokenizeRequest
from duo.server.bodies import received
from duo.server.streams import json_response
from duo.server.texts import Texts
from duo.server.tokens import TokenWork, check_text, checked_tokens, tokens_json


class ModelApi:
    """Endpoints that generate no text."""

    def __init__(self, texts: Texts, work: TokenWork, alias: str | None, defaults: Defaults) -> None:
        """`alias`: the model's name for clients; None: the file's."""
        self._texts = texts
        self._work = work
        self._alias = alias
        self._defaults = defaults
        self._created = int(time.time())

    @property
    def name(self) -> str:
        """The model's name in the API. Raises BusyError before a model is loaded and after stop()."""
        return self._alias or self._texts.engine.slot.target.path.stem

    def check(self, name: str | None) -> None:
        """Raise ApiError if a request is for another model."""
        if name not in (None, "", "default", self.name):
            message = f"unknown model {str(name)[:100]!r}: this server has {self.name!r}"
            raise ApiError(404, message, code="model_not_found")

    async def models(self, _: Request) -> Response:
        """GET /v1/models."""
        return json_response({"object": "list", "data": [self._model_object()]})

    async def model(self, request: Request) -> Response:
        """GET /v1/models/{name}."""
        self.check(request.path_params["name"])
        return json_response(self._model_object())

    def _model_object(self) -> dict[str, Any]:
        slot = self._texts.engine.slot
        model = slot.target
        meta = {
            "vocab_type": model.vocab_type,
            "n_vocab": model.n_vocab,
            "n_ctx": slot.n_ctx,
            "n_ctx_train": model.n_ctx_train,
            "n_params": model.n_params,
            "size": model.n_bytes,
        }
        return {
            "id": self.name,
            "object": "model",
            "created": self._created,
            "owned_by": "duo",
            "max_model_len": slot.n_ctx,  # as in vLLM
            "meta": meta,
        }

    async def props(self, _: Request) -> Response:
        """GET /props: llama-server's fields that are true here."""
        slot = self._texts.engine.slot
        model = slot.target
        return json_response(
            {
                "default_generation_settings": {"n_ctx": slot.n_ctx, "params": self._default_params()},
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

    def _default_params(self) -> dict[str, Any]:
        """The options of a text whose request has none, in llama-server's words."""
        sampling, stop = self._defaults.config.sampling, self._defaults.config.stop
        return {
            "seed": -1 if self._defaults.random_seed else sampling.seed,
            "temperature": sampling.temp,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "typical_p": sampling.typical,
            "repeat_last_n": sampling.repeat_last_n,
            "repeat_penalty": sampling.repeat_penalty,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "stop": stop.stop_strings,
            "max_tokens": stop.n_predict,
            "n_predict": stop.n_predict,
            "ignore_eos": stop.ignore_eos,
        }

    async def tokenize(self, request: Request) -> Response:
        """POST /tokenize."""
        slot = self._texts.engine.slot
        body = await received(request, self._work, TokenizeRequest)

        def work() -> bytes:
            check_text(body.content, slot.target, slot.n_ctx, is_prompt=False)
            tokens = slot.target.tokenize(body.content, add_bos=body.add_special, parse_special=body.parse_special)
            return tokens_json(tokens, slot.target if body.with_pieces else None)

        return Response(await self._work.run(len(body.content), work), media_type="application/json")

    async def detokenize(self, request: Request) -> Response:
        """POST /detokenize."""
        model = self._texts.engine.slot.target
        tokens = (await received(request, self._work, DetokenizeRequest)).tokens

        def work() -> str:
            return model.spelling(checked_tokens(tokens, model)).decode("utf-8", "replace")

        return json_response({"content": await self._work.run(len(tokens), work)})


def _spelling(model: Model, token: int) -> str:
    """A special token in a prompt; empty if the vocabulary has none."""
    return model.spelling([token]).decode("utf-8", "replace") if token >= 0 else ""
