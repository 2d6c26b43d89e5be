"""`duo doctor`, also where a variable hides the device."""

import json
from typing import Any

from tests.command import duo

# By the device's name without its number: a variable that hides all devices.
HIDING = {
    "Vulkan": ("VK_ICD_FILENAMES", "/missing.json"),
    "CUDA": ("CUDA_VISIBLE_DEVICES", "-1"),
    "ROCm": ("HIP_VISIBLE_DEVICES", "-1"),
}


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
