"""Keyword arguments of a generation, under the names of OpenAI and llama-cpp-python."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from duo.config import SAMPLERS, GenerationConfig, SamplingConfig, StopConfig
from duo.llama.grammar import schema_grammar

if TYPE_CHECKING:
    from typing_extensions import TypedDict, Unpack

    class TextOptions(TypedDict, total=False):
        """Options of Engine.stream(), generate(), chat(), stream_chat() and astream(): see generation_config()."""

        max_tokens: int | None
        temperature: float
        top_p: float
        top_k: int
        min_p: float
        typical_p: float
        repeat_penalty: float
        repeat_last_n: int
        presence_penalty: float
        frequency_penalty: float
        logit_bias: Mapping[int, float] | None
        samplers: Sequence[str]
        seed: int | None
        stop: str | Sequence[str]
        ignore_eos: bool
        grammar: str | None
        json_schema: str | None
        verify: str
        logprobs: int | None


_FIELDS = {"temperature": "temp", "typical_p": "typical"}  # of SamplingConfig


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
    if wrong := given.keys() & _FIELDS.values():
        raise TypeError(f"unexpected keyword argument: {', '.join(wrong)}")
    stop, seed, schema = given.pop("stop", ()), given.pop("seed", None), given.pop("json_schema", None)
    n_predict, ignore_eos = given.pop("max_tokens", None), given.pop("ignore_eos", False)
    grammar, verify = given.pop("grammar", None), given.pop("verify", "coupled")
    logprobs = given.pop("logprobs", None)
    if schema is not None:
        grammar = schema_grammar(schema, "json_schema")
    return GenerationConfig(
        SamplingConfig(
            logit_bias=tuple((given.pop("logit_bias", None) or {}).items()),
            samplers=tuple(given.pop("samplers", SAMPLERS)),
            seed=secrets.randbits(32) if seed is None else seed % 2**64,
            **{_FIELDS.get(name, name): value for name, value in given.items()},
        ),
        StopConfig(
            -1 if n_predict is None else n_predict, (stop,) if isinstance(stop, str) else tuple(stop), ignore_eos
        ),
        grammar,
        verify,
        logprobs,
    )
