"""GenerationRequest: what a client asks for, made from the body of its request."""

import math
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from duo.config import SAMPLERS, SCHEDULE_NAMES, SCHEDULES, GenerationConfig
from duo.config.option import with_values
from duo.engine.engine import Engine
from duo.engine.request import AS_USUAL, Drafting
from duo.engine.slot import Slot
from duo.llama.chat_template import THOUGHTS, Thought
from duo.llama.grammar import checked, schema_grammar
from duo.server.answer_parser import AnswerFormat
from duo.server.api import MAX_BIASED, ChatBody, CompletionBody, DuoOptions, LogitBias, TextBody, given
from duo.server.api_error import ApiError
from duo.server.chat_prompt import Calls, ChatPrompt
from duo.server.conversation import Conversation, Json
from duo.server.parse_request import check_text, too_long

_MIN_TEMPERATURE = 1e-6  # anything below is 0
_ID = re.compile(r"[+-]?[0-9]+")
_UNSUPPORTED = {"functions": ": send tools", "echo": "", "suffix": ""}  # with what to do instead


class Body(Protocol):
    """The body of a request for a text, of any API."""

    @property
    def stream(self) -> bool | None: ...  # noqa: D102

    def options(self) -> TextBody:
        """How the text is written."""

    def conversation(self) -> Conversation | None:
        """What it asks to continue; None: a prompt. Raises ApiError."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What a client asks for."""

    body: Body
    options: TextBody
    prompt: Sequence[int]
    config: GenerationConfig
    format: AnswerFormat  # what the text may have besides content
    drafting: Drafting = AS_USUAL
    ignored: Sequence[str] = ()  # what was asked for and is not supported

    @classmethod
    def of(cls, body: Body, engine: Engine, defaults: GenerationConfig, *, random_seed: bool) -> "GenerationRequest":
        """What the body asks for. Blocks for a JSON schema. Raises ApiError, PromptError, UsageError, BusyError."""
        calls, thinks, thought, is_begun = None, None, THOUGHTS[0], False
        conversation, options = body.conversation(), body.options()
        if isinstance(body, CompletionBody):
            prompt = _prompt_tokens(body.prompt, engine)
        elif conversation is not None:
            chat = ChatPrompt.of(conversation, engine)
            prompt, calls, thinks, thought = engine.tokenize(chat.text), chat.calls, chat.thinks, chat.thought
            is_begun = chat.is_begun
        _check(options, prompt, engine.slot)
        grammar = _grammar(options, calls, thinks, thought) or defaults.grammar
        shows_tags = conversation is not None and conversation.shows_tags
        if is_begun and grammar is not None and (calls is None or options.response_format or options.json_schema):
            raise ApiError(400, "an answer that is begun cannot have a grammar or a schema: send one of them")
        if grammar is not None and calls is None:  # such a grammar has no room for a thought
            thinks = None
        seed = (-1 if random_seed else defaults.sampling.seed) if options.seed is None else options.seed
        values = _options(options, defaults, engine) | {
            "seed": secrets.randbits(32) if seed == -1 else seed % 2**64,
            "grammar": grammar,
            "logprobs": _n_logprobs(options),
        }
        ignored = conversation.ignored if conversation is not None else ()
        return cls(
            body,
            options,
            prompt,
            with_values(defaults, values),
            AnswerFormat(thinks, calls is not None, thought, shows_tags),
            drafting_of(options),
            ignored,
        )


def drafting_of(body: TextBody, schedule: str | None = None) -> Drafting:
    """How a text is drafted; `schedule`: of the header. Raises ApiError."""
    asked = body.duo if isinstance(body.duo, DuoOptions) else DuoOptions()
    name = asked.schedule or schedule
    name = SCHEDULE_NAMES.get(name, name) if name is not None else None
    if name not in (None, *SCHEDULES):
        raise ApiError(400, f"unknown schedule {str(name)[:40]!r} (available: {', '.join(SCHEDULES)})")
    return Drafting(name, asked.lookup, body.speculative_n_max if asked.n_draft is None else asked.n_draft)


