"""Sampling and grammars."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

from duo.cli.options import declare
from duo.cli.options.prompt import MAX_GRAMMAR, read_argument, read_file
from duo.cli.terminal.console import warn
from duo.config import MAX_INT, SAMPLERS, SamplingConfig
from duo.errors import UsageError

SAMPLING = "Sampling"
option = partial(declare.option, panel=SAMPLING)
RANDOM_SEED = -1
_DEFAULTS = SamplingConfig()


VerifyChoice = Literal["coupled", "rejection"]


def parse_bias(value: str) -> tuple[int, float]:
    """--logit-bias: a token id and a signed number. Raises UsageError."""
    match = re.fullmatch(r"(\d+)([+-].+)", value.strip())
    with suppress(ValueError):
        if match and (bias := float(match[2])) < math.inf:
            return int(match[1]), bias
    raise UsageError(f"--logit-bias: {value!r} is not of the form TOKEN_ID(+/-)BIAS, such as 15043+1 or 15043-inf")


# fmt: off
@dataclass(frozen=True)
class SamplingOptions:
    """How a token is chosen."""

    temp: Annotated[float, option(
        "--temp", "--temperature", metavar="T", env="LLAMA_ARG_TEMPERATURE",
        help="Temperature; 0: always the most likely token. llama.cpp's default is 0.8.",
    )] = _DEFAULTS.temp
    seed: Annotated[int, option(
        "-s", "--seed", metavar="N", min=RANDOM_SEED,
        help="Random seed; -1: a new one, which is printed. The same seed gives the same text with any draft, except "
        "for near-ties (see --exact) and with --verify rejection.")] = RANDOM_SEED
    top_k: Annotated[int, option(
        "--top-k", metavar="N", env="LLAMA_ARG_TOP_K", help="Top-k sampling; 0: disabled.")] = _DEFAULTS.top_k
    top_p: Annotated[float, option(
        "--top-p", metavar="P", env="LLAMA_ARG_TOP_P",
        help="Top-p sampling; 1: disabled.")] = _DEFAULTS.top_p
    min_p: Annotated[float, option(
        "--min-p", metavar="P", env="LLAMA_ARG_MIN_P",
        help="Min-p sampling; 0: disabled.")] = _DEFAULTS.min_p
    typical: Annotated[float, option(
        "--typical", "--typical-p", metavar="P", help="Locally typical sampling; 1: disabled.")] = _DEFAULTS.typical
    repeat_penalty: Annotated[float, option(
        "--repeat-penalty", metavar="X", env="LLAMA_ARG_REPEAT_PENALTY",
        help="Factor by which to penalize repeated tokens; 1: disabled.")] = _DEFAULTS.repeat_penalty
    repeat_last_n: Annotated[int, option(
        "--repeat-last-n", metavar="N", min=-1,
        help="Number of last tokens to penalize, the prompt's included; 0: disabled; -1: all.",
    )] = _DEFAULTS.repeat_last_n
    presence_penalty: Annotated[float, option(
        "--presence-penalty", metavar="X", env="LLAMA_ARG_PRESENCE_PENALTY",
        help="Amount to subtract from the logits of tokens that occurred; 0: disabled.")] = _DEFAULTS.presence_penalty
    frequency_penalty: Annotated[float, option(
        "--frequency-penalty", metavar="X", env="LLAMA_ARG_FREQUENCY_PENALTY",
        help="Amount to subtract for each occurrence; 0: disabled.")] = _DEFAULTS.frequency_penalty
    logit_bias: Annotated[list[str] | None, option(
        "-l", "--logit-bias", metavar="ID(+/-)X",
        help="Add X to the logit of a token, such as 15043+1 or 15043-inf; may be repeated.")] = None
    samplers: Annotated[str, option(
        "--samplers", metavar="A;B;…", help="Samplers to use, in this order.")] = ";".join(SAMPLERS)

    def sampling_config(self) -> SamplingConfig:
        """How to sample; a seed of -1 becomes a random one. Raises UsageError."""
        import secrets  # noqa: PLC0415 - slow: it loads OpenSSL

        return SamplingConfig(
            temp=0.0 if self.temp < 0 else self.temp,  # as llama.cpp does
            top_k=max(0, self.top_k),
            top_p=self.top_p,
            min_p=self.min_p,
            typical=self.typical,
            repeat_penalty=self.repeat_penalty,
            repeat_last_n=MAX_INT if self.repeat_last_n == -1 else self.repeat_last_n,  # no context is longer
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=tuple(parse_bias(bias) for bias in self.logit_bias or ()),
            samplers=tuple(_sampler_names(self.samplers)),
            seed=secrets.randbits(32) if self.seed == RANDOM_SEED else self.seed,
        )


@dataclass(frozen=True)
class GrammarOptions:
    """Grammars."""

    grammar: Annotated[str | None, option("--grammar", metavar="GBNF", help="Grammar that constrains the text.")] = None
    grammar_file: Annotated[str | None, option("--grammar-file", metavar="FILE", help="File with the grammar.")] = None
    json_schema: Annotated[str | None, option(
        "-j", "--json-schema", metavar="JSON", help="JSON schema that constrains the text; {}: any object.")] = None
    json_schema_file: Annotated[str | None, option(
        "-jf", "--json-schema-file", metavar="FILE", help="File with the JSON schema.")] = None

    def grammar_text(self) -> str | None:
        """The grammar, as GBNF. Raises UsageError or PromptError."""
        from duo.llama.grammar import schema_grammar  # noqa: PLC0415 - not for --help

        names = ("--grammar", "--grammar-file", "-j", "-jf")
        values = (self.grammar, self.grammar_file, self.json_schema, self.json_schema_file)
        given = [(name, value) for name, value in zip(names, values, strict=True) if value is not None]
        if len(given) > 1:
            both = " and ".join(name for name, _ in given)
            raise UsageError(f"{both} each give a grammar: use only one")
        for name, value in given:
            is_file = name in ("--grammar-file", "-jf")
            if is_file:
                text = read_file(value, escape=False, most=MAX_GRAMMAR)[1]
            else:
                text = read_argument(value, name, escape=False)
            return text if name.startswith("--grammar") else schema_grammar(text, name)
        return None


@dataclass(frozen=True)
class VerifyOption:
    """How candidates are verified."""

    verify: Annotated[VerifyChoice, option(
        "--verify",
        help="How candidates are verified above temperature 0. coupled: target and draft share their random numbers, "
        "and the seed determines the text; rejection: standard speculative sampling.")] = "coupled"


# Other names of samplers in llama.cpp.
_ALIASES = {
    "top-k": "top_k", "topk": "top_k", "top-p": "top_p", "topp": "top_p", "nucleus": "top_p", "min-p": "min_p",
    "minp": "min_p", "typ-p": "typ_p", "typp": "typ_p", "typ": "typ_p", "temp": "temperature",
}  # fmt: skip
_UNSUPPORTED = ("dry", "xtc", "top_n_sigma", "infill", "adaptive_p")


def _sampler_names(text: str) -> Iterable[str]:
    for part in filter(None, (part.strip().lower() for part in text.split(";"))):
        name = _ALIASES.get(part, part)
        if name.replace("-", "_") in _UNSUPPORTED:
            warn(f"--samplers: {part} is not supported and ignored")
        else:
            yield name
