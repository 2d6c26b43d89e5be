"""A request for a text, its options under the names of OpenAI and llama-cpp-python, and how its tokens are chosen."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from duo.config import SAMPLERS, DraftConfig, GenerationConfig
from duo.config.option import check_names, declared, with_values
from duo.engine.generation import Proposers
from duo.engine.recorder import Recorder
from duo.errors import UsageError
from duo.llama.grammar import Grammar, schema_grammar
from duo.llama.model import Model
from duo.speculation.sampling import CandidateSampler, chooser, without
from duo.speculation.types import Step, TokenLogprobs
from duo.speculation.verify import DraftSampler, Matching, Rejection, Verifier

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from duo.config.settings import TextOptions


@dataclass(frozen=True, slots=True)
class Drafting:
    """How one text is drafted, where that is not as the engine's options say (None)."""

    schedule: str | None = None  # one of SCHEDULES
    lookup: bool | None = None
    n_max: int | None = None  # candidates in a batch; 0: no drafting

    def applied(self, config: DraftConfig) -> DraftConfig:
        """The limits of a draft, within those that the contexts were made for."""
        n_max = config.n_max if self.n_max is None else min(self.n_max, config.n_max)
        return replace(config, schedule=self.schedule or config.schedule, n_max=n_max)


AS_USUAL = Drafting()


@dataclass(slots=True, eq=False)
class TextRequest:
    """A request for a text, and its result."""

    prompt: Sequence[int]
    config: GenerationConfig
    put: Callable[[Step], None]  # called with every step, on the engine's thread
    on_prompt: Callable[[int], None] = lambda _: None  # called with the number of prompt tokens decoded so far
    metrics: Recorder = field(default_factory=Recorder)
    sources: Proposers | None = None  # of candidates; None: the engine's own
    drafting: Drafting = AS_USUAL
    reuses: bool = True  # whether prompt tokens that are in a KV cache are used
    client: Hashable = None  # clients take turns
    slot: int = -1  # whose text it continues; -1: of which it has most
    # Logprobs of the prompt's tokens from the second on, each with `config.n_logprobs` likely ones; None: not wanted
    scored: list[TokenLogprobs] | None = None
    began: float = 0.0  # when it was first its turn; 0: it still waits
    n_cached: int = 0  # prompt tokens found in the KV cache
    n_pauses: int = 0  # in which other texts were written
    stopped_by: str | None = None  # the stop string that ended the text
    cancelled: threading.Event = field(default_factory=threading.Event)
    end: Callable[[BaseException | None], None] = lambda _: None  # see Engine.submit()


def _as_tuple(value: Any) -> Any:
    """A tuple of several values; anything else as it is, which is an error later."""
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else value


def generation_config(**options: Unpack[TextOptions]) -> GenerationConfig:
    """The configuration of one generation. Raises UsageError, or TypeError for an unknown name.

    max_tokens: maximum number of tokens; None (default): until the end of the text or context.
    temperature: 0 (default): greedy.
    seed: None (default): a random one for each generation.
    stop: strings that end the text; they are not part of it.
    grammar: GBNF or Lark. json_schema: a JSON schema, as text or as an object, instead of a grammar.
    logprobs: 0 to 20: the logprobs of each token, and of so many that are the most likely in its place; None
    (default): none.
    The others are fields of SamplingConfig, GenerationConfig and StopConfig.
    """
    given: dict[str, Any] = dict(options)
    config = GenerationConfig()
    check_names(given, ["json_schema", *(one.name for one in declared(config))])
    schema, seed, limit, stop = (given.pop(name, None) for name in ("json_schema", "seed", "max_tokens", "stop"))
    if schema is not None:
        try:
            text = schema if isinstance(schema, str) else json.dumps(schema)
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"json_schema cannot be written as JSON: {error}", "json_schema") from None
        given["grammar"] = schema_grammar(text, "json_schema")
    bias = given.get("logit_bias")
    if bias and not isinstance(bias, Mapping):
        raise UsageError(f"logit_bias must be a dict of token ids and numbers, not {bias!r}", "logit_bias")
    given |= {
        "logit_bias": tuple((bias or {}).items()),
        "max_tokens": -1 if limit is None else limit,
        "stop": (stop,) if isinstance(stop, str) else _as_tuple(stop or ()),
        "samplers": _as_tuple(given.get("samplers", SAMPLERS)),
        "seed": secrets.randbits(32) if seed is None else seed % 2**64 if isinstance(seed, int) else seed,
    }
    return with_values(config, given)


def choosing(
    target: Model, config: GenerationConfig, banned: Sequence[int] = (), n_alternatives: int = 0
) -> tuple[Verifier, CandidateSampler]:
    """The target's verifier, and the draft's sampler; `banned` tokens are never chosen. Raises UsageError."""
    sampling = config.sampling
    for token, _ in sampling.logit_bias:
        if not 0 <= token < target.n_vocab:
            raise UsageError(f"logit_bias: no token {token} in a vocabulary of {target.n_vocab}", "logit_bias")
    constraint = Grammar(target, config.grammar) if config.grammar is not None else None
    if config.is_rejection:
        sampling = without(sampling, banned)
        return Rejection(sampling, constraint), DraftSampler(sampling)
    sampler = chooser(sampling, banned, n_alternatives)
    return Matching(sampler, constraint), sampler
