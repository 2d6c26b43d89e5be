"""llama.cpp's environment variables, and where models and logs come from and go to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from duo.cli.options.context import CacheType
from duo.llama.context import CACHE_TYPES
from tests.command import ONE_EACH, duo

VARIABLES = {
    "LLAMA_ARG_N_PREDICT": ("7", "predict", 7),
    "LLAMA_ARG_SPEC_DRAFT_N_MAX": ("3", "draft", 3),
    "LLAMA_ARG_OFFLINE": ("1", "offline", True),
    "LLAMA_ARG_MMAP": ("0", "mmap", False),
    "LLAMA_ARG_N_GPU_LAYERS": ("0", "gpu_layers", 0),
    "LLAMA_ARG_N_GPU_LAYERS_DRAFT": ("0", "gpu_layers_draft", 0),
    "LLAMA_ARG_THREADS": ("1", "threads", 1),
    "LLAMA_ARG_CTX_SIZE": ("400", "ctx_size", 400),
    "LLAMA_ARG_BATCH": ("64", "batch_size", 64),
    "LLAMA_ARG_UBATCH": ("32", "ubatch_size", 32),
    "LLAMA_ARG_FLASH_ATTN": ("on", "flash_attn", "on"),
    "LLAMA_ARG_CACHE_TYPE_K": ("q8_0", "cache_type_k", "q8_0"),
    "LLAMA_ARG_CACHE_TYPE_V": ("q8_0", "cache_type_v", "q8_0"),
}


def test_environment_variables_stand_for_options(tiny: Path, tmp_path: Path) -> None:
    report, log = tmp_path / "run.json", tmp_path / "llama.log"
    env = {
        "LLAMA_ARG_MODEL": str(tiny),
        "LLAMA_ARG_SPEC_DRAFT_MODEL": str(tiny),
        "LLAMA_ARG_LOG_FILE": str(log),
    } | {name: value for name, (value, _, _) in VARIABLES.items()}
    run = duo("-p", "the cat", "-td", "1", "--json", report, env=env)
    assert (run.status, run.n_tokens, run.warnings) == (0, 7, [])
    options = json.loads(report.read_text())["options"]
    assert {name: options[name] for _, name, _ in VARIABLES.values()} == {
        name: meant for _, name, meant in VARIABLES.values()
    }
    assert options["model"] == options["model_draft"] == str(tiny)
    assert "llama" in log.read_text()


def test_options_win(tiny: Path) -> None:
    env = {"LLAMA_ARG_MODEL": "missing.gguf", "LLAMA_ARG_N_PREDICT": "7", "LLAMA_ARG_CTX_SIZE": "1"}
    run = duo("-m", tiny, "-p", "the cat", "-n", "3", "-c", "100", "-t", "1", env=env)
    assert (run.status, run.n_tokens) == (0, 3)


def test_a_variable_that_cannot_be_meant(tiny: Path) -> None:
    run = duo("-m", tiny, "-p", "x", env={"LLAMA_ARG_CTX_SIZE": "many"})
    assert (run.status, run.stderr.count("\n")) == (2, 1)
    assert "-c" in run.stderr


@pytest.mark.parametrize("kind", CacheType)
def test_every_cache_type_decodes(tiny: Path, kind: CacheType) -> None:
    options = ("-ctk", kind.value, "-ctv", kind.value, "-fa", "on")
    run = duo("-m", tiny, "-md", tiny, "-p", "the cat", "-n", "4", *options, *ONE_EACH)
    assert (run.status, run.n_tokens, run.warnings) == (0, 4, [])


def test_the_cache_types_are_those_of_llama_cpp() -> None:
    assert [kind.value for kind in CacheType] == list(CACHE_TYPES)


# llama.cpp's log


@pytest.fixture
def usual(tiny: Path) -> list[str]:
    """How the lines of a run without any log begin."""
    return _heads(duo("-m", tiny, "-p", "the cat", "-n", "2", "-t", "1").stderr)


def _heads(said: str) -> list[str]:
    return [line.split()[0] for line in said.splitlines()]


def test_the_log_appears_only_when_asked_for(tiny: Path, tmp_path: Path, usual: list[str]) -> None:
    assert usual == ["prompt", "first", "generated", "target", "memory", "tokens:"]
    arguments = ("-m", tiny, "-p", "the cat", "-n", "2", "-t", "1")

    log = tmp_path / "llama.log"
    to_file = duo(*arguments, "--log-file", log)
    assert _heads(to_file.stderr) == usual
    assert "llama_model_loader" in log.read_text()

    verbose = duo(*arguments, "-v")
    assert "llama_model_loader" in verbose.stderr
    assert _heads(verbose.stderr)[-6:] == usual
    assert verbose.stdout == to_file.stdout == duo(*arguments).stdout


def test_the_log_of_a_failure_stays_out_of_the_way(tiny: Path, tmp_path: Path) -> None:
    broken, log = tmp_path / "broken.gguf", tmp_path / "llama.log"
    broken.write_bytes(tiny.read_bytes()[:2000])
    run = duo("-m", broken, "-p", "x", "--log-file", log)
    assert run.stderr.count("\n") == 1
    assert "gguf" in log.read_text()


# Versions and devices


def test_version() -> None:
    run = duo("--version")
    assert (run.status, run.stderr) == (0, "")
    names = [line.rpartition(" ")[0] for line in run.text.splitlines()]
    assert names == ["duo", "llama-cpp-python", "llama.cpp", "numpy"]


def test_list_devices() -> None:
    run = duo("--list-devices")
    assert (run.status, run.stderr) == (0, "")
    assert any(line.startswith("CPU: ") for line in run.text.splitlines())
