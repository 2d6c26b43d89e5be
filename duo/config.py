"""What a run is asked to do, as frozen values that check themselves."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

from duo.errors import UsageError

ALL_LAYERS = -1
SPLIT_MODES = ("none", "layer", "row", "tensor")  # llama.h, enum llama_split_mode


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Where a model's weights are and where its layers go."""

    path: Path
    n_gpu_layers: int = ALL_LAYERS  # layers that are not for the CPU; a negative number: all
    use_mmap: bool = True
    use_mlock: bool = False
    rpc_servers: tuple[str, ...] = ()  # host:port of machines whose devices they go to
    rpc_timeout_s: float = 8.0  # how long one may give no sign of life
    uses_gpus: bool = True  # whether they go to this machine's GPUs, too
    devices: tuple[str, ...] | None = None  # names of the devices instead
    split_mode: str = "layer"  # how several devices share them: one of SPLIT_MODES
    tensor_split: tuple[float, ...] = ()  # and in what proportion; empty: as llama.cpp finds best
    main_gpu: int = 0  # index of the one device that is used with split mode none

    @property
    def shards(self) -> list[Path]:
        """All files of the model: just `path`, or the parts of a split one whose first it names."""
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
    n_threads_batch: int  # threads for the prompt
    n_batch: int = 2048  # most tokens in one call
    n_ubatch: int = 512  # most tokens computed at once
    n_outputs_max: int = 32  # most rows of logits that one call returns
    flash_attn: str = "auto"  # on, off or auto
    type_k: str = "f16"
    type_v: str = "f16"
    exact: bool = False  # bit-equal logits whatever the batch: see Context.decode

    def __post_init__(self) -> None:
        """Raise UsageError for a value out of range."""
        for name in ("n_ctx", "n_threads", "n_threads_batch", "n_batch", "n_ubatch", "n_outputs_max"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.exact and self.flash_attn == "off":
            raise UsageError("--exact needs flash attention: leave out -fa off")


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """How far the draft may guess ahead and how much of it is verified at once."""

    n_max: int  # most candidates in one target batch; 0 is a plain run
    n_ahead: int  # most unverified tokens that the draft holds ready

    def __post_init__(self) -> None:
        """Raise UsageError for a value out of range."""
        if self.n_max < 0:
            raise UsageError(f"--draft must be at least 0, not {self.n_max}")
        if self.n_max and self.n_ahead < 1:
            raise UsageError(f"--draft-ahead must be at least 1, not {self.n_ahead}")


SAMPLERS = ("penalties", "top_k", "typ_p", "top_p", "min_p", "temperature")


@dataclass(frozen=True, slots=True)
class SamplingConfig:
    """How a token is chosen: llama.cpp's samplers, with its defaults except for the temperature."""

    temp: float = 0.0  # 0: always the most likely token
    top_k: int = 40  # 0: off
    top_p: float = 0.95  # 1: off
    min_p: float = 0.05  # 0: off
    typical: float = 1.0  # 1: off
    repeat_penalty: float = 1.0  # 1: off
    repeat_last_n: int = 64  # 0: no penalties
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # token and what is added to its logit
    samplers: tuple[str, ...] = SAMPLERS  # in this order, of those that SAMPLERS names
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise UsageError for a value out of range."""
        for option, value in (("--top-k", self.top_k), ("--repeat-last-n", self.repeat_last_n)):
            if value < 0:
                raise UsageError(f"{option} must be 0 or more, not {value}")
        if not 0 <= self.temp < math.inf:
            raise UsageError(f"--temp must be 0 or more, not {self.temp:g}")
        for option, share in (("--top-p", self.top_p), ("--min-p", self.min_p), ("--typical", self.typical)):
            if not 0 <= share <= 1:
                raise UsageError(f"{option} must be between 0 and 1, not {share:g}")
        if not 0 < self.repeat_penalty < math.inf:
            raise UsageError(f"--repeat-penalty must be greater than 0, not {self.repeat_penalty:g}")
        for option, penalty in (
            ("--presence-penalty", self.presence_penalty),
            ("--frequency-penalty", self.frequency_penalty),
        ):
            if not math.isfinite(penalty):
                raise UsageError(f"{option} must be a number, not {penalty:g}")
        if any(math.isnan(bias) for _, bias in self.logit_bias):
            raise UsageError("--logit-bias must be a number, not nan")
        if unknown := [name for name in self.samplers if name not in SAMPLERS]:
            raise UsageError(f"no sampler {unknown[0]!r} (there are {', '.join(SAMPLERS)})")

    @property
    def mode(self) -> str:
        """How a token is chosen: greedy, or coupled. What is learned in one says nothing of the other."""
        return "coupled" if self.temp else "greedy"

    @property
    def is_plain(self) -> bool:
        """Whether nothing can keep the most likely token from being chosen."""
        penalised = self.repeat_penalty != 1 or self.presence_penalty or self.frequency_penalty
        return not (self.temp or self.logit_bias or penalised or self.typical < 1)


@dataclass(frozen=True, slots=True)
class ThreadConfig:
    """Threads of both models in each schedule, and the cores that they are pinned to."""

    target: int  # alone, or in turns with the draft
    target_batch: int  # for the prompt
    draft: tuple[int, ...]  # in turns with the target: the fastest of these
    beside: tuple[int, int]  # target and draft at the same time
    cores: frozenset[int] | None = None
    draft_cores: frozenset[int] | None = None
    apart: bool = False  # the draft computes on a device of its own, so that reading the prompt takes no turns


@dataclass(frozen=True, slots=True)
class StopConfig:
    """When a generation ends."""

    n_predict: int = -1  # most tokens; -1 is to the end
    stop_strings: tuple[str, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        """Raise UsageError for a value out of range."""
        if self.n_predict < -1:
            raise UsageError(f"-n must be -1 or more, not {self.n_predict}")
        if "" in self.stop_strings:
            raise UsageError("-r needs a text that is not empty")
