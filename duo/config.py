"""Configuration as frozen dataclasses that validate themselves: each raises UsageError for a value out of range."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from duo.errors import UsageError

DEMO = "demo"  # the name of the demo pair
HUB = "hf://"  # prefix of the name of a model on Hugging Face
ALL_LAYERS = -1
SPLIT_MODES = ("none", "layer", "row", "tensor")  # llama.h, enum llama_split_mode

# Upper bounds, each with its reason.
MAX_INT = 2**31 - 1
_INT = "llama.cpp has 32 bits for it"
MAX_SEED = 2**64 - 1
_SEED = "a seed has 64 bits"
MAX_UBATCH = 65_536
_UBATCH = "the buffers for a batch are allocated in full"
MAX_THREADS = 512
_THREADS = "llama.cpp computes with no more threads"  # ggml.h, GGML_MAX_N_THREADS
MAX_CANDIDATES = 64
MAX_AHEAD = 128
_DRAFT = "the time to plan for them grows with their cube"
MAX_BRANCHES = 8
_BRANCHES = "each is one more token of every decode of the draft"
MAX_LOGPROBS = 20
_LOGPROBS = "OpenAI's API has no more"
MAX_TIMEOUT_S = 86_400
_TIMEOUT = "a server that is silent for a day is lost"
MAX_PORT = 65_535
MAX_LOGIT = 1e6  # that is added to a logit, or by which it is divided
MAX_FACTOR = 1e3
_LOGITS = "beyond it, logits overflow in single precision"
MAX_SHARE = 1e30
_SHARE = "llama.cpp adds proportions up in single precision"


def _check_count(name: str, n: int, least: int, most: int, reason: str) -> None:
    """Raise UsageError unless `n` is a whole number from `least` to `most`."""
    try:
        operator.index(n)
    except TypeError:
        raise UsageError(f"{name} must be a whole number, not {n!r}", name) from None
    _check_range(name, n, least, most, reason)


def _check_biases(biases: Iterable[float]) -> None:
    """Raise UsageError unless all are numbers that can be added to a logit, or -inf."""
    for bias in biases:
        if not bias < math.inf:
            raise UsageError(f"logit_bias must be a number or -inf, not {bias}", "logit_bias")
        if bias > -math.inf:
            _check_range("logit_bias", bias, -MAX_LOGIT, MAX_LOGIT, _LOGITS)


def check_port(name: str, port: int) -> None:
    """Raise UsageError unless `port` is a TCP port, or 0 for any free one."""
    _check_count(name, port, 0, MAX_PORT, "that is the last TCP port")


def _check_range(name: str, value: float, least: float, most: float, reason: str) -> None:
    """Raise UsageError unless `value` is a number from `least` to `most`."""
    if not value >= least:  # also nan
        raise UsageError(f"{name} must be at least {least}, not {value}", name)
    if value > most:
        raise UsageError(f"{name} must be at most {most}, not {value}: {reason}", name)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Where a model's weights are and where its layers go."""

    path: Path
    n_gpu_layers: int = ALL_LAYERS  # layers to offload; negative: all
    fits_layers: bool = False  # offload as many layers as fit instead: see duo.models.fitting
    use_mmap: bool = True
    use_mlock: bool = False
    rpc_servers: tuple[str, ...] = ()  # host:port of RPC servers whose devices to use
    rpc_timeout_s: float = 8.0  # seconds without a response after which a server counts as lost
    uses_gpus: bool = True  # whether to use the local GPUs as well
    devices: tuple[str, ...] | None = None  # names of the devices to use instead of all GPUs
    split_mode: str = "layer"  # how to split the model across devices: one of SPLIT_MODES
    tensor_split: tuple[float, ...] = ()  # proportion for each device; empty: chosen by llama.cpp
    main_gpu: int = 0  # index of the device to use with split mode none
    prefix: str = ""  # of the names of these parameters in messages: draft_ for a draft's

    def __post_init__(self) -> None:
        if self.split_mode not in SPLIT_MODES:
            choices = ", ".join(SPLIT_MODES)
            raise self.error("split_mode", f" must be one of {choices}, not {self.split_mode!r}")
        _check_count(f"{self.prefix}n_gpu_layers", self.n_gpu_layers, -MAX_INT, MAX_INT, _INT)
        _check_count(f"{self.prefix}main_gpu", self.main_gpu, 0, MAX_INT, _INT)
        _check_range("rpc_timeout_s", self.rpc_timeout_s, 1, MAX_TIMEOUT_S, _TIMEOUT)
        for share in self.tensor_split:
            _check_range(f"{self.prefix}tensor_split", share, 0, MAX_SHARE, _SHARE)
        if self.tensor_split and max(self.tensor_split) < 1 / MAX_SHARE:
            raise self.error("tensor_split", ": the proportions are all 0")

    def error(self, parameter: str, message: str) -> UsageError:
        """A UsageError about one of these parameters, whose name comes before `message`."""
        return UsageError(f"{self.prefix}{parameter}{message}", f"{self.prefix}{parameter}")

    @property
    def shards(self) -> list[Path]:
        """All files of the model: `path` alone, or every part if `path` is the first part of a split model."""
        match = re.fullmatch(r"(.*)-00001-of-(\d{5})\.gguf", self.path.name)
        if match is None:
            return [self.path]
        stem, count = match.groups()
        return [self.path.with_name(f"{stem}-{i:05d}-of-{count}.gguf") for i in range(1, int(count) + 1)]


