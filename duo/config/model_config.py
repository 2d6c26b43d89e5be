"""The configurations of one model, one context and the threads, which follow from EngineConfig."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from duo.errors import UsageError

DEMO = "demo"  # the name of the demo pair
HUB = "hf://"  # prefix of the name of a model on Hugging Face
ALL_LAYERS = -1
ROWS = 32  # of logits: that every context has memory for, or a multiple
# ggml.h, enum ggml_type, and bytes per value, of the cache types that llama.cpp accepts.
CACHE_TYPES: dict[str, tuple[int, float]] = {
    "f32": (0, 4), "f16": (1, 2), "bf16": (30, 2), "q8_0": (8, 34 / 32), "q5_1": (7, 24 / 32), "q5_0": (6, 22 / 32),
    "q4_1": (3, 20 / 32), "q4_0": (2, 18 / 32), "iq4_nl": (20, 18 / 32),
}  # fmt: skip
EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"  # names of tensors: common.h, LLM_FFN_EXPS_REGEX
SPLIT_MODES = ("none", "layer", "row", "tensor")  # llama.h, enum llama_split_mode


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
    overrides: tuple[tuple[str, str], ...] = ()  # of buffer types of tensors: a parameter, and PATTERN=TYPE
    heads: bool = False  # whether to load the layers for multi-token prediction, if the file has any
    chat_template: str | None = None  # instead of that of the file
    template_variables: Mapping[str, Any] = field(default_factory=dict)  # of the chat template
    prefix: str = ""  # of the names of these parameters in messages: draft_ for a draft's

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
    n_alternatives: int = 0  # to candidates, that a decode may have: see Context.decode_with
    n_texts: int = 1  # that it holds at the same time, each of at most `n_ctx` tokens
    n_cells: int = 0  # for all of them, if more than `n_ctx`

    @property
    def n_reserved(self) -> int:
        """Rows of logits that are reserved: other numbers make prompts slower (benchmarks/NOTES.md)."""
        return -(-self.n_outputs_max // ROWS) * ROWS


@dataclass(frozen=True, slots=True)
class ThreadConfig:
    """Threads of both models in each schedule, and the cores that they are pinned to."""

    target: int  # schedules sync and off
    target_batch: int  # for prefill
    draft: tuple[int, ...]  # schedule sync: the fastest of these
    concurrent: tuple[int, int]  # schedule async: target, draft
    cores: frozenset[int] | None = None  # of the target's threads; None: not pinned
    draft_cores: frozenset[int] | None = None
    separate_devices: bool = False  # target and draft share no device, so both can prefill concurrently
