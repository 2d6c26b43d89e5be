"""Options that cannot be meant like this: exit status 2, before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command import assert_refused, duo

needs_full_disk = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-n", "-2"], "-n must be -1 or more, not -2"),
        (["-n", "many"], "-n"),
        (["--draft", "-1"], "--draft must be at least 0, not -1"),
        (["--draft", "x"], "'x' is no number and not 'auto'"),
        (["--draft-ahead", "0"], "--draft-ahead must be at least 1, not 0"),
        (["--draft-ahead", "x"], "'x' is no number and not 'auto'"),
        (["-t", "0"], "'-t' / '--threads'"),
        (["-td", "0"], "'-td' / '--threads-draft'"),
        (["-tb", "0"], "'-tb' / '--threads-batch'"),
        (["-c", "-1"], "'-c' / '--ctx-size'"),
        (["-b", "0"], "'-b' / '--batch-size'"),
        (["-ub", "0"], "'-ub' / '--ubatch-size'"),
        (["-ngl", "x"], "'x' is no number, 'all' or 'auto'"),
        (["-ngld", "x"], "'x' is no number, 'all' or 'auto'"),
        (["-fa", "maybe"], "'maybe' is not one of 'on', 'off', 'auto'"),
        (["-ctk", "nonsense"], "'nonsense' is not one of 'f32', 'f16'"),
        (["-ctv", "nonsense"], "'nonsense' is not one of 'f32', 'f16'"),
        (["--color", "blue"], "'blue' is not one of 'auto', 'always', 'never'"),
        (["-Cr", "nonsense"], "a range of cores is written lo-hi, for example 0-3, not 'nonsense'"),
        (["-Crd", "3"], "a range of cores is written lo-hi, for example 0-3, not '3'"),
        (["-Cr", "0-99999"], "cores 0-99999: this process may use"),
        (["-Cr", "3-1"], "cores 3-1: this process may use"),
        (["--temp", "warm"], "'--temp' / '--temperature'"),
        (["--temp", "nan"], "--temp must be 0 or more, not nan"),
        (["--top-p", "1.5"], "--top-p must be between 0 and 1, not 1.5"),
        (["--min-p", "-1"], "--min-p must be between 0 and 1, not -1"),
        (["--typical", "2"], "--typical must be between 0 and 1, not 2"),
        (["--repeat-penalty", "0"], "--repeat-penalty must be greater than 0, not 0"),
        (["--repeat-last-n", "-1"], "--repeat-last-n"),
        (["--presence-penalty", "inf"], "--presence-penalty must be a number, not inf"),
        (["-s", "-2"], "'-s' / '--seed'"),
        (["--logit-bias", "12"], "'12' is no TOKEN_ID(+/-)BIAS, such as 15043+1 or 15043-inf"),
        (["-l", "x+1"], "'x+1' is no TOKEN_ID(+/-)BIAS"),
        (["-l", "12+much"], "'12+much' is no TOKEN_ID(+/-)BIAS"),
        (["--samplers", "top_q"], "no sampler 'top_q' (there are penalties, top_k"),
        (["--grammar", 'root ::= "a"', "-j", "{}"], "--grammar and -j each say what the text must be"),
        (["--verify", "hope"], "'hope' is not one of 'coupled', 'rejection'"),
        (["-r", ""], "-r needs a text that is not empty"),
        (["--exact", "-fa", "off"], "--exact needs flash attention"),
        (["--nonsense"], "No such option: --nonsense"),
        (["nonsense"], "nonsense"),
        (["-c"], "'-c' requires an argument"),
        (["-hf", "user/repo"], "-m and -hf both name the target"),
        (["-md", "a.gguf", "-hfd", "user/repo"], "-md and -hfd both name the draft"),
        (["-f", "prompt.txt"], "-p and -f both give a prompt"),
    ],
)
def test_an_option_that_cannot_be_meant(arguments: list[str], said: str) -> None:
    # There is no such model: the options are found wrong first.
    assert_refused(duo("-m", "missing.gguf", "-p", "x", *arguments), said, status=2)


def test_a_draft_without_a_target() -> None:
    assert_refused(duo("-md", "draft.gguf", "-p", "x"), "a draft without a target", status=2)
    assert_refused(duo("-hfd", "user/repo", "-p", "x"), "a draft without a target", status=2)


def test_no_prompt() -> None:
    assert_refused(duo("-m", "missing.gguf"), "no prompt: give one with -p or -f", status=2)


@pytest.mark.parametrize("option", ["--json", "--trace", "--log-file"])
def test_a_file_that_cannot_be_written_is_found_before_anything_is_loaded(tmp_path: Path, option: str) -> None:
    for path, said in ((tmp_path / "none" / "file", "No such file or directory"), (tmp_path, "Is a directory")):
        run = duo("-m", "missing.gguf", "-p", "x", option, path)
        assert_refused(run, f"{option} {path}: {said}", status=2)


@pytest.mark.parametrize("option", ["--json", "--trace"])
def test_trying_leaves_no_file_and_harms_none(tmp_path: Path, option: str) -> None:
    new, old = tmp_path / "new", tmp_path / "old"
    old.write_text("of a run before")
    for path in (new, old):
        assert duo("-m", "missing.gguf", "-p", "x", option, path).status == 1
    assert not new.exists()
    assert old.read_text() == "of a run before"


@needs_full_disk
@pytest.mark.parametrize("option", ["--json", "--trace"])
def test_a_disk_that_is_full_at_the_end(tiny: Path, option: str) -> None:
    run = duo("-m", tiny, "-p", "x", "-n", "2", "-t", "1", option, "/dev/full")
    assert run.status == 1
    *_, statistics, error = run.stderr.splitlines()
    assert statistics.startswith("tokens: 2 ")
    assert error == f"duo: error: {option} /dev/full: No space left on device"


@needs_full_disk
def test_a_disk_that_is_full_for_the_text(tiny: Path) -> None:
    run = duo("-m", tiny, "-p", "x", "-n", "2", "-t", "1", before="import os; os.dup2(os.open('/dev/full', 1), 1)")
    assert_refused(run, "No space left on device")


@needs_full_disk
def test_a_disk_that_is_full_for_the_log_harms_no_text(tiny: Path) -> None:
    run = duo("-m", tiny, "-p", "x", "-n", "2", "-t", "1", "--log-file", "/dev/full")
    assert (run.status, run.n_tokens) == (0, 2)
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize("option", ["-hf", "-hfd"])
def test_without_huggingface_hub(option: str, demo_pair: tuple[Path, Path]) -> None:
    names = ["-hf", "user/repo"] if option == "-hf" else ["-m", str(demo_pair[0]), "-hfd", "user/repo"]
    run = duo(*names, "-p", "x", before="import sys; sys.modules['huggingface_hub'] = None")
    assert_refused(run, "models of Hugging Face need huggingface_hub: pip install huggingface_hub")