@dataclass(frozen=True, slots=True)
class ContextConfig:
    """Size, threads and cache of one context."""

    n_ctx: int
    n_threads: int
    n_threads_batch: int  # threads for prefill
    n_batch: int = 2048  # maximum tokens in one call
    n_ubatch: int = 512  # maximum tokens computed at once
    n_outputs_max: int = 32  # maximum rows of logits returned by one call
    flash_attn: str = "auto"  # one of FLASH_ATTN
    type_k: str = "f16"
    type_v: str = "f16"
    exact: bool = False  # logits that are bit-equal for every batch size: see Context.decode
    n_branches: int = 0  # sequences besides the text's own: see Context.branch

    def __post_init__(self) -> None:
        # A spare cell of exact decodes counts.
        _check_count("n_ctx", self.n_ctx, 1, MAX_INT + 1, _INT)
        for name in ("n_batch", "n_outputs_max"):
            _check_count(name, getattr(self, name), 1, MAX_INT, _INT)
        _check_count("n_ubatch", self.n_ubatch, 1, MAX_UBATCH, _UBATCH)
        for name in ("n_threads", "n_threads_batch"):
            _check_count(name, getattr(self, name), 1, MAX_THREADS, _THREADS)
        if self.exact and self.flash_attn == "off":
            raise UsageError("exact needs flash attention: it cannot be off", "exact")


