"""Real clients with a real lead. The settings and programs of docs/lead.md are run as they are there."""

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import duo
from tests.chat_templates import HERMES
from tests.command import ROOT, Argument
from tests.documents.documents import LEAD, blocks
from tests.gguf_header import GgufHeader
from tests.serving import PATIENCE_S, LeadProcess

PROGRAMS = dict(blocks(LEAD, "python"))
QUESTION = "What is the capital of France?"
BIN, LM_EVAL = (ROOT / "build" / "clients" / name / "bin" for name in ("venv", "lm-eval"))  # of `make test-slow`
TASKS = Path(__file__).with_name("lm-eval")

Run = Callable[..., str]


@pytest.fixture(scope="session")
def lead(demo_pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeadProcess]:
    """A lead with the demo pair, whose target has a chat template with tools."""
    target, draft = demo_pair
    folder = tmp_path_factory.mktemp("target")
    copy = GgufHeader.read(target).set("tokenizer.chat_template", HERMES.encode()).write(folder / "main.gguf")
    with LeadProcess(copy, "-md", draft, "-td", "1", "-c", "2048") as lead:
        yield lead
        assert lead.process.poll() is None, lead.lines[-5:]
        warnings = [line for line in lead.lines if "warning" in line or "error" in line]
        assert not warnings, "a client's fields were misspelt, or the lead failed"
    shutil.rmtree(folder)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a program of the clients' environment, which reaches this machine only. Its standard output."""
    nowhere = "http://127.0.0.1:9"
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "LLM_USER_PATH": str(tmp_path),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # litellm fetches prices otherwise
        "HF_HUB_OFFLINE": "1",
        "http_proxy": nowhere,
        "https_proxy": nowhere,
        "no_proxy": "127.0.0.1,localhost",
    }

    def run(program: str, *arguments: Argument) -> str:
        folder = LM_EVAL if program == "lm_eval" else BIN
        if not (folder.parent / "ready").exists():
            pytest.skip(f"{folder.parent.relative_to(ROOT)} is not installed: make test-slow does that")
        done = subprocess.run(
            [folder / program, *arguments],
            cwd=tmp_path,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=5 * PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    return run


@pytest.mark.parametrize("client", ["openai", "langchain", "litellm", "llamacpp"])
def test_client(run: Run, lead: LeadProcess, client: str) -> None:
    run("python", Path(__file__).with_name("programs.py"), client, lead.url)


@pytest.mark.parametrize("place", PROGRAMS)
def test_the_programs_of_the_document(run: Run, lead: LeadProcess, place: str) -> None:
    text = PROGRAMS[place].replace("localhost:5555", f"127.0.0.1:{lead.port}")
    assert text != PROGRAMS[place]
    assert run("python", "-c", text).strip()


def test_llm(run: Run, lead: LeadProcess, tmp_path: Path) -> None:
    (settings,) = re.findall(r"^```yaml\n(- model_id: .*?)^```", LEAD.read_text(encoding="utf-8"), re.M | re.S)
    (tmp_path / "extra-openai-models.yaml").write_text(settings.replace("5555", str(lead.port)), encoding="utf-8")
    options = ("-m", "duo", "-o", "temperature", "0", "-o", "max_tokens", "64")
    streamed = run("llm", *options, QUESTION)
    assert "Paris" in streamed
    assert run("llm", *options, "--no-stream", QUESTION) == streamed
    fruit = json.loads(run("llm", *options, "--schema", "name, ripe bool", "Name a fruit."))
    assert (type(fruit["name"]), type(fruit["ripe"])) == (str, bool)
    assert run("llm", *options, "-T", "llm_time", "What time is it?").strip()
    commands = re.findall(r"^(llm -m duo .*)$", LEAD.read_text(encoding="utf-8"), re.M)
    assert len(commands) == 2
    for command in commands:
        assert run(*shlex.split(command)).strip()


# lm-eval


def samples(folder: Path, task: str) -> list[dict[str, Any]]:
    """What lm-eval has found out about each document of a task."""
    (file,) = folder.glob(f"**/samples_{task}_*.jsonl")
    found = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert len(found) == 20
    return sorted(found, key=lambda sample: int(sample["doc_id"]))


def windows(tokens: list[int], first: int, n_most: int) -> Iterator[tuple[list[int], int]]:
    """How lm-eval cuts a text after the token `first`: tokens, and of how many at their end the logprobs count."""
    end = min(n_most, len(tokens))
    yield [first, *tokens[:end]], end
    while (n := min(n_most, len(tokens) - end)) > 0:
        end += n
        yield tokens[end - n_most - 1 : end], n


@pytest.fixture(scope="module")
def engine(lead: LeadProcess, demo_pair: tuple[Path, Path]) -> Iterator[duo.Engine]:
    with duo.load(demo_pair[0], n_ctx=2048, profile=False) as engine:
        yield engine


# Batches, other clients' texts and what is in the cache change nothing.
@pytest.mark.parametrize(
    ("options", "n_most"),
    [(",num_concurrent=3 --batch_size 8", 48), (",tokenized_requests=False", 2048)],
)
def test_lm_eval_finds_the_log_likelihoods_of_the_engine(
    run: Run, lead: LeadProcess, engine: duo.Engine, tmp_path: Path, options: str, n_most: int
) -> None:
    """As exactly as if they were computed in the same batches. `n_most`: longer texts are cut."""
    (command,) = re.findall(r"^lm_eval (--model (?:.*\\\n)*.*)$", LEAD.read_text(encoding="utf-8"), re.M)
    command = command.replace("\\\n", "").replace("localhost:5555", f"127.0.0.1:{lead.port}")
    command = re.sub("max_length=[0-9]+", f"max_length={n_most}{options}", command)
    command = re.sub("--tasks [^ ]+", "--tasks duo_choices,duo_perplexity,duo_generation", command)
    shutil.copytree(TASKS, tmp_path, dirs_exist_ok=True)
    said = run("lm_eval", *shlex.split(command), "--include_path", ".", "--output_path", "out", "--log_samples")
    assert said.count("|duo_") == 3

    def tokens(text: str) -> list[int]:
        return engine.tokenize(text, add_bos=False)

    for sample in samples(tmp_path, "duo_choices"):
        for request, ((found, is_greedy),) in zip(sample["arguments"].values(), sample["resps"], strict=True):
            n = len(tokens(request["arg_0"]))
            scores = engine.score(tokens(request["arg_0"] + request["arg_1"]), logprobs=1)[n - 1 :]
            assert float(found) == pytest.approx(sum(one.logprob for one in scores), abs=1e-4)
            assert (is_greedy == "True") == all(one.token == one.top[0][0] for one in scores)
    for sample in samples(tmp_path, "duo_perplexity"):
        ((found,),) = sample["resps"]
        text = tokens(sample["doc"]["text"])
        cut = windows(text, engine.slot.target.bos, n_most - 2)
        expected = sum(one.logprob for window, n in cut for one in engine.score(window)[-n:])
        assert float(found) == pytest.approx(expected, abs=1e-4)
    for sample in samples(tmp_path, "duo_generation"):
        ((found,),) = sample["resps"]
        written = engine.generate(sample["arguments"]["gen_args_0"]["arg_0"], max_tokens=8, stop=[".", "\n"])
        assert found == written.text
