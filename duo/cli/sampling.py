"""How tokens are chosen and candidates verified, from the options."""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from duo.cli.options import RunOptions
from duo.cli.output import warn
from duo.cli.prompt import read_argument, read_file
from duo.cli.sampling_options import RANDOM_SEED, VerifyChoice, parse_bias
from duo.config import SamplingConfig
from duo.errors import UsageError
from duo.llama.grammar import Grammar, schema_grammar
from duo.llama.model import Model
from duo.spec.sampling import Guesser, chooser, without
from duo.spec.verify import Matching, Proposer, Rejection, Verifier

# llama.cpp knows each sampler by several names.
_ALIASES = {
    "top-k": "top_k", "topk": "top_k", "top-p": "top_p", "topp": "top_p", "nucleus": "top_p", "min-p": "min_p",
    "minp": "min_p", "typ-p": "typ_p", "typp": "typ_p", "typ": "typ_p", "temp": "temperature",
}  # fmt: skip
_NOT_HERE = ("dry", "xtc", "top_n_sigma", "infill", "adaptive_p")


def sampling_config(options: RunOptions) -> SamplingConfig:
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


def check_grammar(options: RunOptions) -> None:
    """Raise UsageError if more than one of them was given."""
    names = ("--grammar", "--grammar-file", "-j", "-jf")
    values = (options.grammar, options.grammar_file, options.json_schema, options.json_schema_file)
    given = [name for name, value in zip(names, values, strict=True) if value is not None]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} each say what the text must be: leave all but one out")


def is_in_order(options: RunOptions, config: SamplingConfig) -> bool:
    """Whether candidates are verified by rejection sampling. At temperature 0 it is the same as matching."""
    return options.verify is VerifyChoice.REJECTION and config.temp > 0


def sampling_mode(options: RunOptions, config: SamplingConfig) -> str:
    """How tokens are chosen: greedy, coupled or rejection."""
    return VerifyChoice.REJECTION.value if is_in_order(options, config) else config.mode


def choosing(options: RunOptions, config: SamplingConfig, target: Model) -> tuple[Verifier, Guesser]:
    """Who chooses the target's tokens and who the draft's. Raises UsageError or PromptError."""
    for token, _ in config.logit_bias:
        if token >= target.n_vocab:
            raise UsageError(f"--logit-bias: no token {token} in a vocabulary of {target.n_vocab}")
    banned = target.end_tokens() if options.ignore_eos else ()
    grammar = grammar_text(options)
    constraint = None if grammar is None else Grammar(target, grammar)
    if is_in_order(options, config):
        config = without(config, banned)
        return Rejection(config, constraint), Proposer(config)
    sampler = chooser(config, banned)
    return Matching(sampler, constraint), sampler


def grammar_text(options: RunOptions) -> str | None:
    """The grammar that the text obeys, as GBNF. Raises UsageError or PromptError."""
    given = (("--grammar", options.grammar), ("-j", options.json_schema))
    grammar, schema = (text and read_argument(text, name, escape=False) for name, text in given)
    if options.grammar_file is not None:
        grammar = read_file(options.grammar_file, escape=False)[1]
    if options.json_schema_file is not None:
        schema = read_file(options.json_schema_file, escape=False)[1]
    if schema is not None:
        grammar = schema_grammar(schema, "-jf" if options.json_schema is None else "-j")
    return grammar


def _sampler_names(text: str) -> Iterable[str]:
    for part in filter(None, (part.strip().lower() for part in text.split(";"))):
        name = _ALIASES.get(part, part)
        if name.replace("-", "_") in _NOT_HERE:
            warn(f"--samplers: duo has no {part}; it is left out")
        else:
            yield name