AUTO_DRAFT = 16  # default maximum of candidates
SCHEDULES = ("auto", "async", "sync", "off")
LOOKUP = ("auto", "off")
FLASH_ATTN = ("auto", "on", "off")


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """How far ahead to draft and how many candidates to verify at once."""

    n_max: int  # maximum candidates in one target batch; 0: no drafting
    n_ahead: int  # maximum drafted tokens awaiting verification
    schedule: str = "auto"  # one of SCHEDULES; auto: the fastest, found while running
    branches: int | None = None  # likely outcomes of a verification that the draft prepares; None: as many as pay

    def __post_init__(self) -> None:
        _check_count("draft_n_max", self.n_max, 0, MAX_CANDIDATES, _DRAFT)
        _check_count("draft_n_ahead", self.n_ahead, min(1, self.n_max), MAX_AHEAD, _DRAFT)
        if self.schedule not in SCHEDULES:
            raise UsageError(f"schedule must be one of {', '.join(SCHEDULES)}, not {self.schedule!r}", "schedule")
        if self.branches is not None:
            _check_count("branches", self.branches, 0, MAX_BRANCHES, _BRANCHES)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How an engine decodes. None is chosen for this machine and these models."""

    n_ctx: int = 0  # tokens; 0: as many as each request needs
    n_batch: int = 2048
    n_ubatch: int = 512
    flash_attn: str = "auto"
    type_k: str = "f16"
    type_v: str = "f16"
    exact: bool = False
    n_threads: int | None = None
    n_threads_batch: int | None = None
    draft_n_threads: int | None = None
    cpu_range: str | None = None  # lo-hi: cores that the target's threads are pinned to
    draft_cpu_range: str | None = None
    draft_n_max: int | None = None
    draft_n_ahead: int | None = None
    schedule: str = "auto"
    n_predict: int = -1  # expected length of a generation, to reserve device memory for its KV cache; -1: unknown
    warmup: bool = True  # whether to warm up new contexts: see duo.engine.warmup
    lookup: str = "auto"  # one of LOOKUP; auto: candidates from the text itself where they pay: see duo.spec.lookup
    branches: int | None = None  # see DraftConfig

    def __post_init__(self) -> None:
        _check_count("n_ctx", self.n_ctx, 0, MAX_INT, _INT)
        _check_count("n_batch", self.n_batch, 1, MAX_INT, _INT)
        _check_count("n_ubatch", self.n_ubatch, 1, MAX_UBATCH, _UBATCH)
        _check_count("n_predict", self.n_predict, -1, MAX_INT, _INT)
        for name in ("n_threads", "n_threads_batch", "draft_n_threads"):
            if (n := getattr(self, name)) is not None:
                _check_count(name, n, 1, MAX_THREADS, _THREADS)
        if self.flash_attn not in FLASH_ATTN:
            raise UsageError(
                f"flash_attn must be one of {', '.join(FLASH_ATTN)}, not {self.flash_attn!r}", "flash_attn"
            )
        if self.lookup not in LOOKUP:
            raise UsageError(f"lookup must be one of {', '.join(LOOKUP)}, not {self.lookup!r}", "lookup")

    def drafting(self) -> DraftConfig:
        """The limits of drafting and its schedule. Raises UsageError."""
        asked = AUTO_DRAFT if self.draft_n_max is None else self.draft_n_max
        # Candidates are verified in one batch together with the last accepted token.
        n_max = min(asked, max(2, min(self.n_batch, self.n_ubatch)) - 1)
        n_ahead = 2 * n_max if self.draft_n_ahead is None else self.draft_n_ahead
        return replace(DraftConfig(asked, n_ahead, self.schedule, self.branches), n_max=n_max)

    def context(self, n_ctx: int, n_threads: int, n_threads_batch: int, n_max: int) -> ContextConfig:
        """The target's context, for at most `n_max` candidates. Raises UsageError."""
        return ContextConfig(
            n_ctx + self.exact,  # exact decodes need a spare cell
            n_threads,
            n_threads_batch,
            self.n_batch,
            self.n_ubatch,
            n_outputs_max=n_max + 1,
            flash_attn=self.flash_attn,
            type_k=self.type_k,
            type_v=self.type_v,
            exact=self.exact,
        )


SAMPLERS = ("penalties", "top_k", "typ_p", "top_p", "min_p", "temperature")


