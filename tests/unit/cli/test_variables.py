"""Environment variables as llama.cpp has them: values of switches, negative forms, and what has no effect."""

import pytest

from duo.cli.arguments import flags
from tests.command import assert_refused
from tests.unit.cli.runner import duo, parse

SWITCHES = {"LLAMA_ARG_MMAP": "use_mmap", "LLAMA_ARG_WARMUP": "warmup", "LLAMA_ARG_OFFLINE": "offline"}


@pytest.mark.parametrize("variable", SWITCHES)
def test_values_of_switches(variable: str) -> None:
    for is_on, values in ((True, "on enabled true 1"), (False, "off disabled false 0")):
        for value in values.split():
            assert getattr(parse("-e", env={variable: value}).engine, SWITCHES[variable]) is is_on
    assert_refused(duo("-p", "x", env={variable: "many"}), f"{variable} must be on or off, not 'many'", status=2)


@pytest.mark.parametrize("value", ["1", "0", ""])
@pytest.mark.parametrize("variable", ["LLAMA_ARG_MMAP", "LLAMA_ARG_WARMUP"])
def test_the_negative_form_turns_off_whatever_its_value(variable: str, value: str) -> None:
    negative = variable.replace("ARG_", "ARG_NO_")
    for more in ({}, {variable: "1"}):
        assert getattr(parse("-e", env={negative: value} | more).engine, SWITCHES[variable]) is False
    assert parse("--mmap", "--warmup", env={negative: value}) == parse("-e"), "the command line wins"


def test_switches_without_a_negative_form_have_no_negative_variable() -> None:
    assert parse("-e", env={"LLAMA_ARG_NO_OFFLINE": "1", "LLAMA_ARG_OFFLINE": "1"}).engine.offline


# Variables of flags that are refused, with values, as in the llama.cpp of llama-cpp-python 0.3.36.
IGNORED = {
    "LLAMA_ARG_MMPROJ": "a.gguf", "LLAMA_ARG_EMBEDDINGS": "1", "LLAMA_ARG_RERANKING": "on", "LLAMA_ARG_POOLING": "mean",
    "LLAMA_ARG_ROPE_SCALING_TYPE": "yarn", "LLAMA_ARG_ROPE_FREQ_BASE": "10000", "LLAMA_ARG_STATIC_PATH": "/srv",
    "LLAMA_ARG_THINK": "none", "LLAMA_ARG_THINK_BUDGET_MESSAGE": "enough", "MTMD_BACKEND_DEVICE": "CUDA0",
    "LLAMA_ARG_N_CPU_FFN": "3", "LLAMA_ARG_NO_KV_OFFLOAD": "1", "LLAMA_ARG_CONTEXT_SHIFT": "1",
    "LLAMA_ARG_SSL_KEY_FILE": "key.pem",
    "LLAMA_ARG_MODELS_DIR": "/models", "LLAMA_ARG_MODEL_URL": "https://a/b.gguf", "LLAMA_ARG_SPEC_TYPE": "ngram-mod",
    "LLAMA_ARG_CORS_ORIGINS": "*", "LLAMA_ARG_TOOLS": "all", "LLAMA_ARG_LOAD_MODE": "mlock",
}  # fmt: skip
# Switched off, with values that ask for what duo does anyway, of flags without effect, empty, or of other programs.
SILENT = {
    "LLAMA_ARG_EMBEDDINGS": "0", "LLAMA_ARG_ROPE_FREQ_BASE": "0", "LLAMA_ARG_N_CPU_FFN": "0",
    "LLAMA_ARG_LOAD_MODE": "mmap", "LLAMA_ARG_THINK": "auto", "LLAMA_ARG_NUMA": "isolate",
    "LLAMA_ARG_MMPROJ": "", "LLAMA_ARG_CACHE_REUSE": "256", "LLAMA_ARG_SPEC_TYPE": "draft-mtp", "HF_TOKEN": "hf_x",
}  # fmt: skip


@pytest.mark.parametrize("variable", IGNORED)
def test_a_variable_of_a_refused_flag_is_told_in_one_line(variable: str) -> None:
    run = duo("-p", "x", "-m", "none.gguf", env={variable: IGNORED[variable]})
    line, *rest = run.stderr.splitlines()
    assert line in {f"duo: without effect here: {variable} ({flag.instead})" for flag in flags().values()}
    assert len(rest) == 1, "the model is not there"


def test_several_are_told_in_one_line() -> None:
    for arguments in (
        ("lead", "-m", "none.gguf"),
        ("chat", "-m", "none.gguf", "-p", "x"),
        ("-m", "none.gguf", "-p", "x"),
    ):
        run = duo(*arguments, "--jinja", env=IGNORED)
        assert len(run.stderr.splitlines()) == 2
        assert all(run.stderr.count(f", {name} (") == 1 for name in IGNORED)
        assert run.stderr.startswith("duo: without effect here: --jinja, ")
    assert duo("lead", env={"LLAMA_ARG_MMPROJ": "a", "LLAMA_ARG_MODEL": "none.gguf"}).stderr.count("MMPROJ") == 1


@pytest.mark.parametrize("variable", SILENT)
def test_other_variables_are_not_told(variable: str) -> None:
    parse("-e", env={variable: SILENT[variable]})


def test_commands_without_these_flags_do_not_tell() -> None:
    assert not duo("plan", "--help", env=IGNORED).stderr
    assert duo("lead", "--help", env=IGNORED).status == 0
