"""The context: its size, batches and KV cache."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from duo.cli.options.declare import CONTEXT, option


class Switch(str, Enum):
    """On, off, or as llama.cpp finds best."""

    ON = "on"
    OFF = "off"
    AUTO = "auto"


class CacheType(str, Enum):
    """The types of a KV cache that llama.cpp accepts."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    Q8_0 = "q8_0"
    Q5_1 = "q5_1"
    Q5_0 = "q5_0"
    Q4_1 = "q4_1"
    Q4_0 = "q4_0"
    IQ4_NL = "iq4_nl"


# fmt: off
@dataclass(frozen=True)
class ContextOption:
    """How long texts may be."""

    ctx_size: Annotated[int, option(
        "-c", "--ctx-size", panel=CONTEXT, metavar="N", min=0, env="LLAMA_ARG_CTX_SIZE",
        help="Context in tokens; 0 is what prompt and -n need.")] = 0


@dataclass(frozen=True)
class BatchOptions:
    """How many tokens are decoded at once."""

    batch_size: Annotated[int, option(
        "-b", "--batch-size", panel=CONTEXT, metavar="N", min=1, env="LLAMA_ARG_BATCH",
        help="Most tokens of the prompt decoded in one call.")] = 2048
    ubatch_size: Annotated[int, option(
        "-ub", "--ubatch-size", panel=CONTEXT, metavar="N", min=1, env="LLAMA_ARG_UBATCH",
        help="Most tokens computed at once.")] = 512


@dataclass(frozen=True)
class CacheOptions:
    """How attention is computed, and from what."""

    flash_attn: Annotated[Switch, option(
        "-fa", "--flash-attn", panel=CONTEXT, env="LLAMA_ARG_FLASH_ATTN", help="Flash attention.")] = Switch.AUTO
    cache_type_k: Annotated[CacheType, option(
        "-ctk", "--cache-type-k", panel=CONTEXT, metavar="TYPE", env="LLAMA_ARG_CACHE_TYPE_K",
        help="Type of the K cache; where there are two models, the target's.")] = CacheType.F16
    cache_type_v: Annotated[CacheType, option(
        "-ctv", "--cache-type-v", panel=CONTEXT, metavar="TYPE", env="LLAMA_ARG_CACHE_TYPE_V",
        help="Type of the V cache; where there are two models, the target's.")] = CacheType.F16