@dataclass(frozen=True, slots=True)
class SamplingConfig:
    """How a token is chosen: llama.cpp's samplers, with its defaults except for the temperature."""

    temp: float = 0.0  # 0: greedy
    top_k: int = 40  # 0: off
    top_p: float = 0.95  # 1: off
    min_p: float = 0.05  # 0: off
    typical: float = 1.0  # 1: off
    repeat_penalty: float = 1.0  # 1: off
    repeat_last_n: int = 64  # 0: no penalties
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, value added to its logit)
    samplers: tuple[str, ...] = SAMPLERS  # which of SAMPLERS to apply, in this order
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("top_k", "repeat_last_n"):
            _check_count(name, getattr(self, name), 0, MAX_INT, _INT)
        _check_count("seed", self.seed, 0, MAX_SEED, _SEED)
        if not 0 <= self.temp < math.inf:
            raise UsageError(f"temperature must be 0 or more, not {self.temp:g}", "temperature")
        if self.temp:
            _check_range("temperature", self.temp, 1 / MAX_LOGIT, MAX_LOGIT, _LOGITS)
        for name, share in (("top_p", self.top_p), ("min_p", self.min_p), ("typical_p", self.typical)):
            if not 0 <= share <= 1:
                raise UsageError(f"{name} must be between 0 and 1, not {share:g}", name)
        if not self.repeat_penalty > 0:
            raise UsageError(f"repeat_penalty must be greater than 0, not {self.repeat_penalty:g}", "repeat_penalty")
        _check_range("repeat_penalty", self.repeat_penalty, 1 / MAX_FACTOR, MAX_FACTOR, _LOGITS)
        for name in ("presence_penalty", "frequency_penalty"):
            if not math.isfinite(getattr(self, name)):
                raise UsageError(f"{name} must be a number, not {getattr(self, name):g}", name)
            _check_range(name, getattr(self, name), -MAX_LOGIT, MAX_LOGIT, _LOGITS)
        _check_biases([bias for _, bias in self.logit_bias])
        if unknown := [name for name in self.samplers if name not in SAMPLERS]:
            raise UsageError(f"samplers: unknown sampler {unknown[0]!r} (known: {', '.join(SAMPLERS)})", "samplers")

    @property
    def is_plain(self) -> bool:
        """Whether the token with the largest logit is always chosen, unless it is banned."""
        penalised = self.repeat_penalty != 1 or self.presence_penalty or self.frequency_penalty
        return not (self.temp or self.logit_bias or penalised or self.typical < 1)


@dataclass(frozen=True, slots=True)
class ThreadConfig:
    """Threads of both models in each schedule, and the cores that they are pinned to."""

    target: int  # schedules sync and off
    target_batch: int  # for prefill
    draft: tuple[int, ...]  # schedule sync: the fastest of these
    beside: tuple[int, int]  # schedule async: target, draft
    cores: frozenset[int] | None = None  # of the target's threads; None: not pinned
    draft_cores: frozenset[int] | None = None
    apart: bool = False  # target and draft share no device, so both can prefill concurrently


@dataclass(frozen=True, slots=True)
class StopConfig:
    """When a generation ends."""

    n_predict: int = -1  # maximum number of tokens; -1: until the end of the text
    stop_strings: tuple[str, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        _check_count("max_tokens", self.n_predict, -1, MAX_INT, _INT)
        if "" in self.stop_strings:
            raise UsageError("stop must not be empty", "stop")


VERIFY = ("coupled", "rejection")


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """Sampling, stop conditions, grammar and verification of one generation."""

    sampling: SamplingConfig = SamplingConfig()
    stop: StopConfig = StopConfig()
    grammar: str | None = None  # GBNF
    verify: str = "coupled"  # one of VERIFY; rejection: speculative sampling, at a temperature above 0
    n_logprobs: int | None = None  # most likely tokens whose logprobs to add to each token's own; None: no logprobs

    def __post_init__(self) -> None:
        if self.n_logprobs is not None:
            _check_count("logprobs", self.n_logprobs, 0, MAX_LOGPROBS, _LOGPROBS)
        if self.verify not in VERIFY:
            raise UsageError(f"verify must be one of {', '.join(VERIFY)}, not {self.verify!r}", "verify")

    @property
    def mode(self) -> str:
        """greedy, coupled or rejection: acceptance rates are learned separately for each."""
        return "rejection" if self.is_rejection else "coupled" if self.sampling.temp else "greedy"

    @property
    def is_rejection(self) -> bool:
        """Whether to verify by rejection sampling. At temperature 0 that equals matching, so it is not used."""
        return self.verify == "rejection" and self.sampling.temp > 0
