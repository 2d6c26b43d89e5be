"""A request for a text, its options under the names of OpenAI and llama-cpp-python, and the drafts that it may use."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from duo.config import SAMPLERS, GenerationConfig
from duo.config.option import check_names, declared, with_values
from duo.engine.draft import Draft
from duo.engine.generation import ConnectedDrafts
from duo.engine.metrics import Metrics
from duo.llama.grammar import schema_grammar
from duo.spec.policy import Policy
from duo.spec.types import Step

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from duo.config.settings import TextOptions


@dataclass(frozen=True, slots=True)
class Drafts:
    """The drafts for one request."""

    local: Draft | None = None
    remote: ConnectedDrafts | None = None
    lookup: bool = False  # whether the text itself is a draft, too


@dataclass(slots=True, eq=False)
class TextRequest:
    """A request for a text, and its result."""

    prompt: Sequence[int]
    config: GenerationConfig
    put: Callable[[Step], None]  # called with every step, on the engine's thread
    on_prompt: Callable[[int], None] = lambda _: None  # called with the number of prompt tokens decoded so far
    metrics: Metrics = field(default_factory=Metrics)
    drafts: Drafts | None = None  # None: the engine's own
    n_cached: int = 0  # prompt tokens found in the KV cache
    policy: Policy | None = None  # of the last draft that was used
    cancelled: threading.Event = field(default_factory=threading.Event)
    end: Callable[[BaseException | None], None] = lambda _: None  # see Engine.submit()


def generation_config(**options: Unpack[TextOptions]) -> GenerationConfig:
    """The configuration of one generation. Raises UsageError, or TypeError for an unknown name.

    max_tokens: maximum number of tokens; None (default): until the end of the text or context.
    temperature: 0 (default): greedy.
    seed: None (default): a random one for each generation.
    stop: strings that end the text; they are not part of it.
    grammar: GBNF. json_schema: a JSON schema as text, instead of a grammar.
    logprobs: 0 to 20: the logprobs of each token, and of so many that are the most likely in its place; None
    (default): none.
    The others are fields of SamplingConfig, GenerationConfig and StopConfig.
    """
    given: dict[str, Any] = dict(options)
    config = GenerationConfig()
    check_names(given, ["json_schema", *(one.name for one in declared(config))])
    schema, seed, limit, stop = (given.pop(name, None) for name in ("json_schema", "seed", "max_tokens", "stop"))
    if schema is not None:
        given["grammar"] = schema_grammar(schema, "json_schema")
    given |= {
        "max_tokens": -1 if limit is None else limit,
        "stop": (stop,) if isinstance(stop, str) else tuple(stop or ()),
        "logit_bias": tuple((given.get("logit_bias") or {}).items()),
        "samplers": tuple(given.get("samplers", SAMPLERS)),
        "seed": secrets.randbits(32) if seed is None else seed % 2**64,
    }
    return with_values(config, given)
