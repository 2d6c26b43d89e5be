"""How tokens are chosen and candidates verified, from the options."""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from duo.cli.output import warn
from duo.cli.prompt import read_argument, read_file
from duo.cli.sampling_options import RANDOM_SEED, GrammarOptions, SamplingOptions, parse_bias
from duo.config import SamplingConfig
from duo.errors import UsageError
from duo.llama.grammar import schema_grammar

# llama.cpp knows each sampler by several names.
_ALIASES = {
    "top-k": "top_k", "topk": "top_k", "top-p": "top_p", "topp": "top_p", "nucleus": "top_p", "min-p": "min_p",
    "minp": "min_p", "typ-p": "typ_p", "typp": "typ_p", "typ": "typ_p", "temp": "temperature",
}  # fmt: skip
_NOT_HERE = ("dry", "xtc", "top_n_sigma", "infill", "adaptive_p")


def sampling_config(options: SamplingOptions) -> SamplingConfig:
    """What is asked for; a seed of -1 becomes a random one. Raises UsageError."""
    return SamplingConfig(
        temp=0.0 if options.temp < 0 else options.temp,  # as llama.cpp does
        top_k=max(0, options.top_k),
        top_p=options.top_p,
        min_p=options.min_p,
        typical=options.typical,
        repeat_penalty=options.repeat_penalty,
        repeat_last_n=options.repeat_last_n,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        logit_bias=tuple(parse_bias(bias) for bias in options.logit_bias or ()),
        samplers=tuple(_sampler_names(options.samplers)),
        seed=secrets.randbits(32) if options.seed == RANDOM_SEED else options.seed % 2**64,
    )


def grammar_text(options: GrammarOptions) -> str | None:
    """The grammar that the text obeys, as GBNF. Raises UsageError or PromptError."""
    names = ("--grammar", "--grammar-file", "-j", "-jf")
    values = (options.grammar, options.grammar_file, options.json_schema, options.json_schema_file)
    given = [(name, value) for name, value in zip(names, values, strict=True) if value is not None]
    if len(given) > 1:
        both = " and ".join(name for name, _ in given)
        raise UsageError(f"{both} each say what the text must be: leave all but one out")
    for name, value in given:
        is_file = name in ("--grammar-file", "-jf")
        text = read_file(value, escape=False)[1] if is_file else read_argument(value, name, escape=False)
        return text if name.startswith("--grammar") else schema_grammar(text, name)
    return None


def _sampler_names(text: str) -> Iterable[str]:
    for part in filter(None, (part.strip().lower() for part in text.split(";"))):
        name = _ALIASES.get(part, part)
        if name.replace("-", "_") in _NOT_HERE:
            warn(f"--samplers: duo has no {part}; it is left out")
        else:
            yield name
