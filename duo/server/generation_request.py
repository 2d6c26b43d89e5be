"""What a client asks for: the requests for texts of the body of its request, of any API."""

import math
import re
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from duo.chat.conversation import Json
from duo.chat.prompt import ChatPrompt, check_text, too_long
from duo.config import SAMPLERS, SCHEDULE_NAMES, SCHEDULES, GenerationConfig
from duo.config.option import with_values
from duo.engine.engine import Engine
from duo.engine.model_pair import ModelPair
from duo.engine.request import Drafting, Request
from duo.errors import ApiError, PromptError
from duo.llama.grammar import checked, schema_grammar
from duo.server.api import MAX_BIASED, MAX_CHOICES, MAX_TOKENS, CompletionBody, DuoOptions, LogitBias, TextBody, given
from duo.server.formatter import Body, Formatter

_MIN_TEMPERATURE = 1e-6  # anything below is 0
_ID = re.compile(r"[+-]?[0-9]+")
_UNSUPPORTED = {"functions": ": send tools", "suffix": ""}  # with what to do instead
_MAX_SCORED = 2**22  # logprobs of the tokens of prompts in one answer


class GivenPrompt(NamedTuple):
    """A prompt of a request. `text`: as it was sent; None: as tokens."""

    tokens: Sequence[int]
    text: str | None = None


def formatters_of(
    kind: type[Formatter],
    body: Body,
    engine: Engine,
    defaults: GenerationConfig,
    model_name: str,
    *,
    random_seed: bool,
    schedule: str | None = None,
) -> tuple[list[Formatter], list[str]]:
    """What a body asks for: each choice, a request and how it is formatted, and what is not supported.

    `schedule`: of the header. Blocks for a JSON schema. Raises ApiError, PromptError, UsageError or BusyError.
    """
    conversation, options = body.conversation(), body.options()
    if isinstance(body, CompletionBody):
        chat, prompts = ChatPrompt(""), _prompts(body.prompt, engine)
    else:
        chat = ChatPrompt.of(conversation, engine)
        prompts = [GivenPrompt(engine.tokenize(chat.text))]
    n = _check(options, prompts, engine.slot)
    config = _config(options, chat, defaults, engine, random_seed=random_seed)
    n_tokens = n * sum(len(prompt.tokens) for prompt in prompts)
    scores = bool(options.echo) and config.n_logprobs is not None
    if scores and n_tokens * (1 + (config.n_logprobs or 0)) > _MAX_SCORED:
        raise ApiError(400, f"echo: {n_tokens} tokens with logprobs in one answer are too many: send fewer prompts")
    has_room = config.grammar is None or chat.calls is not None  # for a thought
    form = chat.format if has_room else chat.format._replace(thinks=None)
    drafting, reuses = _drafting(options, schedule), options.cache_prompt is not False
    slot = options.id_slot if options.id_slot is not None else -1
    # The seeds count up for each prompt, as in llama-server.
    seeds = [replace(config.sampling, seed=(config.sampling.seed + i) % 2**64) for i in range(n)]
    choices = [(prompt, replace(config, sampling=sampling)) for prompt in prompts for sampling in seeds]
    found = [
        kind(
            Request(
                prompt.tokens, config, drafting=drafting, reuses=reuses, slot=slot, scored=[] if scores else None
            ),
            body, options, form, engine.slot.target, model_name, prompt.text, i, n,
        )
        for i, (prompt, config) in enumerate(choices)
    ]  # fmt: skip
    return found, conversation.ignored


def _config(
    options: TextBody, chat: ChatPrompt, defaults: GenerationConfig, engine: Engine, *, random_seed: bool
) -> GenerationConfig:
    """How the texts are written."""
    grammar = _grammar(options, chat) or defaults.grammar
    if chat.is_begun and grammar is not None and (chat.calls is None or options.form()[1] is not None):
        raise ApiError(400, "an answer that is begun cannot have a grammar or a schema: send one of them")
    seed = (-1 if random_seed else defaults.sampling.seed) if options.seed is None else options.seed
    values = _options(options, defaults, engine) | {
        "seed": secrets.randbits(32) if seed == -1 else seed % 2**64,
        "grammar": grammar,
        "logprobs": options.n_logprobs(),
    }
    return with_values(defaults, values)


