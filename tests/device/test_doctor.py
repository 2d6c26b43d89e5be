"""`duo doctor`, also where a variable hides the device."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.command import duo

# By the device's name without its number: a variable that hides all devices.
HIDING = {
    "Vulkan": ("VK_ICD_FILENAMES", "/missing.json"),
    "CUDA": ("CUDA_VISIBLE_DEVICES", "-1"),
    "ROCm": ("HIP_VISIBLE_DEVICES", "-1"),
}
# These hide a software device as well, but it stays unused without them.
UNNAMED, WRONG = ("GGML_VK_VISIBLE_DEVICES", ""), ("GGML_VK_VISIBLE_DEVICES", "99")


def described(env: dict[str, str] | None = None) -> tuple[int, dict[str, Any]]:
    """The exit status and the description of this installation."""
    run = duo("doctor", "--json", env=env)
    document: dict[str, Any] = json.loads(run.text)
    return run.status, document


def backend(gpu: str) -> str:
    return gpu.rstrip("0123456789")


def test_the_device_is_shown_and_nothing_is_hidden(gpu: str) -> None:
    _, document = described()
    assert gpu in [device["name"] for device in document["build"]["devices"]]
    assert backend(gpu) in document["build"]["gpu_backends"]
    assert document["hidden"] is None
    assert not {"driver", "hidden", "gpu"} & {problem["name"] for problem in document["problems"]}


def test_the_variable_that_hides_the_device_is_found(gpu: str) -> None:
    name, value = HIDING[backend(gpu)]
    status, document = described({name: value})
    assert status == 1
    assert document["environment"][name] == value
    (problem,) = [problem for problem in document["problems"] if problem["name"] == "hidden"]
    assert f"but finds no GPU: {name}={value} hides {gpu}, " in problem["what"]
    assert (problem["command"], problem["advice"]) == (f"unset {name}", False)


@pytest.mark.parametrize(("variable", "said"), [(UNNAMED, ""), (WRONG, "Invalid device index 99")])
def test_a_wrong_number_of_a_vulkan_device(gpu: str, variable: tuple[str, str], said: str) -> None:
    if backend(gpu) != "Vulkan":
        return
    name, value = variable
    status, document = described({name: value})
    assert status == 1
    (problem,) = [problem for problem in document["problems"] if problem["name"] in ("hidden", "driver")]
    assert f"{name}={value}" in problem["what"]
    if problem["name"] == "driver":  # a software device
        assert said in problem["what"]
        assert problem["command"] == "vulkaninfo --summary"
