"""The configs check themselves by what their options say; every number has an upper bound, with its reason."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

import duo
from duo.config import DraftConfig, EngineConfig, GenerationConfig, SamplingConfig
from duo.config.engine_config import CACHE_TYPES
from duo.config.option import Declared, check_names, declared, with_values
from duo.errors import UsageError
from duo.llama import model_size

OPTIONS = {one.name: one for config in (EngineConfig(), GenerationConfig()) for one in declared(config)}
NUMBERS = [one for one in OPTIONS.values() if one.option.bounds]
WHOLE = [one for one in NUMBERS if one.field.type.startswith("int")]
CHOICES = [one for one in OPTIONS.values() if one.option.choices]


def config_with(one: Declared, value: Any) -> Any:
    config = EngineConfig() if one.owner is EngineConfig else GenerationConfig()
    return with_values(config, {one.name: value})


def refused(one: Declared, value: Any, said: str) -> None:
    with pytest.raises(UsageError, match=f"^{one.name} must be {said}") as raised:
        config_with(one, value)
    assert raised.value.parameter == one.name


@pytest.mark.parametrize("one", NUMBERS, ids=lambda one: one.name)
def test_the_bounds_of_a_number(one: Declared) -> None:
    assert one.option.bounds
    least, most, why = one.option.bounds
    assert re.fullmatch(r"\w.+ \w.*", why)
    for value in (least, most):
        config_with(one, value)
    shown = [re.escape(str(n)) for n in (least, most)]
    refused(one, least - 1, f"at least {shown[0]}, not ")
    for value in (most + 1, 10**100):
        refused(one, value, f"at most {shown[1]}, not {value}: {why}")
    if one not in WHOLE:
        refused(one, math.nan, f"at least {shown[0]}")


@pytest.mark.parametrize("one", WHOLE, ids=lambda one: one.name)
@pytest.mark.parametrize("value", [math.nan, math.inf, 1.5])
def test_a_count_is_a_whole_number(one: Declared, value: Any) -> None:
    refused(one, value, "a whole number, not ")


@pytest.mark.parametrize("one", CHOICES, ids=lambda one: one.name)
def test_choices(one: Declared) -> None:
    for value in one.option.choices:
        config_with(one, value)
    refused(one, "x", f".*one of {', '.join(one.option.choices)}, not 'x'")


def test_other_names_of_schedules() -> None:
    found = [EngineConfig(schedule=name).schedule for name in ("concurrent", "sequential", "plain")]
    assert found == ["async", "sync", "off"]


def test_the_cache_types_are_those_of_llama_cpp() -> None:
    assert list(CACHE_TYPES) == list(model_size.CACHE_TYPES)


def test_a_small_batch_limits_the_candidates() -> None:
    assert EngineConfig(draft_n_max=64, n_ubatch=8).drafting() == DraftConfig(7, 14)
    assert EngineConfig(draft_n_max=64).drafting() == DraftConfig(64, 128)
    assert EngineConfig(draft_n_max=3, draft_n_ahead=5, branches=2).drafting() == DraftConfig(3, 5, branches=2)


@pytest.mark.parametrize("shares", [(math.nan, 1.0), (1.0, math.inf), (-1.0, 2.0), (1e31, 1.0), (0.0, 0.0), (1e-320,)])
def test_proportions_that_single_precision_cannot_add_up(shares: tuple[float, ...]) -> None:
    EngineConfig(tensor_split=(3.0, 1.0))
    with pytest.raises(UsageError, match=r"^tensor_split"):
        EngineConfig(tensor_split=shares)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        *(({"logit_bias": ((1, bias),)}, "logit_bias must be ") for bias in (math.nan, math.inf, 1e7, -1e7)),
        *(({"temp": value}, "temperature must be at least ") for value in (1e-320, 1e-9)),
        ({"samplers": ("x",)}, "samplers: unknown sampler 'x' "),
    ],
)
def test_sampling_that_is_impossible(options: dict[str, Any], said: str) -> None:
    SamplingConfig(logit_bias=((1, -math.inf), (2, 1e6)), temp=1e-6)
    with pytest.raises(UsageError, match=f"^{said}"):
        SamplingConfig(**options)


def test_exact_needs_flash_attention() -> None:
    with pytest.raises(UsageError, match=r"^exact needs flash attention"):
        EngineConfig(exact=True, flash_attn="off")


def test_unknown_keywords_are_named_with_the_nearest() -> None:
    misspelt: Any = {"n_thread": 1, "n_ctx": 8}
    with pytest.raises(TypeError, match=r"^unknown keyword argument 'max_token'; similar: max_tokens"):
        check_names(["max_token"], OPTIONS)
    with pytest.raises(TypeError, match=r"^unknown keyword argument 'n_thread'; similar: n_threads"):
        duo.load("main.gguf", **misspelt)
    with pytest.raises(TypeError, match=r"^unknown keyword argument 'zzz'$"):
        check_names(["zzz"], OPTIONS)