def _drafting(body: TextBody, schedule: str | None) -> Drafting:
    """How a text is drafted; `schedule`: of the header. Raises ApiError."""
    asked = body.duo if isinstance(body.duo, DuoOptions) else DuoOptions()
    name = asked.schedule or schedule
    name = SCHEDULE_NAMES.get(name, name) if name is not None else None
    if name not in (None, *SCHEDULES):
        raise ApiError(400, f"unknown schedule {str(name)[:40]!r} (available: {', '.join(SCHEDULES)})")
    return Drafting(name, asked.lookup, body.speculative_n_max if asked.n_draft is None else asked.n_draft)


def _prompts(given: str | list[Any], engine: Engine) -> list[GivenPrompt]:
    """The prompts of a completion, as llama-server tells one from several. Raises ApiError or PromptError."""
    is_one = isinstance(given, str) or any(isinstance(part, int) for part in given)
    several = [given] if is_one else given
    if not 0 < len(several) <= MAX_CHOICES:
        raise ApiError(400, f"prompt: there must be 1 to {MAX_CHOICES} prompts, not {len(several)}")
    return [_prompt(one, engine) for one in several]


def _prompt(given: str | list[Any], engine: Engine) -> GivenPrompt:
    """One of them: a text, or tokens and texts."""
    model, n_ctx, tokens = engine.slot.target, engine.slot.n_ctx, list[int]()
    parts = [given] if isinstance(given, str) else given
    if len(parts) > n_ctx:  # each takes some time
        raise too_long(len(parts), n_ctx)
    for i, part in enumerate(parts):
        if isinstance(part, list):
            raise ApiError(400, "prompt: a list has tokens and texts, or several prompts")
        if isinstance(part, str):
            check_text(part, model, n_ctx)
        tokens += model.tokenize(part, add_bos=not i) if isinstance(part, str) else [part]
    if not tokens:
        raise PromptError("the prompt has no tokens")
    return GivenPrompt(engine.prompt_tokens(tokens), given if isinstance(given, str) else None)


def _check(body: TextBody, prompts: Sequence[GivenPrompt], slot: ModelPair) -> int:
    """The choices for each prompt. Raises ApiError if they do not fit, or something is asked that is not supported."""
    n = next((n for n in (body.n_cmpl, body.n) if n is not None), 1)
    if not 1 <= n <= MAX_CHOICES:
        raise ApiError(400, f"n must be 1 to {MAX_CHOICES}, not {n}")
    if n * len(prompts) > MAX_CHOICES or n * sum(len(prompt.tokens) for prompt in prompts) > MAX_TOKENS:
        raise ApiError(400, f"n: {n} choices for {len(prompts)} prompts are too many: send them in several requests")
    if body.echo and type(body) is not CompletionBody:
        raise ApiError(400, "echo is not supported here: send a prompt to /v1/completions")
    if isinstance(body, CompletionBody) and body.tools:
        raise ApiError(400, "tools are not supported here: use /v1/chat/completions")
    for name, instead in _UNSUPPORTED.items():
        if getattr(body, name):  # an explicit False is the default
            raise ApiError(400, f"{name} is not supported{instead}")
    if body.id_slot is not None and not -1 <= body.id_slot < slot.config.n_slots:
        raise ApiError(400, f"id_slot: there is no slot {body.id_slot}, only 0 to {slot.config.n_slots - 1}")
    wants_text = 0 not in (body.max_tokens, body.max_completion_tokens, body.n_predict)
    if (longest := max(len(prompt.tokens) for prompt in prompts)) + wants_text > slot.n_ctx:
        raise too_long(longest, slot.n_ctx)
    return n


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


def _grammar(body: TextBody, chat: ChatPrompt) -> str | None:
    """The grammar of the text. Raises ApiError if more than one is asked for, and UsageError or BusyError."""
    name, form = body.form()
    if chat.calls is not None:
        if isinstance(form, str):
            raise ApiError(400, f"{name} and tools exclude each other: use response_format")
        return chat.calls.grammar(chat.format.thinks, chat.format.thought, form)
    if isinstance(form, str):
        return checked(form).decode()
    return schema_grammar(msgspec.json.encode(form).decode(), "the schema") if form is not None else None


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
