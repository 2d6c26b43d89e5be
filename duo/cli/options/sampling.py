"""How a token is chosen, and what form the text has."""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Annotated

from duo.cli.options import declare
from duo.cli.options.prompt import read_argument, read_file
from duo.cli.terminal.console import warn
from duo.config import SAMPLERS, SamplingConfig
from duo.errors import UsageError

SAMPLING = "Sampling"
option = partial(declare.option, panel=SAMPLING)
RANDOM_SEED = -1
_DEFAULTS = SamplingConfig()


class VerifyChoice(str, Enum):
    """How candidates are verified above temperature 0."""

    COUPLED = "coupled"
    REJECTION = "rejection"


def parse_bias(value: str) -> tuple[int, float]:
    """--logit-bias: a token id, a sign and a number, such as 15043+1 or 15043-inf. Raises UsageError."""
    match = re.fullmatch(r"(\d+)([+-])(.+)", value.strip())
    try:
        bias = float(match[2] + match[3]) if match else math.nan
    except ValueError:
        bias = math.nan
    if match is None or math.isnan(bias) or bias == math.inf:
        raise UsageError(f"--logit-bias: {value!r} is no TOKEN_ID(+/-)BIAS, such as 15043+1 or 15043-inf")
    return int(match[1]), bias


# fmt: off
@dataclass(frozen=True)
class SamplingOptions:
    """How a token is chosen."""

    temp: Annotated[float, option(
        "--temp", "--temperature", metavar="T", env="LLAMA_ARG_TEMPERATURE",
        help="Temperature. 0, duo's own default, always takes the most likely token; llama.cpp's is 0.8.",
    )] = _DEFAULTS.temp
    seed: Annotated[int, option(
        "-s", "--seed", metavar="N", min=RANDOM_SEED,
        help="Same seed, same text, with any draft or none (near-ties: see --exact); -1 takes a new one, which the "
        "statistics name. Not with --verify rejection.")] = RANDOM_SEED
    top_k: Annotated[int, option(
        "--top-k", metavar="N", env="LLAMA_ARG_TOP_K", help="The N most likely; 0 is off.")] = _DEFAULTS.top_k
    top_p: Annotated[float, option(
        "--top-p", metavar="P", env="LLAMA_ARG_TOP_P",
        help="The most likely that sum to P; 1 is off.")] = _DEFAULTS.top_p
    min_p: Annotated[float, option(
        "--min-p", metavar="P", env="LLAMA_ARG_MIN_P",
        help="Those at least P times as likely as the most likely; 0 is off.")] = _DEFAULTS.min_p
    typical: Annotated[float, option(
        "--typical", "--typical-p", metavar="P", help="The most typical that sum to P; 1 is off.")] = _DEFAULTS.typical
    repeat_penalty: Annotated[float, option(
        "--repeat-penalty", metavar="X", env="LLAMA_ARG_REPEAT_PENALTY",
        help="Divide the logits of tokens that were there; 1 is off.")] = _DEFAULTS.repeat_penalty
    repeat_last_n: Annotated[int, option(
        "--repeat-last-n", metavar="N", min=0,
        help="Tokens that the penalties look back, the prompt's included.")] = _DEFAULTS.repeat_last_n
    presence_penalty: Annotated[float, option(
        "--presence-penalty", metavar="X", env="LLAMA_ARG_PRESENCE_PENALTY",
        help="Take X from the logits of tokens that were there.")] = _DEFAULTS.presence_penalty
    frequency_penalty: Annotated[float, option(
        "--frequency-penalty", metavar="X", env="LLAMA_ARG_FREQUENCY_PENALTY",
        help="The same for each time that they were.")] = _DEFAULTS.frequency_penalty
    logit_bias: Annotated[list[str] | None, option(
        "-l", "--logit-bias", metavar="ID(+/-)X",
        help="Add X to a token's logit, such as 15043-inf; may be repeated.")] = None
    samplers: Annotated[str, option(
        "--samplers", metavar="A;B;…", help="Which, and in which order.")] = ";".join(SAMPLERS)

    def sampling_config(self) -> SamplingConfig:
        """What is asked for; a seed of -1 becomes a random one. Raises UsageError."""
        return SamplingConfig(
            temp=0.0 if self.temp < 0 else self.temp,  # as llama.cpp does
            top_k=max(0, self.top_k),
            top_p=self.top_p,
            min_p=self.min_p,
            typical=self.typical,
            repeat_penalty=self.repeat_penalty,
            repeat_last_n=self.repeat_last_n,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=tuple(parse_bias(bias) for bias in self.logit_bias or ()),
            samplers=tuple(_sampler_names(self.samplers)),
            seed=secrets.randbits(32) if self.seed == RANDOM_SEED else self.seed % 2**64,
        )


@dataclass(frozen=True)
class GrammarOptions:
    """What form the text has."""

    grammar: Annotated[str | None, option("--grammar", metavar="GBNF", help="The text obeys this grammar.")] = None
    grammar_file: Annotated[str | None, option("--grammar-file", metavar="FILE", help="The same from a file.")] = None
    json_schema: Annotated[str | None, option(
        "-j", "--json-schema", metavar="JSON", help="The text is JSON of this schema; {} is any object.")] = None
    json_schema_file: Annotated[str | None, option(
        "-jf", "--json-schema-file", metavar="FILE", help="The same from a file.")] = None

    def grammar_text(self) -> str | None:
        """The grammar that the text obeys, as GBNF. Raises UsageError or PromptError."""
        from duo.llama.grammar import schema_grammar  # noqa: PLC0415 - not for --help

        names = ("--grammar", "--grammar-file", "-j", "-jf")
        values = (self.grammar, self.grammar_file, self.json_schema, self.json_schema_file)
        given = [(name, value) for name, value in zip(names, values, strict=True) if value is not None]
        if len(given) > 1:
            both = " and ".join(name for name, _ in given)
            raise UsageError(f"{both} each say what the text must be: leave all but one out")
        for name, value in given:
            is_file = name in ("--grammar-file", "-jf")
            text = read_file(value, escape=False)[1] if is_file else read_argument(value, name, escape=False)
            return text if name.startswith("--grammar") else schema_grammar(text, name)
        return None


@dataclass(frozen=True)
class VerifyOption:
    """How candidates are verified."""

    verify: Annotated[VerifyChoice, option(
        "--verify",
        help="Above temperature 0. coupled: the draft guesses the target's own random choice, and the seed decides the "
        "text; rejection: classic speculative sampling.")] = VerifyChoice.COUPLED


# llama.cpp knows each sampler by several names.
_ALIASES = {
    "top-k": "top_k", "topk": "top_k", "top-p": "top_p", "topp": "top_p", "nucleus": "top_p", "min-p": "min_p",
    "minp": "min_p", "typ-p": "typ_p", "typp": "typ_p", "typ": "typ_p", "temp": "temperature",
}  # fmt: skip
_NOT_HERE = ("dry", "xtc", "top_n_sigma", "infill", "adaptive_p")


def _sampler_names(text: str) -> Iterable[str]:
    for part in filter(None, (part.strip().lower() for part in text.split(";"))):
        name = _ALIASES.get(part, part)
        if name.replace("-", "_") in _NOT_HERE:
            warn(f"--samplers: duo has no {part}; it is left out")
        else:
            yield name
