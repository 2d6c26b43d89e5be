"""Runs with real models: the main job, the end of a text, grammars, models from the hub and a damaged one."""

import json
import re
from pathlib import Path

import pytest

from tests.command import ONE_EACH, SLOW_TARGET, assert_refused, duo, models
from tests.gguf_files import tiny_llama
from tests.gguf_header import GgufHeader
from tests.process.cli.terminal import Terminal
from tests.serving import Served
from tests.unit.cli import runner
from tests.unit.cli.reference import greedy_text
from tests.unit.models.fake_hub import FakeRepo, fake_hub

EMOJI = "Emoji: 🍎🍊🍋🍌🍉🍇🍓🍎🍊🍋🍌🍉🍇🍓🍎🍊"
N = 32
OPTIONS = f"-n {N} --exact --draft 4 --schedule async --lookup off -Cr 0-0 -v".split()


def test_the_text_and_the_statistics_of_the_main_job(demo_pair: tuple[Path, Path], tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    with Served(*models(*demo_pair), "-p", EMOJI, *OPTIONS, *ONE_EACH, "--json", file, before=SLOW_TARGET) as run:
        assert run.finish() == 0, run.lines
    assert run.stdout == greedy_text(demo_pair[0], EMOJI, N)
    assert any(byte > 127 for byte in run.stdout)
    for data in run.writes[:-1]:  # whole characters; with the last, the text may end in the middle of one
        data.decode()

    report = json.loads(file.read_text())
    target, draft = report["models"]["target"], report["models"]["draft"]
    assert (target["path"], draft["path"]) == tuple(map(str, demo_pair))
    assert (target["quantisation"], draft["quantisation"], target["layers"]) == ("F16", "Q4_0", 30)
    assert report["threads"]["cores"] == [0]
    assert report["memory"]["peak_bytes"] > target["bytes"] + draft["bytes"]
    assert report["generation"]["tokens_by_schedule"] == {"async": N - 1}
    assert report["draft"]["accepted"] > 0
    assert 0 <= report["draft"]["hidden"] <= 1


def test_the_end_of_the_text(demo_pair: tuple[Path, Path]) -> None:
    question = ("-p", "What is 2+2? Answer with a number.", "--chat", "--exact", *ONE_EACH, "-n", "24")
    run = runner.duo(*models(*demo_pair), *question)
    assert run.stopped == "end of text"
    assert "<|im_end|>" not in run.text
    on = runner.duo(*models(*demo_pair), *question, "--ignore-eos")
    assert (on.stopped, on.n_tokens) == ("token limit", 24)
    assert on.text.startswith(run.text)
    assert len(on.text) > len(run.text)


@pytest.mark.parametrize("verify", ["coupled", "rejection"])
def test_a_grammar_is_obeyed_to_its_end(kin: dict[str, Path], verify: str) -> None:
    date = 'root ::= [0-9] [0-9] "." [0-9] [0-9] "." [0-9] [0-9] [0-9] [0-9]'
    text = ("-p", "Once upon a time", "-n", "24", "--ignore-eos", "--exact", "--temp", "1.3", "-s", "4", *ONE_EACH)
    alone = runner.duo("-m", kin["lfm2"], *text, "--grammar", date)
    drafting = ("--verify", verify, "--schedule", "sync", "--draft", "6")
    run = runner.duo(*models(kin["lfm2"], kin["llama"]), *text, "--grammar", date, *drafting)
    assert (run.stopped, alone.stopped) == ("the grammar allows nothing more",) * 2
    assert re.fullmatch(r"\d\d\.\d\d\.\d{4}", run.text)
    assert run.text == alone.text or verify == "rejection"


def test_models_from_the_hub(tiny: Path, tmp_path: Path) -> None:
    """With huggingface_hub's environment variables, from a local hub."""
    pytest.importorskip("huggingface_hub")
    parts = tiny_llama(tmp_path / "split.gguf", max_tensors=4).parent.glob("split-*.gguf")
    repos = {
        "maker/tiny": FakeRepo({"tiny-F32.gguf": tiny.read_bytes()}),
        "maker/split": FakeRepo({part.name: part.read_bytes() for part in parts}),
    }
    target, draft = ("-hf", "maker/tiny:F32"), ("-hfd", "maker/split")
    text = ("-p", "the cat", "-n", "4", "--color", "never", *ONE_EACH)
    plain = runner.duo("-m", tiny, *text).stdout
    with fake_hub(repos) as hub:
        env = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home")}
        with Terminal(*target, *draft, *text, env=env) as terminal:
            assert terminal.finish() == 0
        assert b"100%" in terminal.shown, "progress is shown on a terminal"
        assert plain in terminal.shown
        hub.asked.clear()
        cached = duo(*target, "--offline", *text, env=env)
        assert (cached.status, cached.stdout, cached.warnings, hub.asked) == (0, plain, [], [])
        assert_refused(duo("-hf", "maker/other", "--offline", *text, env=env), "offline")


def test_a_file_on_which_llama_cpp_would_abort(tmp_path: Path) -> None:
    head = GgufHeader.read(good := tiny_llama(tmp_path / "good.gguf"))
    tokens = next(each.value for each in head.keys if each.name == b"tokenizer.ggml.tokens")
    tokens[-1] = tokens[-2]
    bad = head.write(tmp_path / "bad.gguf")
    assert_refused(duo(*models(good, bad), "-p", "x"), f"{bad}: the file is damaged", "id_to_token.size()")
