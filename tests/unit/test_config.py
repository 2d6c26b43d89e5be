"""The configs check themselves: every count and every number has an upper bound, with its reason."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import duo
from duo.config import (
    ContextConfig,
    DraftConfig,
    EngineConfig,
    GenerationConfig,
    ModelConfig,
    SamplingConfig,
    StopConfig,
)
from duo.errors import UsageError

INT = 2**31
MODEL: dict[str, Any] = {"path": Path("x.gguf")}
CONTEXT: dict[str, Any] = {"n_ctx": 8, "n_threads": 1, "n_threads_batch": 1}
DRAFT: dict[str, Any] = {"n_max": 1, "n_ahead": 2}

# Config, its other fields, field, smallest value above the bound, and the parameter in the message.
TOO_LARGE = [
    (EngineConfig, {}, "n_ctx", INT, "n_ctx"),
    (EngineConfig, {}, "n_batch", INT, "n_batch"),
    (EngineConfig, {}, "n_ubatch", 2**16 + 1, "n_ubatch"),
    (EngineConfig, {}, "n_threads", 513, "n_threads"),
    (EngineConfig, {}, "n_threads_batch", 513, "n_threads_batch"),
    (EngineConfig, {}, "draft_n_threads", 513, "draft_n_threads"),
    (EngineConfig, {}, "n_predict", INT, "n_predict"),
    (ContextConfig, CONTEXT, "n_ctx", INT + 1, "n_ctx"),
    (ContextConfig, CONTEXT, "n_batch", INT, "n_batch"),
    (ContextConfig, CONTEXT, "n_ubatch", 2**16 + 1, "n_ubatch"),
    (ContextConfig, CONTEXT, "n_threads", 513, "n_threads"),
    (ContextConfig, CONTEXT, "n_threads_batch", 513, "n_threads_batch"),
    (ContextConfig, CONTEXT, "n_outputs_max", INT, "n_outputs_max"),
    (DraftConfig, DRAFT, "n_max", 65, "draft_n_max"),
    (DraftConfig, DRAFT, "n_ahead", 129, "draft_n_ahead"),
    (ModelConfig, MODEL, "n_gpu_layers", INT, "n_gpu_layers"),
    (ModelConfig, MODEL, "main_gpu", INT, "main_gpu"),
    (ModelConfig, MODEL, "rpc_timeout_s", 86_401, "rpc_timeout_s"),
    (SamplingConfig, {}, "top_k", INT, "top_k"),
    (SamplingConfig, {}, "repeat_last_n", INT, "repeat_last_n"),
    (SamplingConfig, {}, "seed", 2**64, "seed"),
    (StopConfig, {}, "n_predict", INT, "max_tokens"),
    (GenerationConfig, {}, "n_logprobs", 21, "logprobs"),
]
COUNTS = [case for case in TOO_LARGE if case[2] != "rpc_timeout_s"]


@pytest.mark.parametrize(("config", "more", "field", "n", "parameter"), TOO_LARGE)
def test_the_largest_value_and_the_first_above_it(
    config: Callable[..., Any], more: dict[str, Any], field: str, n: int, parameter: str
) -> None:
    config(**{**more, field: n - 1})
    for value in (n, 10 * n, 10**100):
        with pytest.raises(UsageError, match=rf"^{parameter} must be at most {n - 1}, not {value}: \w.+ \w") as raised:
            config(**{**more, field: value})
        assert raised.value.parameter == parameter


@pytest.mark.parametrize(("config", "more", "field", "_", "parameter"), COUNTS)
@pytest.mark.parametrize("value", [math.nan, math.inf, 1.5, "7"])
def test_a_count_is_a_whole_number(
    config: Callable[..., Any], more: dict[str, Any], field: str, _: int, parameter: str, value: Any
) -> None:
    with pytest.raises(UsageError, match=f"^{parameter} must be a whole number, not ") as raised:
        config(**{**more, field: value})
    assert raised.value.parameter == parameter


@pytest.mark.parametrize("draft_n_max", [65, 10**9])
def test_a_small_batch_does_not_hide_too_many_candidates(draft_n_max: int) -> None:
    """Fewer fit in the batch, whatever was asked for."""
    with pytest.raises(UsageError, match=r"^draft_n_max must be at most 64"):
        EngineConfig(draft_n_max=draft_n_max, n_ubatch=8).drafting()
    assert EngineConfig(draft_n_max=64, n_ubatch=8).drafting() == DraftConfig(7, 14)
    assert EngineConfig(draft_n_max=64).drafting() == DraftConfig(64, 128)


@pytest.mark.parametrize("shares", [(math.nan, 1.0), (1.0, math.inf), (-1.0, 2.0), (1e31, 1.0), (0.0, 0.0), (1e-320,)])
def test_proportions_that_single_precision_cannot_add_up(shares: tuple[float, ...]) -> None:
    ModelConfig(**MODEL, tensor_split=(3.0, 1.0))
    for prefix in ("", "draft_"):
        with pytest.raises(UsageError, match=f"^{prefix}tensor_split") as raised:
            ModelConfig(**MODEL, tensor_split=shares, prefix=prefix)
        assert raised.value.parameter == f"{prefix}tensor_split"


@pytest.mark.parametrize("seconds", [0, 0.5, -1, math.nan, math.inf, 1e308])
def test_a_timeout_that_no_clock_has(seconds: float) -> None:
    with pytest.raises(UsageError, match=r"^rpc_timeout_s must be at "):
        ModelConfig(**MODEL, rpc_timeout_s=seconds)


@pytest.mark.parametrize("bias", [math.nan, math.inf, 1e7, -1e7, 1e308])
def test_a_bias_that_is_no_number_or_overflows(bias: float) -> None:
    SamplingConfig(logit_bias=((1, -math.inf), (2, 1e6)))
    with pytest.raises(UsageError, match=r"^logit_bias must be "):
        SamplingConfig(logit_bias=((1, bias),))


@pytest.mark.parametrize(
    ("field", "parameter", "values"),
    [
        ("temp", "temperature", (1e-320, 1e-9, 1e7, 1e308)),
        ("repeat_penalty", "repeat_penalty", (1e-320, 1e-4, 1e4, 1e308)),
        ("presence_penalty", "presence_penalty", (-1e7, 1e7, 1e308)),
        ("frequency_penalty", "frequency_penalty", (-1e7, 1e7, 1e308)),
    ],
)
def test_a_number_with_which_logits_overflow(field: str, parameter: str, values: tuple[float, ...]) -> None:
    config: Callable[..., SamplingConfig] = SamplingConfig
    config(**{field: 1000.0})
    for value in values:
        with pytest.raises(UsageError, match=f"^{parameter} must be at ") as raised:
            config(**{field: value})
        assert raised.value.parameter == parameter


@pytest.mark.parametrize(
    ("options", "parameter"),
    [
        ({"draft_n_ahead": 999_999_999}, "draft_n_ahead"),
        ({"draft_n_max": 10**9}, "draft_n_max"),
        ({"n_threads": 100_000}, "n_threads"),
        ({"draft_main_gpu": -1}, "draft_main_gpu"),
        ({"draft_tensor_split": [math.nan]}, "draft_tensor_split"),
        ({"draft_n_gpu_layers": 2**31}, "draft_n_gpu_layers"),
        ({"draft_split_mode": "rows"}, "draft_split_mode"),
        ({"rpc_timeout_s": 1e308}, "rpc_timeout_s"),
        ({"back_port": 65_536}, "back_port"),
        ({"back_port": -1}, "back_port"),
        ({"n_predict": 2**31}, "n_predict"),
    ],
)
def test_a_program_gets_the_parameter(options: dict[str, Any], parameter: str) -> None:
    with pytest.raises(UsageError, match=f"^{parameter} ") as raised:
        duo.load("missing.gguf", "missing.gguf", **options)
    assert raised.value.parameter == parameter