def _prompt_tokens(prompt: str | list[int | str], engine: Engine) -> list[int]:
    """The tokens of a completion's prompt: BOS comes only before a text at its start. Raises ApiError, PromptError."""
    pieces, tokens, model = [prompt] if isinstance(prompt, str) else prompt, list[int](), engine.slot.target
    texts = [piece for piece in pieces if isinstance(piece, str)]
    if len(texts) == len(pieces) != 1:
        raise ApiError(400, "prompt: several texts are several prompts: send one in each request")
    check_text("".join(texts), model, engine.slot.n_ctx)
    for n, piece in enumerate(pieces):
        tokens += [piece] if isinstance(piece, int) else model.tokenize(piece, add_bos=n == 0)
    return engine.prompt_tokens(tokens)


def _check(body: TextBody, prompt: Sequence[int], slot: Slot) -> None:
    """Raise ApiError if the prompt does not fit, or something is asked for that is not supported."""
    if body.n not in (None, 1):
        raise ApiError(400, f"n must be 1, not {body.n}: several choices are not supported")
    if isinstance(body, CompletionBody) and body.tools:
        raise ApiError(400, "tools are not supported here: use /v1/chat/completions")
    for name, instead in _UNSUPPORTED.items():
        if getattr(body, name):  # an explicit False is the default
            raise ApiError(400, f"{name} is not supported{instead}")
    if body.id_slot is not None and not -1 <= body.id_slot < slot.config.n_slots:
        raise ApiError(400, f"id_slot: there is no slot {body.id_slot}, only 0 to {slot.config.n_slots - 1}")
    wants_text = 0 not in (body.max_tokens, body.max_completion_tokens, body.n_predict)
    if len(prompt) + wants_text > slot.n_ctx:
        raise too_long(len(prompt), slot.n_ctx)


def _options(body: TextBody, defaults: GenerationConfig, engine: Engine) -> Json:
    """The options of a text, by the names of with_values(). Raises ApiError or PromptError."""
    lengths = (body.max_completion_tokens, body.max_tokens, body.n_predict, defaults.stop.n_predict)
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    return given(
        body,
        top_k=0 if body.top_k == -1 else body.top_k,
        repeat_last_n=engine.slot.n_ctx if body.repeat_last_n == -1 else body.repeat_last_n,
        temperature=0.0 if 0 < (body.temperature or 0) < _MIN_TEMPERATURE else body.temperature,
        logit_bias=_token_biases(body.logit_bias, engine) if body.logit_bias is not None else None,
        # Clients of llama-server list all of its samplers.
        samplers=tuple(name for name in body.samplers if name in SAMPLERS) if body.samplers is not None else None,
        max_tokens=next(length for length in lengths if length is not None),
        stop=(*defaults.stop.stop_strings, *filter(None, stops)),
    )


def _grammar(body: TextBody, calls: Calls | None, thinks: bool | None, thought: Thought) -> str | None:
    """The grammar of the text. Raises ApiError if more than one is asked for, and UsageError or BusyError."""
    name, form = body.form()
    if calls is not None:
        if isinstance(form, str):
            raise ApiError(400, f"{name} and tools exclude each other: use response_format")
        return calls.grammar(thinks, thought, form)
    if isinstance(form, str):
        return checked(form).decode()
    return schema_grammar(msgspec.json.encode(form).decode(), "the schema") if form is not None else None


def _n_logprobs(body: TextBody) -> int | None:
    """See GenerationConfig. In a completion, true is 1, as in llama-server, whose `n_probs` both may have."""
    logprobs = body.logprobs if isinstance(body, ChatBody | CompletionBody) else None
    asked: int | None = logprobs if logprobs is not False else None
    if isinstance(body, ChatBody):
        if asked is None and body.top_logprobs is not None:
            raise ApiError(400, "top_logprobs needs logprobs: true")
        asked = (body.top_logprobs or 0) if asked else None
    return body.n_probs or None if asked is None else int(asked)


def _token_biases(biases: LogitBias, engine: Engine) -> tuple[tuple[int, float], ...]:
    """The tokens, all of each text, and what is added to the logit of each. Raises ApiError or PromptError."""
    found: list[tuple[int, float]] = []
    for key, value in biases.items() if isinstance(biases, dict) else biases:
        if value is True:
            raise ApiError(400, "logit_bias: a bias is a number, or false to forbid the token")
        if isinstance(key, str) and not _ID.fullmatch(key):
            tokens = engine.slot.target.tokenize(key, add_bos=False, parse_special=False)
        else:
            tokens = engine.prompt_tokens([int(key)])
        found += [(token, -math.inf if value is False else value) for token in tokens]
        if len(found) > MAX_BIASED:
            raise ApiError(400, f"logit_bias: more than {MAX_BIASED} tokens")
    return tuple(found)
