"""GenerationRequest: what a client asks for, made from the body of its request."""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from duo.config import GenerationConfig, StopConfig
from duo.engine.engine import Engine
from duo.llama.grammar import checked, schema_grammar
from duo.llama.model import Model
from duo.server.answer_parser import AnswerFormat
from duo.server.api import MAX_BIASED, ChatBody, CompletionBody, LogitBias, TextBody
from duo.server.api_error import ApiError
from duo.server.chat_prompt import Calls, ChatPrompt
from duo.server.parse_request import check_text, checked_tokens

_MIN_TEMPERATURE = 1e-6  # anything below is 0
_ID = re.compile(r"[+-]?[0-9]+")


@dataclass(frozen=True, slots=True)
class Defaults:
    """The server's defaults."""

    config: GenerationConfig
    random_seed: bool  # a new seed for each text


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What a client asks for."""

    prompt: Sequence[int]
    config: GenerationConfig
    is_chat: bool
    format: AnswerFormat  # what the text may have besides content
    streams: bool
    wants_usage: bool  # at the end of a stream
    wants_sources: bool  # each chunk of a stream tells where its characters come from

    @classmethod
    def of(cls, body: ChatBody | CompletionBody, engine: Engine, defaults: Defaults) -> GenerationRequest:
        """What the body asks for. Blocks if it has a JSON schema. Raises ApiError, PromptError, UsageError, BusyError.

        The grammar is that of the calls where there may be some.
        """
        target, n_ctx = engine.slot.target, engine.slot.n_ctx
        calls, form, thinks = None, AnswerFormat(), None
        if isinstance(body, ChatBody):
            chat = ChatPrompt.of(body, target, n_ctx)
            prompt, calls, thinks = engine.tokenize(chat.text), chat.calls, chat.thinks
            form = AnswerFormat(None if body.reasoning_format == "none" else thinks, calls is not None)
        else:
            prompt = _prompt_tokens(body.prompt, engine)
        _check(body, prompt, n_ctx)
        grammar = _grammar(body, calls, thinks) or defaults.config.grammar
        if grammar is not None and calls is None:
            form = AnswerFormat()  # such a grammar has no room for a thought
        return cls(
            prompt,
            _config(body, defaults, grammar, target, n_ctx),
            isinstance(body, ChatBody),
            form,
            bool(body.stream),
            bool(body.stream_options and body.stream_options.include_usage),
            bool(body.duo),
        )


def _prompt_tokens(prompt: str | list[int | str], engine: Engine) -> list[int]:
    """The tokens of a completion's prompt. Raises ApiError."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        prompt = prompt[0]
    if not isinstance(prompt, str):
        return checked_tokens(prompt, engine.slot.target)
    check_text(prompt, engine.slot.target, engine.slot.n_ctx)
    return engine.tokenize(prompt)


def _check(body: ChatBody | CompletionBody, prompt: Sequence[int], n_ctx: int) -> None:
    """Raise ApiError if the prompt does not fit, or something is asked for that is not supported."""
    if body.n not in (None, 1):
        raise ApiError(400, f"n must be 1, not {body.n}: several choices are not supported")
    if isinstance(body, CompletionBody) and body.tools:
        raise ApiError(400, "tools are not supported here: use /v1/chat/completions")
    if body.functions:
        raise ApiError(400, "functions is not supported: send tools")
    for name in ("echo", "suffix"):  # an explicit False is the default
        if getattr(body, name):
            raise ApiError(400, f"{name} is not supported")
    if not prompt:
        raise ApiError(400, "the prompt has no tokens")
    if len(prompt) > n_ctx:
        message = f"the prompt has {len(prompt)} tokens, the context {n_ctx}"
        raise ApiError(400, message, code="context_length_exceeded")


def _config(body: TextBody, defaults: Defaults, grammar: str | None, model: Model, n_ctx: int) -> GenerationConfig:
    """The options of a text. Raises ApiError."""
    default, temp, seed = defaults.config, body.temperature, body.seed
    if seed is None:
        seed = -1 if defaults.random_seed else default.sampling.seed
    given = {
        "temp": 0.0 if temp is not None and temp < _MIN_TEMPERATURE else temp,
        "top_p": body.top_p,
        "top_k": body.top_k and max(0, body.top_k),  # -1 is off
        "min_p": body.min_p,
        "typical": body.typical_p,
        "repeat_penalty": body.repeat_penalty,
        "repeat_last_n": n_ctx if body.repeat_last_n == -1 else body.repeat_last_n,
        "presence_penalty": body.presence_penalty,
        "frequency_penalty": body.frequency_penalty,
        "logit_bias": _token_biases(body.logit_bias, model) if body.logit_bias else None,
        "seed": secrets.randbits(32) if seed == -1 else seed % 2**64,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    lengths = (body.max_completion_tokens, body.max_tokens, body.n_predict)
    stops = [stop for stop in ([body.stop] if isinstance(body.stop, str) else body.stop or []) if stop]
    stop = StopConfig(
        next((length for length in lengths if length is not None), default.stop.n_predict),
        (*default.stop.stop_strings, *stops),
        default.stop.ignore_eos if body.ignore_eos is None else body.ignore_eos,
    )
    sampling = replace(default.sampling, **changes)  # type: ignore[arg-type]  # checked where they were parsed
    return GenerationConfig(sampling, stop, grammar, n_logprobs=body.n_logprobs)


def _grammar(body: TextBody, calls: Calls | None, thinks: bool | None) -> str | None:
    """The grammar of the text. Raises ApiError if more than one is asked for, and UsageError or BusyError."""
    schemas = [body.json_schema] if body.json_schema is not None else []
    form = body.response_format
    if form is not None and form.type in ("json_object", "json_schema"):
        schemas.append((form.json_schema.schema if form.json_schema is not None else form.schema) or {})
    elif form is not None and form.type != "text":
        raise ApiError(400, f"unknown response_format {form.type!r} (available: text, json_object, json_schema)")
    if len(schemas) + (body.grammar is not None) + (calls is not None) > 1:
        raise ApiError(400, "grammar, json_schema, response_format and tools exclude each other: send one")
    if calls is not None:
        return calls.grammar(thinks)
    if schemas:
        return schema_grammar(msgspec.json.encode(schemas[0]).decode(), "the schema")
    if body.grammar is not None:
        checked(body.grammar)
    return body.grammar


def _token_biases(given: LogitBias, model: Model) -> tuple[tuple[int, float], ...]:
    """The tokens, and what is added to the logit of each; a text stands for all of its tokens. Raises ApiError."""
    found: list[tuple[int, float]] = []
    for key, value in given.items() if isinstance(given, dict) else given:
        if value is True:
            raise ApiError(400, "logit_bias: a bias is a number, or false to forbid the token")
        if isinstance(key, str) and not _ID.fullmatch(key):
            tokens = model.tokenize(key, add_bos=False, parse_special=False)
        elif 0 <= int(key) < model.n_vocab:
            tokens = [int(key)]
        else:
            raise ApiError(400, f"logit_bias: no token {key} in a vocabulary of {model.n_vocab}")
        found += [(token, -math.inf if value is False else value) for token in tokens]
        if len(found) > MAX_BIASED:
            raise ApiError(400, f"logit_bias: more than {MAX_BIASED} tokens")
    return tuple(found)
