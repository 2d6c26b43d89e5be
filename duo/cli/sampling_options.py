"""The options that choose a token from the logits."""

from __future__ import annotations

import math
import re
from enum import Enum
from typing import Annotated

from duo.cli.declare import option
from duo.errors import UsageError

SAMPLING = "Sampling"
RANDOM_SEED = -1


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


TempOpt = Annotated[
    float,
    option("--temp", "--temperature", panel=SAMPLING, metavar="T", env="LLAMA_ARG_TEMPERATURE",
               help="Temperature. 0, duo's own default, always takes the most likely token; llama.cpp's is 0.8."),
]  # fmt: skip
SeedOpt = Annotated[
    int,
    option("-s", "--seed", panel=SAMPLING, metavar="N", min=RANDOM_SEED,
               help="Same seed, same text, with any draft or none (near-ties: see --exact); -1 takes a new one, which "
               "the statistics name. Not with --verify rejection."),
]  # fmt: skip
TopKOpt = Annotated[
    int, option("--top-k", panel=SAMPLING, metavar="N", env="LLAMA_ARG_TOP_K", help="The N most likely; 0 is off.")
]
TopPOpt = Annotated[
    float,
    option("--top-p", panel=SAMPLING, metavar="P", env="LLAMA_ARG_TOP_P",
               help="The most likely that sum to P; 1 is off."),
]  # fmt: skip
MinPOpt = Annotated[
    float,
    option("--min-p", panel=SAMPLING, metavar="P", env="LLAMA_ARG_MIN_P",
               help="Those at least P times as likely as the most likely; 0 is off."),
]  # fmt: skip
TypicalOpt = Annotated[
    float,
    option("--typical", "--typical-p", panel=SAMPLING, metavar="P", help="The most typical that sum to P; 1 is off."),
]
RepeatPenaltyOpt = Annotated[
    float,
    option("--repeat-penalty", panel=SAMPLING, metavar="X", env="LLAMA_ARG_REPEAT_PENALTY",
               help="Divide the logits of tokens that were there; 1 is off."),
]  # fmt: skip
RepeatLastNOpt = Annotated[
    int,
    option("--repeat-last-n", panel=SAMPLING, metavar="N", min=0,
               help="Tokens that the penalties look back, the prompt's included."),
]  # fmt: skip
PresenceOpt = Annotated[
    float,
    option("--presence-penalty", panel=SAMPLING, metavar="X", env="LLAMA_ARG_PRESENCE_PENALTY",
               help="Take X from the logits of tokens that were there."),
]  # fmt: skip
FrequencyOpt = Annotated[
    float,
    option("--frequency-penalty", panel=SAMPLING, metavar="X", env="LLAMA_ARG_FREQUENCY_PENALTY",
               help="The same for each time that they were."),
]  # fmt: skip
BiasOpt = Annotated[
    list[str] | None,
    option("-l", "--logit-bias", panel=SAMPLING, metavar="ID(+/-)X",
               help="Add X to a token's logit, such as 15043-inf; may be repeated."),
]  # fmt: skip
SamplersOpt = Annotated[str, option("--samplers", panel=SAMPLING, metavar="A;B;…", help="Which, and in which order.")]
VerifyOpt = Annotated[
    VerifyChoice,
    option("--verify", panel=SAMPLING,
               help="Above temperature 0. coupled: the draft guesses the target's own random choice, and the seed "
               "decides the text; rejection: classic speculative sampling."),
]  # fmt: skip
GrammarOpt = Annotated[
    str | None, option("--grammar", panel=SAMPLING, metavar="GBNF", help="The text obeys this grammar.")
]
GrammarFileOpt = Annotated[
    str | None, option("--grammar-file", panel=SAMPLING, metavar="FILE", help="The same from a file.")
]
SchemaOpt = Annotated[
    str | None,
    option("-j", "--json-schema", panel=SAMPLING, metavar="JSON",
               help="The text is JSON of this schema; {} is any object."),
]  # fmt: skip
SchemaFileOpt = Annotated[
    str | None, option("-jf", "--json-schema-file", panel=SAMPLING, metavar="FILE", help="The same from a file.")
]
