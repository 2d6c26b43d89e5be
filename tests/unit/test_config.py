"""The configs check themselves by what their options say; every number has an upper bound, with its reason."""

import math
import re
from typing import Any

import pytest

from duo.config import ContextConfig, DraftConfig, EngineConfig, GenerationConfig, SamplingConfig
from duo.config.option import Declared, check_names, declared, with_values
from duo.errors import UsageError

OPTIONS = {one.name: one for config in (EngineConfig(), GenerationConfig()) for one in declared(config)}
NUMBERS = [one for one in OPTIONS.values() if one.option.bounds]
CHOICES = [one for one in OPTIONS.values() if one.option.choices]


def config_with(one: Declared, value: Any) -> None:
    with_values(EngineConfig() if one.owner is EngineConfig else GenerationConfig(), {one.name: value})


def refused(one: Declared, value: Any, said: str) -> None:
    with pytest.raises(UsageError, match=f"^{one.name} must be {said}") as raised:
        config_with(one, value)
    assert raised.value.parameter == one.name


@pytest.mark.parametrize("one", NUMBERS, ids=lambda one: one.name)
def test_the_bounds_of_a_number(one: Declared) -> None:
    assert one.option.bounds
    least, most, why = one.option.bounds
    assert re.fullmatch(r"\w.+ \w.*", why)
    shown = [re.escape(str(n)) for n in (least, most)]
    config_with(one, least)
    config_with(one, most)
    refused(one, least - 1, f"at least {shown[0]}, not ")
    for value in (most + 1, 10**100):
        refused(one, value, f"at most {shown[1]}, not {value}: {why}")
    if one.field.type.startswith("int"):
        for value in (math.nan, math.inf, 1.5):
            refused(one, value, "a whole number, not ")
    else:
        refused(one, math.nan, f"at least {shown[0]}")


@pytest.mark.parametrize("one", CHOICES, ids=lambda one: one.name)
def test_choices(one: Declared) -> None:
    for value in one.option.choices:
        config_with(one, value)
    refused(one, "x", f".*one of {', '.join(one.option.choices)}, not 'x'")


@pytest.mark.parametrize("one", OPTIONS.values(), ids=lambda one: one.name)
def test_none_is_refused_where_it_means_nothing(one: Declared) -> None:
    if "None" in one.field.type:
        config_with(one, None)
    else:
        refused(one, None, "")


def test_rows_of_logits_are_reserved_in_multiples_of_32() -> None:
    assert [ContextConfig(64, 1, 1, n_outputs_max=n).n_reserved for n in (1, 17, 32, 33)] == [32, 32, 32, 64]


def test_values_with_other_names_and_candidates_that_a_small_batch_limits() -> None:
    found = [EngineConfig(schedule=name).schedule for name in ("concurrent", "sequential", "plain")]
    assert found == ["async", "sync", "off"]
    assert EngineConfig(draft_n_max=64, n_ubatch=8).drafting() == DraftConfig(7, 14)
    assert EngineConfig(draft_n_max=64).drafting() == DraftConfig(64, 128)
    assert EngineConfig().drafting().n_most == 31, "from the text itself"
    assert EngineConfig(n_ubatch=20).drafting().n_most == 19
    assert EngineConfig(draft_n_max=3, draft_n_ahead=5, branches=2).drafting() == DraftConfig(3, 5, branches=2)


@pytest.mark.parametrize(
    ("config", "options", "said"),
    [
        *(
            (EngineConfig, {"tensor_split": shares}, "tensor_split")
            for shares in ((math.nan, 1.0), (1.0, math.inf), (-1.0, 2.0), (1e31, 1.0), (0.0, 0.0), (1e-320,))
        ),
        (EngineConfig, {"exact": True, "flash_attn": "off"}, "exact needs flash attention"),
        *((SamplingConfig, {"logit_bias": ((1, bias),)}, "logit_bias must be ") for bias in (math.nan, math.inf, -1e7)),
        *((SamplingConfig, {"temp": value}, "temperature must be at least ") for value in (1e-320, 1e-9)),
        (SamplingConfig, {"samplers": ("x",)}, "samplers: unknown sampler 'x' "),
    ],
)
def test_what_is_impossible_although_each_number_is_within_its_bounds(
    config: type[Any], options: dict[str, Any], said: str
) -> None:
    SamplingConfig(logit_bias=((1, -math.inf), (2, 1e6)), temp=1e-6)
    EngineConfig(tensor_split=(3.0, 1.0))
    with pytest.raises(UsageError, match=f"^{said}"):
        config(**options)


@pytest.mark.parametrize(("name", "said"), [("max_token", "'; similar: max_tokens"), ("zzz", "'$")])
def test_unknown_keywords_are_named_with_the_nearest(name: str, said: str) -> None:
    with pytest.raises(TypeError, match=f"^unknown keyword argument '{name}{said}"):
        check_names([name], OPTIONS)
