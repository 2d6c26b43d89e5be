"""Commands on the device, each in a process of its own: doctor, tune, two runs at the same time, and an RPC server."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command import ONE_EACH, SLOW_TARGET, duo, models
from tests.serving import Served, free_port

# Flash attention ends the process in Mesa 22.3, so there is no --exact. The tiny models have no near-ties.
TEXT = ("-p", "the cat sat on the mat and", "-n", "24", "-fa", "off", *ONE_EACH, "--ignore-eos", "--lookup", "off")
ASYNC = ("--schedule", "async")
DRAFT_ON_DEVICE = ("-ngl", "0", "-ngld", "99")

# By the device's name without its number: a variable that hides all devices.
HIDING = {
    "Vulkan": ("VK_ICD_FILENAMES", "/missing.json"),
    "CUDA": ("CUDA_VISIBLE_DEVICES", "-1"),
    "ROCm": ("HIP_VISIBLE_DEVICES", "-1"),
}


def backend(gpu: str) -> str:
    return gpu.rstrip("0123456789")


def test_the_device_is_shown_and_nothing_is_hidden(gpu: str) -> None:
    document = json.loads(duo("doctor", "--json").text)
    assert gpu in [device["name"] for device in document["build"]["devices"]]
    assert backend(gpu) in document["build"]["gpu_backends"]
    assert document["hidden"] is None
    assert not {"driver", "hidden", "gpu"} & {problem["name"] for problem in document["problems"]}


def test_the_variable_that_hides_the_device_is_found(gpu: str) -> None:
    name, value = HIDING[backend(gpu)]
    run = duo("doctor", "--json", env={name: value})
    assert run.status == 1
    document = json.loads(run.text)
    assert document["environment"][name] == value
    (problem,) = [problem for problem in document["problems"] if problem["name"] == "hidden"]
    assert f"but finds no GPU: {name}={value} hides {gpu}, " in problem["what"]
    assert (problem["command"], problem["advice"]) == (f"unset {name}", False)


# Code for `before`: whatever other programs compute, it is measured; decodes take long enough for that.
MEASURABLE = """
from tests.child import slow_target
slow_target(0.005)
from duo.diagnose import measure
from duo.engine import profile
measure.other_cpu_use = profile.other_cpu_use = lambda _: 0.0
"""


def test_tune_measures_the_device_and_the_next_run_begins_with_that(
    gpu: str, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    env, report = {"DUO_CONFIG": str(tmp_path / "config")}, tmp_path / "run.json"
    tuned = duo("tune", *models(*pair), *DRAFT_ON_DEVICE, "-fa", "off", "-v", before=MEASURABLE, env=env)
    assert tuned.status == 0, tuned.stderr
    assert f"{gpu} model buffer size" in tuned.stderr
    (profile,) = (tmp_path / "config").rglob("*+*.json")
    measured = json.loads(profile.read_text())["draft"]["costs"]["times"]["0"]
    assert measured[0]["by_threads"], "the draft was measured on the device"
    run = duo(*models(*pair), *DRAFT_ON_DEVICE, *TEXT, "--json", report, before=MEASURABLE, env=env)
    assert run.status == 0, run.stderr
    document = json.loads(report.read_text())
    assert gpu in [device["name"] for device in document["devices"]]
    curve = document["policy"]["curve_ms"]["alone"]
    assert len(set(curve)) > 3, "many sizes were measured, and this run verified few"


def test_two_runs_at_the_same_time_write_what_one_writes(gpu: str, pair: tuple[Path, Path]) -> None:
    options = (*models(*pair), "-dev", gpu, "-ngl", "99", "-ngld", "0", *TEXT)
    with Served(*options, before=SLOW_TARGET) as first, Served(*options, before=SLOW_TARGET) as second:
        assert (first.finish(), second.finish()) == (0, 0), first.lines + second.lines
    alone = duo("-m", pair[0], "-dev", gpu, "-ngl", "99", *TEXT)
    assert alone.status == 0, alone.stderr
    assert (first.stdout, second.stdout) == (alone.stdout, alone.stdout)


@pytest.fixture
def server(gpu: str) -> Iterator[str]:
    """The address of an RPC server that serves the device: one for each test, because Mesa 22.3 may end a used one."""
    port = free_port()
    with Served("rpc-server", "-p", str(port), "-d", gpu) as served:
        served.wait_for(f"duo: serving {gpu}")
        yield f"127.0.0.1:{port}"
        served.send(signal.SIGTERM)
        assert served.finish() == 0


def test_a_target_on_an_rpc_server_on_the_device(gpu: str, pair: tuple[Path, Path], server: str) -> None:
    on_device = ("-ngl", "99", "-dev")
    options = ("-ngld", "0", *ASYNC, "--rpc", server, "--rpcd", "none", "-v")
    run = duo(*models(*pair), *TEXT, *on_device, "RPC0", *options)
    assert run.status == 0, run.stderr
    assert f"[{server}] model buffer size" in run.stderr
    assert run.stdout == duo("-m", pair[0], *TEXT, *on_device, gpu).stdout
