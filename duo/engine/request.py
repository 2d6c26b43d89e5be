"""A request for a text: what is asked, where the text ends, and how its tokens are chosen."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from duo.config import SAMPLERS, DraftConfig, GenerationConfig, StopConfig
from duo.config.model_config import ROWS
from duo.config.option import check_names, declared, with_values
from duo.engine.recorder import Recorder
from duo.engine.statistics import END_OF_TEXT, LIMIT, STOP_STRING
from duo.errors import UsageError
from duo.llama.grammar import Grammar, schema_grammar
from duo.llama.model import Model
from duo.speculation.sampling import CandidateSampler, chooser, without
from duo.speculation.types import Step, TokenLogprobs, whole
from duo.speculation.verify import DraftSampler, Matching, Rejection, Verifier

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from duo.config.settings import TextOptions
    from duo.engine.generation import Proposers


_READ_AT_ONCE = 8  # tokens of a prompt take about as long as one that is written


@dataclass(frozen=True, slots=True)
class Drafting:
    """How one text is drafted, where that is not as the engine's options say (None)."""

    schedule: str | None = None  # one of SCHEDULES
    lookup: bool | None = None
    n_max: int | None = None  # candidates in a batch; 0: no drafting

    def applied(self, config: DraftConfig) -> DraftConfig:
        """The limits of candidates, within those that the contexts were made for."""
        limits = (config.n_max, config.n_lookup)
        n_max, n_lookup = limits if self.n_max is None else (min(self.n_max, each) for each in limits)
        return replace(config, schedule=self.schedule or config.schedule, n_max=n_max, n_lookup=n_lookup)

    @property
    def n_limit(self) -> int:
        """Candidates in a batch, of whatever draft."""
        return ROWS if self.n_max is None else self.n_max


AS_USUAL = Drafting()


@dataclass(slots=True)
class Ending:
    """Decides where the text ends. Holds back incomplete characters, and what may be the beginning of a stop string."""

    config: StopConfig
    piece: Callable[[int], bytes]  # the bytes of a token
    is_end: Callable[[int], bool]  # whether a token ends a text
    reason: str | None = None  # why the text has ended, such as END_OF_TEXT
    stopped_by: str | None = None  # the stop string that ended the text
    _n_tokens: int = 0
    _held: bytes = b""

    @property
    def n_room(self) -> int | None:
        """How many more tokens are allowed; None: no limit."""
        return None if self.config.n_predict < 0 else self.config.n_predict - self._n_tokens

    def push(self, tokens: Sequence[int]) -> tuple[bytes, ...]:
        """The bytes of each token, up to the one that ends the text, which sets `reason`."""
        shown = []
        for token in tokens:
            if not self.config.ignore_eos and self.is_end(token):
                self.reason = END_OF_TEXT
                shown.append(b"")
            else:
                shown.append(self._show(token))
            self._n_tokens += 1
            if self.reason is None and self.n_room == 0:
                self.reason = LIMIT
            if self.reason:
                shown[-1] += self.finish()
                break
        return tuple(shown)

    def finish(self) -> bytes:
        """The end of the text: the bytes that were held back."""
        shown, self._held = self._held, b""
        return shown

    def _show(self, token: int) -> bytes:
        """The bytes that can be output now. A stop string is not output."""
        held = self._held + self.piece(token)
        n, stops = whole(held), [stop.encode() for stop in self.config.stop_strings]
        if stops:
            if found := [(held.find(stop), stop.decode()) for stop in stops if stop in held]:
                self.reason, (n, self.stopped_by) = STOP_STRING, min(found)
                held = held[:n]
            else:
                n = min(n, _before_stop(held, stops))
        self._held = held[n:]
        return held[:n]


def _before_stop(held: bytes, stops: Sequence[bytes]) -> int:
    """Number of bytes before the first possible beginning of a stop string."""
    longest = max(map(len, stops))
    for start in range(max(0, len(held) - longest + 1), len(held)):
        if any(stop.startswith(held[start:]) for stop in stops):
            return start
    return len(held)


@dataclass(slots=True, eq=False)
class Request:
    """A request for a text, from whoever asks to the engine and back with the result.

    `put` gets each step on the engine's thread. `end` is called once, with the exception that ended the text or None,
    on the engine's thread or on the one that cancels a request in the queue.
    """

    # What is asked
    prompt: Sequence[int]
    config: GenerationConfig
    put: Callable[[Step], None] = lambda _: None
    end: Callable[[BaseException | None], None] = lambda _: None
    on_prompt: Callable[[int], None] = lambda _: None  # called with the number of prompt tokens decoded so far
    drafting: Drafting = AS_USUAL
    proposers: Proposers | None = None  # None: the engine's own, as `drafting` says
    reuses: bool = True  # whether prompt tokens that are in a KV cache are used
    client: Hashable = None  # clients take turns
    owner: str = ""  # whose texts it may be predicted from, and to whose it is added, where there is a memory
    slot: int = -1  # of the text that is continued; -1: of the one that has most of the prompt. Once begun: its own

    # What has become of it
    metrics: Recorder = field(default_factory=Recorder)
    # Logprobs of the prompt's tokens from the second on, each with `config.n_logprobs` likely ones; None: not wanted
    scored: list[TokenLogprobs] | None = None
    number: int = 0  # in the order of all requests
    kept: tuple[dict[int, int], int] | None = None  # sizes of texts in memory, and tokens of the prompt that one has
    common: dict[int, int] = field(
        default_factory=dict
    )  # tokens at the beginning of the prompt, as of others: by number
    began: float = 0.0  # when it was first its turn; 0: it still waits
    n_cached: int = 0  # prompt tokens found in the KV cache
    n_pauses: int = 0  # in which other texts were written
    n_turn: int = 0  # tokens since its turn began,
    n_written: int = 0  # and of the text
    n_steps: int = 0  # of the text, and the texts that each was made for, added up
    n_texts: int = 0
    cancelled: threading.Event = field(default_factory=threading.Event)

    def cost(self, n_most: int) -> float:
        """What its next turn takes, in tokens that are written, of which there are at most `n_most`."""
        n = self.config.stop.n_predict
        return (min(n, n_most) if n >= 0 else n_most) + (0.0 if self.began else len(self.prompt) / _READ_AT_ONCE)


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
