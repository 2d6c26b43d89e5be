"""Endpoints: what is served under which path, except for the page, the events and the WebSocket of remote drafts."""

import errno
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from prometheus_client import generate_latest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from duo import __version__
from duo.chat.conversation import Json
from duo.chat.prompt import ChatPrompt, check_text
from duo.config import GenerationConfig
from duo.engine.engine import Engine
from duo.engine.model_pair import ModelPair
from duo.errors import ApiError
from duo.http.guard import ROUTE
from duo.llama.model import Model
from duo.remote.messages import sendable
from duo.server.api import ChatBody, CompletionBody, DetokenizeBody, LlamaBody, PropsBody, SlotBody, TokenizeBody
from duo.server.chat_formatter import ChatFormatter, LlamaFormatter, settings_of
from duo.server.formatter import Formatter
from duo.server.generation_request import formatters_of
from duo.server.generation_service import GenerationService, owner_of, respond
from duo.server.messages_api import MessagesBody, MessagesFormatter, messages_error
from duo.server.requests import ERROR_BODY, NO_EFFECT, WARNING, WARNING_HEADER, RequestWork, json_response
from duo.server.responses_api import ResponsesBody, ResponsesFormatter

Endpoint = Callable[[Request], Awaitable[Response]]

Work = Callable[[Any, Engine], Response]  # the answer to a body
_FILE_NAME = re.compile("[A-Za-z0-9_-][A-Za-z0-9_. -]{0,200}")  # in one folder
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # nothing more can be written
# Paths of llama-server that are not served, and what to use instead, in the words of duo/cli/llama_flags.txt
_REFUSED = {
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
SCHEDULE_HEADER = "X-Duo-Schedule"


@dataclass(frozen=True)
class Endpoints:
    """Answers requests with the texts of a service, and with what its engine knows."""

    service: GenerationService
    work: RequestWork
    defaults: GenerationConfig
    random_seed: bool  # whether each text has a new seed
    folder: Path | None = None  # for conversations that are saved
    slots: bool = True  # whether GET /slots is served
    props: bool = False  # whether POST /props is served
    created: int = field(default_factory=lambda: int(time.time()))

    def routes(self) -> list[BaseRoute]:
        """Their paths, as in llama-server."""
        get: dict[str, Endpoint] = {
            "/health /v1/health": self._health,
            "/models /v1/models /v1/models/{name:path}": self._models,
            "/props": self._props,
            "/slots": self._slots,
            "/tokenizer_info": self._tokenizer_info,
            "/metrics": self._metrics,
            ROUTE: _upgrade,
        }
        post: dict[str, tuple[Any, Work | type[Formatter]]] = {
            "/chat/completions /v1/chat/completions": (ChatBody, ChatFormatter),
            "/completions /v1/completions": (CompletionBody, ChatFormatter),
            "/completion": (LlamaBody, LlamaFormatter),
            "/responses /v1/responses": (ResponsesBody, ResponsesFormatter),
            "/v1/messages": (MessagesBody, MessagesFormatter),
            "/chat/completions/input_tokens /v1/chat/completions/input_tokens": (ChatBody, count_tokens),
            "/responses/input_tokens /v1/responses/input_tokens": (ResponsesBody, count_tokens),
            "/v1/messages/count_tokens": (MessagesBody, count_tokens),
            "/apply-template": (ChatBody, apply_template),
            "/props": (PropsBody, self._change_props),
            "/tokenize": (TokenizeBody, tokenize),
            "/detokenize": (DetokenizeBody, detokenize),
        }
        return [
            *_routes(get, "GET"),
            *_routes({paths: partial(self._answer, *of) for paths, of in post.items()}, "POST"),
            Route("/slots/{place}", self._change_slot, methods=["POST"]),
            *_routes(
                {paths: partial(_refuse, instead) for paths, instead in _REFUSED.items()}, "GET", "POST", "DELETE"
            ),
        ]

    async def _health(self, _: Request) -> Response:
        engine = self.service.engine
        if engine.scheduler.fault is not None:
            raise ApiError(500, f"internal error in the last generation: {engine.scheduler.fault}")
        return json_response({"status": "ok"})

    async def _metrics(self, _: Request) -> Response:
        return Response(generate_latest(self.service.metrics), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _models(self, request: Request) -> Response:
        """GET /v1/models and /v1/models/{name}."""
        slot, name, wanted = self.service.engine.slot, self.service.model_name, request.path_params.get("name")
        if wanted and wanted not in ("default", name):
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
        return json_response({"object": "list", "data": [model]} if not wanted else model)

    async def _props(self, _: Request) -> Response:
        """GET /props: llama-server's fields that are true here."""
        engine, params = self.service.engine, settings_of(self.defaults)
        slot, model = engine.slot, engine.slot.target
        params |= {"seed": -1} if self.random_seed else {}
        return json_response(
            {
                "default_generation_settings": {"n_ctx": slot.n_ctx, "params": params},
                "total_slots": slot.config.n_slots,
                "model_alias": self.service.model_name,
                "model_path": sendable(model.path.name),  # clients need not know the folder
                "model_ftype": model.quantisation,
                "modalities": {"vision": False, "audio": False, "video": False},
                "endpoint_slots": self.slots,
                "endpoint_props": self.props,
                "endpoint_metrics": True,
                "chat_template": model.header.text("tokenizer.chat_template"),
                "bos_token": engine.detokenize([model.bos] if model.bos >= 0 else []),
                "eos_token": engine.detokenize([model.eos] if model.eos >= 0 else []),
                "build_info": f"duo {__version__}",
                "is_sleeping": False,
            }
        )

    def _change_props(self, _: PropsBody, __: Engine) -> Response:
        """POST /props. llama-server has no property that could be changed, either."""
        if not self.props:
            raise ApiError(501, "POST /props is not served: start the lead with --props")
        return json_response({"success": True})

    async def _tokenizer_info(self, _: Request) -> Response:
        """GET /tokenizer_info: as in vLLM, what a file tokenizer_config.json has."""
        engine, model = self.service.engine, self.service.engine.slot.target
        ids = {name: model.header.integer(f"tokenizer.ggml.{name}_token_id") for name in ("padding", "unknown")}
        ids = {"bos": model.bos, "eos": model.eos, "pad": ids["padding"], "unk": ids["unknown"]}
        tokens = {name: None if i is None or i < 0 else engine.detokenize([i]) for name, i in ids.items()}
        return json_response(
            {f"{name}_token": token for name, token in tokens.items()}
            | {
                "tokenizer_class": model.header.text("tokenizer.ggml.model"),
                "chat_template": model.header.text("tokenizer.chat_template") or None,
                "model_max_length": engine.slot.n_ctx,
                "add_bos_token": model.adds_bos,
                "add_eos_token": model.adds_eos,
            }
        )

    async def _slots(self, _: Request) -> Response:
        """GET /slots: the conversations that are kept; llama-server's fields."""
        if not self.slots:
            raise ApiError(501, "GET /slots is not served: start the lead without --no-slots")
        slot = self.service.engine.slot
        running = self.service.engine.scheduler.running()
        written = {text.slot: len(text.prompt) + text.n_written for text in running}
        return json_response(
            [
                {"id": i, "n_ctx": slot.n_ctx, "is_processing": i in written, "n_prompt_tokens": written.get(i, n)}
                for i, n in enumerate(slot.kept)
            ]
        )

    async def _change_slot(self, request: Request) -> Response:
        """POST /slots/ID?action=save, restore or erase."""
        given, action = request.path_params["place"], request.query_params.get("action", "")
        engine, folder = self.service.engine, self.folder
        place = int(given) if re.fullmatch("[0-9]{1,4}", given) else -1
        if action not in ("save", "restore", "erase"):
            raise ApiError(400, f"unknown action {action[:40]!r} (available: save, restore, erase)")
        if not 0 <= place < engine.slot.config.n_slots:
            raise ApiError(400, f"no slot {given[:40]}: there are {engine.slot.config.n_slots}")
        if action == "erase":
            n = await self.work.run(lambda: engine.call(lambda slot: slot.erase(place)), is_slow=True)
            return json_response({"id_slot": place, "n_erased": n})
        if folder is None:
            raise ApiError(400, "conversations cannot be saved here: start the lead with --slot-save-path")
        body, _ = await self.work.parse_request(request, SlotBody)
        if not _FILE_NAME.fullmatch(body.filename):
            raise ApiError(400, "filename must be a name without a folder: letters, digits, spaces, '.', '_' and '-'")
        path, began = folder / body.filename, time.perf_counter()
        change, owner = ModelPair.save if action == "save" else ModelPair.restore, owner_of(request)
        try:
            n, size = await self.work.run(
                lambda: engine.call(lambda slot: change(slot, place, path, owner)), is_slow=True
            )
        except OSError as error:
            is_client = error.errno == errno.EISDIR or (action == "restore" and error.errno != errno.EIO)
            status = 507 if error.errno in _FULL else 400 if is_client else 500
            raise ApiError(status, f"{body.filename}: {error.strerror or error}") from None
        names = ("n_saved", "n_written") if action == "save" else ("n_restored", "n_read")
        timings = {f"{action}_ms": 1000 * (time.perf_counter() - began)}
        found = {"id_slot": place, "filename": body.filename, **dict(zip(names, (n, size), strict=True))}
        return json_response(found | {"timings": timings})

    async def _answer(self, kind: Any, work: Work | type[Formatter], request: Request) -> Response:
        """The response to a POST: texts, or what `work` makes of its body; a header has what the client should know."""
        if kind is MessagesBody:
            request.scope[ERROR_BODY] = messages_error
        engine, name = self.service.engine, self.service.model_name
        body, is_slow = await self.work.parse_request(request, kind)
        choices, ignored = list[Formatter](), list[str]()
        if isinstance(work, type):
            asked = partial(formatters_of, work, body, engine, self.defaults, name, random_seed=self.random_seed)
            schedule = request.headers.get(SCHEDULE_HEADER)
            choices, ignored = await self.work.run(partial(asked, schedule=schedule), is_slow=is_slow)
        else:
            response = await self.work.run(lambda: work(body, engine), is_slow=is_slow)
        notes = [request.scope[WARNING]]
        notes += [f"ignored: {', '.join(ignored)[:200]!a}"] if ignored else []
        model = getattr(body, "model", None)
        # This one answers, as in llama-server. Clients of the Messages API name Anthropic's models.
        is_known = model in (None, "", "default", name) or (kind is MessagesBody and str(model).startswith("claude"))
        notes += [f"unknown model {str(model)[:100]!a}: {name!a} answers"] if not is_known else []
        request.scope[WARNING] = "; ".join(filter(None, notes))
        if choices:
            response = await respond(self.service, request, choices)
        if warning := "; ".join(filter(None, (request.scope[WARNING], request.scope.get(NO_EFFECT)))):
            response.headers[WARNING_HEADER] = warning
        return response


def _routes(endpoints: Mapping[str, Endpoint], *methods: str) -> Iterator[BaseRoute]:
    for paths, endpoint in endpoints.items():
        yield from (Route(path, endpoint, methods=methods) for path in paths.split())


async def _upgrade(_: Request) -> Response:
    raise ApiError(426, "this is the WebSocket of remote drafts: connect with duo back")


async def _refuse(instead: str, request: Request) -> Response:
    raise ApiError(501, f"{request.url.path}: {instead}")  # the status that llama-server has for such


def tokenize(body: TokenizeBody, engine: Engine) -> Response:
    """POST /tokenize."""
    model = engine.slot.target
    if [body.content, body.prompt, body.messages or None].count(None) != 2:
        raise ApiError(400, "send either content (llama-server's), prompt or messages (vLLM's)")
    if body.messages:
        tokens = _chat_tokens(body, engine)
    else:
        text = body.content if body.content is not None else body.prompt or ""
        adds = body.add_special if body.content is not None else body.add_special_tokens is not False
        check_text(text, model, engine.slot.n_ctx, is_prompt=False)
        tokens = model.tokenize(text, add_bos=adds, parse_special=body.parse_special)
    pieces = {token: {"id": token, "piece": _piece(token, model)} for token in set(tokens)} if body.with_pieces else {}
    found: Json = {"tokens": [pieces.get(token, token) for token in tokens]}
    if body.content is None:
        names = map(model.header.tokens.__getitem__, tokens)
        words = [name.decode("utf-8", "replace") for name in names] if body.return_token_strs else None
        found |= {"count": len(tokens), "max_model_len": engine.slot.n_ctx, "token_strs": words}
    return json_response(found)


def detokenize(body: DetokenizeBody, engine: Engine) -> Response:
    """POST /detokenize: `content` as in llama-server, `prompt` as in vLLM."""
    text = engine.detokenize(engine.prompt_tokens(body.tokens))
    return json_response({"content": text, "prompt": text})


def count_tokens(body: MessagesBody | ChatBody | ResponsesBody, engine: Engine) -> Response:
    """POST /v1/messages/count_tokens, and the input_tokens of OpenAI's APIs."""
    count = {"input_tokens": len(_chat_tokens(body, engine))}
    return json_response(count if isinstance(body, MessagesBody) else {"object": "response.input_tokens", **count})


def _chat_tokens(body: MessagesBody | ChatBody | ResponsesBody, engine: Engine) -> list[int]:
    """The tokens of a chat's prompt, also of one that ends with calls, which has no answer."""
    return engine.tokenize(ChatPrompt.of(body.conversation(), engine, is_answered=False).text)


def apply_template(body: ChatBody, engine: Engine) -> Response:
    """POST /apply-template."""
    return json_response({"prompt": str(ChatPrompt.of(body.conversation(), engine).text)})


def _piece(token: int, model: Model) -> str | list[int]:
    """The text of a token, or its bytes if they are not text."""
    piece = model.spelling([token])
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)
