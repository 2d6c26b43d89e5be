"""Context size, batches and KV cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from duo.cli.options.declare import CONTEXT, option

Switch = Literal["on", "off", "auto"]
CacheType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]


# fmt: off
@dataclass(frozen=True)
class ContextOption:
    """The context size."""

    ctx_size: Annotated[int, option(
        "-c", "--ctx-size", panel=CONTEXT, metavar="N", min=0, env="LLAMA_ARG_CTX_SIZE",
        help="Size of the context in tokens; 0: as the prompt and -n need.")] = 0


@dataclass(frozen=True)
class BatchOptions:
    """Batch sizes."""

    batch_size: Annotated[int, option(
        "-b", "--batch-size", panel=CONTEXT, metavar="N", min=1, env="LLAMA_ARG_BATCH",
        help="Logical batch size: maximum number of prompt tokens per decode.")] = 2048
    ubatch_size: Annotated[int, option(
        "-ub", "--ubatch-size", panel=CONTEXT, metavar="N", min=1, env="LLAMA_ARG_UBATCH",
        help="Physical batch size: maximum number of tokens computed together.")] = 512


@dataclass(frozen=True)
class WarmupOption:
    """The warm-up."""

    warmup: Annotated[bool, option(
        "--warmup/--no-warmup", panel=CONTEXT, env="LLAMA_ARG_WARMUP",
        help="Decode a few tokens before the first text, which reads all weights into memory and lets devices compile. "
        "Not included in the statistics.")] = True


@dataclass(frozen=True)
class CacheOptions:
    """Attention and the KV cache."""

    flash_attn: Annotated[Switch, option(
        "-fa", "--flash-attn", panel=CONTEXT, env="LLAMA_ARG_FLASH_ATTN", help="Flash attention.")] = "auto"
    cache_type_k: Annotated[CacheType, option(
        "-ctk", "--cache-type-k", panel=CONTEXT, metavar="TYPE", env="LLAMA_ARG_CACHE_TYPE_K",
        help="KV cache data type for K; with two models, that of the target.")] = "f16"
    cache_type_v: Annotated[CacheType, option(
        "-ctv", "--cache-type-v", panel=CONTEXT, metavar="TYPE", env="LLAMA_ARG_CACHE_TYPE_V",
        help="KV cache data type for V; with two models, that of the target.")] = "f16"
