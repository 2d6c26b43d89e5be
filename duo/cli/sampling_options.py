"""The options that choose a token from the logits."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Annotated

from duo.cli import declare
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


@dataclass(frozen=True)
class GrammarOptions:
    """What form the text has."""

    grammar: Annotated[str | None, option("--grammar", metavar="GBNF", help="The text obeys this grammar.")] = None
    grammar_file: Annotated[str | None, option("--grammar-file", metavar="FILE", help="The same from a file.")] = None
    json_schema: Annotated[str | None, option(
        "-j", "--json-schema", metavar="JSON", help="The text is JSON of this schema; {} is any object.")] = None
    json_schema_file: Annotated[str | None, option(
        "-jf", "--json-schema-file", metavar="FILE", help="The same from a file.")] = None


@dataclass(frozen=True)
class VerifyOption:
    """How candidates are verified."""

    verify: Annotated[VerifyChoice, option(
        "--verify",
        help="Above temperature 0. coupled: the draft guesses the target's own random choice, and the seed decides the "
        "text; rejection: classic speculative sampling.")] = VerifyChoice.COUPLED
