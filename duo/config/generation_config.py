"""GenerationConfig: how a text is generated, with all that is said about its options."""

from __future__ import annotations

import math
from dataclasses import dataclass

from duo.config.option import COUNT, MAX_INT, PROBABILITY, TEXTS, Bounds, check, check_number, option
from duo.errors import UsageError

MAX_SEED = 2**64 - 1
MAX_LOGPROBS = 20
MAX_LOGIT = 10**6  # that is added to a logit, or by which it is divided
_LOGITS = Bounds(-MAX_LOGIT, MAX_LOGIT, "beyond it, logits overflow in single precision")
SAMPLERS = ("penalties", "top_k", "typ_p", "top_p", "min_p", "temperature")


# fmt: off
@dataclass(frozen=True, slots=True)
class SamplingConfig:
    """How a token is chosen: llama.cpp's samplers, with its defaults except for the temperature."""

    temp: float = option(
        0.0, "--temp --temperature T $LLAMA_ARG_TEMPERATURE", "Sampling",
        "Temperature; 0: always the most likely token. llama.cpp's default is 0.8.", name="temperature",
        spellings={"-1": "0"}, bounds=Bounds(0, MAX_LOGIT, _LOGITS.why))
    top_k: int = option(
        40, "--top-k N $LLAMA_ARG_TOP_K", "Sampling", "Top-k sampling; 0: disabled.", spellings={"-1": "0"},
        bounds=COUNT)
    top_p: float = option(
        0.95, "--top-p P $LLAMA_ARG_TOP_P", "Sampling", "Top-p sampling; 1: disabled.", bounds=PROBABILITY)
    min_p: float = option(
        0.05, "--min-p P $LLAMA_ARG_MIN_P", "Sampling", "Min-p sampling; 0: disabled.", bounds=PROBABILITY)
    typical: float = option(
        1.0, "--typical --typical-p P", "Sampling", "Locally typical sampling; 1: disabled.", name="typical_p",
        bounds=PROBABILITY)
    repeat_penalty: float = option(
        1.0, "--repeat-penalty X $LLAMA_ARG_REPEAT_PENALTY", "Sampling",
        "Factor by which to penalize repeated tokens; 1: disabled.", bounds=Bounds(0.001, 1000, _LOGITS.why))
    repeat_last_n: int = option(
        64, "--repeat-last-n N", "Sampling",
        "Number of last tokens to penalize, the prompt's included; 0: disabled; -1: all.",
        spellings={"-1": str(MAX_INT)}, bounds=COUNT)  # no context is longer
    presence_penalty: float = option(
        0.0, "--presence-penalty X $LLAMA_ARG_PRESENCE_PENALTY", "Sampling",
        "Amount to subtract from the logits of tokens that occurred; 0: disabled.", bounds=_LOGITS)
    frequency_penalty: float = option(
        0.0, "--frequency-penalty X $LLAMA_ARG_FREQUENCY_PENALTY", "Sampling",
        "Amount to subtract for each occurrence; 0: disabled.", bounds=_LOGITS)
    # (token id, value added to its logit); the command has these three in another form
    logit_bias: tuple[tuple[int, float], ...] = option((), accepts="Mapping[int, float] | None")
    samplers: tuple[str, ...] = option(SAMPLERS, accepts="Sequence[str]")  # to apply, in this order
    seed: int = option(0, accepts="int | None", bounds=Bounds(0, MAX_SEED, "a seed has 64 bits"))

    def __post_init__(self) -> None:
        check(self)
        if 0 < self.temp < 1 / MAX_LOGIT:
            raise UsageError(f"temperature must be at least {1 / MAX_LOGIT}, or 0: {_LOGITS.why}", "temperature")
        for token, bias in self.logit_bias:
            check_number("logit_bias", token, COUNT, is_whole=True)
            if bias != -math.inf:
                check_number("logit_bias", bias, _LOGITS)
        if unknown := [name for name in self.samplers if name not in SAMPLERS]:
            raise UsageError(f"samplers: unknown sampler {unknown[0]!r} (known: {', '.join(SAMPLERS)})", "samplers")

    @property
    def is_plain(self) -> bool:
        """Whether the token with the largest logit is always chosen, unless it is banned."""
        penalised = self.repeat_penalty != 1 or self.presence_penalty or self.frequency_penalty
        return not (self.temp or self.logit_bias or penalised or self.typical < 1)


@dataclass(frozen=True, slots=True)
class StopConfig:
    """When a generation ends."""

    n_predict: int = option(
        -1, "-n --predict --n-predict N $LLAMA_ARG_N_PREDICT", "Main options",
        "Maximum number of tokens to generate; -1: until the end of the text.", who=f"{TEXTS} demo",
        spellings={"-2": "-1"}, name="max_tokens", accepts="int | None", bounds=COUNT._replace(least=-1))
    stop_strings: tuple[str, ...] = option((), name="stop", accepts="str | Sequence[str]")
    ignore_eos: bool = option(
        False, "--ignore-eos", "Prompt and text", "Ignore end-of-text tokens and continue.", who=TEXTS)

    def __post_init__(self) -> None:
        check(self)
        if "" in self.stop_strings:
            raise UsageError("stop must not be empty", "stop")
        try:
            "".join(self.stop_strings).encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"stop is not text: {error}", "stop") from None


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """Sampling, stop conditions, grammar and verification of one generation."""

    sampling: SamplingConfig = SamplingConfig()
    stop: StopConfig = StopConfig()
    grammar: str | None = option(None)  # GBNF or Lark
    verify: str = option(
        "coupled", "--verify", "Sampling",
        "How candidates are verified above temperature 0. coupled: target and draft share their random numbers, and "
        "the seed determines the text; rejection: standard speculative sampling.", who="duo check",
        choices=("coupled", "rejection"))
    # Most likely tokens whose logprobs to add to each token's own; None: no logprobs.
    n_logprobs: int | None = option(None, name="logprobs", bounds=Bounds(0, MAX_LOGPROBS, "OpenAI's API has no more"))
    # fmt: on

    def __post_init__(self) -> None:
        check(self)

    @property
    def mode(self) -> str:
        """greedy, coupled or rejection: acceptance rates are learned separately for each."""
        return "rejection" if self.is_rejection else "coupled" if self.sampling.temp else "greedy"

    @property
    def is_rejection(self) -> bool:
        """Whether to verify by rejection sampling. At temperature 0 that equals matching, so it is not used."""
        return self.verify == "rejection" and self.sampling.temp > 0
