"""GenerationRequest: what a client asks for, made from the body of its request."""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from duo.config import GenerationConfig
from duo.config.option import with_values
from duo.engine.engine import Engine
from duo.llama.grammar import checked, schema_grammar
from duo.llama.model import Model
from duo.server.answer_parser import AnswerFormat
from duo.server.api import MAX_BIASED, ChatBody, CompletionBody, LogitBias, TextBody
from duo.server.api_error import ApiError
from duo.server.chat_prompt import Calls, ChatPrompt
from duo.server.parse_request import check_text

_MIN_TEMPERATURE = 1e-6  # anything below is 0
_ID = re.compile(r"[+-]?[0-9]+")
_UNSUPPORTED = {"functions": ": send tools", "echo": "", "suffix": ""}  # with what to do instead


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What a client asks for."""

    body: ChatBody | CompletionBody
    prompt: Sequence[int]
    config: GenerationConfig
    format: AnswerFormat  # what the text may have besides content

    @classmethod
    def of(
        cls, body: ChatBody | CompletionBody, engine: Engine, defaults: GenerationConfig, *, random_seed: bool
    ) -> GenerationRequest:
        """What the body asks for. Blocks if it has a JSON schema. Raises ApiError, PromptError, UsageError, BusyError.

        The grammar is that of the calls where there may be some.
        """
        target, n_ctx = engine.slot.target, engine.slot.n_ctx
        calls, thinks, shows_tags = None, None, False
        if isinstance(body, ChatBody):
            chat = ChatPrompt.of(body, target, n_ctx)
            prompt, calls, thinks = engine.tokenize(chat.text), chat.calls, chat.thinks
            shows_tags = body.reasoning_format == "none"
        else:
            prompt = _prompt_tokens(body.prompt, engine)
        _check(body, prompt, n_ctx)
        grammar = _grammar(body, calls, thinks) or defaults.grammar
        if shows_tags or (grammar is not None and calls is None):  # such a grammar has no room for a thought
            thinks = None
        config = _config(body, defaults, grammar, target, n_ctx, random_seed=random_seed)
        return cls(body, prompt, config, AnswerFormat(thinks, calls is not None))


def _prompt_tokens(prompt: str | list[int | str], engine: Engine) -> list[int]:
    """The tokens of a completion's prompt. Raises ApiError or PromptError."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        prompt = prompt[0]
    if isinstance(prompt, str):
        check_text(prompt, engine.slot.target, engine.slot.n_ctx)
        return engine.tokenize(prompt)
    tokens = [token for token in prompt if isinstance(token, int)]
    if len(tokens) < len(prompt):
        raise ApiError(400, "several prompts in one request are not supported")
    return engine.prompt_tokens(tokens)


def _check(body: ChatBody | CompletionBody, prompt: Sequence[int], n_ctx: int) -> None:
    """Raise ApiError if the prompt does not fit, or something is asked for that is not supported."""
    if body.n not in (None, 1):
        raise ApiError(400, f"n must be 1, not {body.n}: several choices are not supported")
    if isinstance(body, CompletionBody) and body.tools:
        raise ApiError(400, "tools are not supported here: use /v1/chat/completions")
    for name, instead in _UNSUPPORTED.items():
        if getattr(body, name):  # an explicit False is the default
            raise ApiError(400, f"{name} is not supported{instead}")
    if not prompt:
        raise ApiError(400, "the prompt has no tokens")
    if len(prompt) > n_ctx:
        message = f"the prompt has {len(prompt)} tokens, the context {n_ctx}"
        raise ApiError(400, message, code="context_length_exceeded")


def _config(
    body: TextBody, defaults: GenerationConfig, grammar: str | None, model: Model, n_ctx: int, *, random_seed: bool
) -> GenerationConfig:
    """The options of a text. Raises ApiError or UsageError."""
    given = {name: value for name, value in msgspec.structs.asdict(body).items() if value is not None}
    for name, without_limit in (("top_k", 0), ("repeat_last_n", n_ctx)):
        if given.get(name) == -1:
            given[name] = without_limit
    if 0 < given.get("temperature", 0) < _MIN_TEMPERATURE:
        given["temperature"] = 0.0
    if body.logit_bias is not None:
        given["logit_bias"] = _token_biases(body.logit_bias, model)
    lengths = (body.max_completion_tokens, body.max_tokens, body.n_predict, defaults.stop.n_predict)
    given["max_tokens"] = next(length for length in lengths if length is not None)
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    given["stop"] = (*defaults.stop.stop_strings, *filter(None, stops))
    seed = given.get("seed", -1 if random_seed else defaults.sampling.seed)
    given["seed"] = secrets.randbits(32) if seed == -1 else seed % 2**64
    return with_values(defaults, given | {"grammar": grammar, "logprobs": body.n_logprobs})


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
