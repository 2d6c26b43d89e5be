"""`duo batch`: a file of requests is answered once each, also after a kill or Ctrl-C, whatever is wrong with some."""

import json
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from anthropic.types import Message
from openai.types import Completion
from openai.types.chat import ChatCompletion
from openai.types.responses import Response
from pydantic import BaseModel

from duo.server.batch import AnswerFile, read_requests
from tests.command import SLOW_TARGET, Argument, assert_refused, duo
from tests.process.cli.terminal import Terminal
from tests.serving import Served, wait_until

WORDS = ("Once", "Twice", "Thrice", "Never", "Often", "Seldom", "Soon", "Later")
PROMPTS = [f"{word} upon a time, there was a" for word in WORDS]
WRITTEN = {"max_tokens": 32, "ignore_eos": True, "temperature": 0}


def line(custom_id: str, url: str, **body: Any) -> str:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body})


def completion(i: int) -> str:
    return line(f"request-{i}", "/v1/completions", prompt=PROMPTS[i % len(PROMPTS)], **WRITTEN)


def written(path: Path, lines: Iterable[str]) -> Path:
    path.write_text("".join(f"{one}\n" for one in lines), encoding="utf-8")
    return path


def answered(path: Path) -> list[dict[str, Any]]:
    """The answers, in OpenAI's form."""
    found = [json.loads(one) for one in path.read_text(encoding="utf-8").splitlines()]
    for one in found:
        assert [*one] == ["id", "custom_id", "response", "error"]
        assert [*one["response"]] == ["status_code", "request_id", "body"]
        assert one["id"].startswith("batch_req_")
        assert one["error"] is None
    assert len({one["id"] for one in found}) == len(found)
    return found


@pytest.fixture
def started(demo_pair: tuple[Path, Path], tmp_path: Path) -> Callable[..., list[Argument]]:
    """The arguments that answer requests.jsonl in answers.jsonl."""

    def arguments(*more: Argument) -> list[Argument]:
        paths: list[Argument] = [tmp_path / "requests.jsonl", "-o", tmp_path / "answers.jsonl"]
        return ["batch", *paths, "-m", demo_pair[1], "-t", "1", "-c", "512", "--no-profile", *more]

    return arguments


ASKED: dict[str, tuple[type[BaseModel], dict[str, Any]]] = {
    "/v1/chat/completions": (ChatCompletion, {"messages": [{"role": "user", "content": "Name a fruit."}]}),
    "/v1/completions": (Completion, {"prompt": "Once upon a time", "max_tokens": 8, "n": 2}),
    "/v1/responses": (Response, {"input": "Name a fruit.", "max_output_tokens": 8}),
    "/v1/messages": (Message, {"messages": [{"role": "user", "content": "Name a fruit."}], "max_tokens": 8}),
}


def test_each_api_answers_and_what_is_wrong_is_told(started: Callable[..., list[Argument]], tmp_path: Path) -> None:
    lines = [line(url, url, **body) for url, (_, body) in ASKED.items()]
    lines += [
        line("own", "/completion", prompt="Once", n_predict=2),
        line("tokens", "/tokenize", content="Once"),
        "not JSON",
        line("/v1/responses", "/v1/completions", prompt="Once"),
        "",
        json.dumps({"custom_id": "get", "method": "GET", "url": "/v1/models", "body": {}}),
        line("unknown", "/v1/nothing"),
        line("embeddings", "/v1/embeddings", input="Once"),
        line("number", "/v1/completions", prompt="Once", max_tokens="many"),
        line("stream", "/v1/completions", prompt="Once", max_tokens=2, stream=True),
        line("named", "/v1/completions", model="gpt-5", prompt="Once", max_tokens=2),
    ]
    requests = written(tmp_path / "requests.jsonl", lines)
    run = duo(*started("-n", "4"))
    answers = {one["custom_id"]: one["response"] for one in answered(tmp_path / "answers.jsonl")}
    for url, (kind, _) in ASKED.items():
        assert answers[url]["status_code"] == 200
        kind.model_validate(answers[url]["body"], strict=False)
    assert answers["/v1/chat/completions"]["body"]["usage"]["completion_tokens"] == 4, "-n is the default"
    assert answers["own"]["body"]["tokens_predicted"] == 2
    assert answers["tokens"]["body"]["tokens"]
    statuses = {"unknown": 404, "embeddings": 501, "number": 400, "stream": 400}
    for name, status in statuses.items():
        assert answers[name]["status_code"] == status
        assert {*answers[name]["body"]["error"]} == {"message", "type", "param", "code"}
    assert len(answers) == len(ASKED) + 7
    said = [text.removeprefix("duo: warning: ") for text in run.stderr.splitlines()]
    assert [text.split(": ")[0] for text in said[:3]] == [f"{requests}:{n}" for n in (7, 8, 10)]
    assert "malformed" in said[0]
    assert "an earlier line has the custom_id '/v1/responses', too" in said[1]
    assert "`$.method`" in said[2]
    assert said[3].startswith("'named': unknown model 'gpt-5'")
    summary = f"duo: {tmp_path}/answers.jsonl: 11 of 11 requests are answered"
    assert said[4:] == [f"{summary}, 4 of them by errors; lines left out: 3"]
    assert run.status == 1
    # All have an answer: no model is loaded.
    again = duo(*started(), before="import duo.cli.load; del duo.cli.load.load_engine\n")
    assert (again.status, again.stderr.splitlines()[3:]) == (1, said[4:])


def test_a_batch_is_killed_stopped_and_continued(started: Callable[..., list[Argument]], tmp_path: Path) -> None:
    n, output = 36, tmp_path / "answers.jsonl"
    written(tmp_path / "requests.jsonl", map(completion, range(n)))

    def n_lines() -> int:
        return output.read_bytes().count(b"\n") if output.exists() else 0

    slow = started("--lookup", "off")  # so that it is killed and stopped in the middle
    with Served(*slow, before=SLOW_TARGET) as batch:
        wait_until(lambda: n_lines() >= 5)
        batch.send(signal.SIGSTOP)
        refused = duo(*started())
        batch.send(signal.SIGKILL)
        assert batch.finish() == -signal.SIGKILL
    assert_refused(refused, f"-o {output}: another duo batch is writing it", status=2)
    killed = output.read_bytes()
    n_killed = n_lines()
    assert 5 <= n_killed < n
    output.write_bytes(killed + b'{"id":"batch_req_0123","custom_id":"request-35","resp')
    with Served(*slow, before=SLOW_TARGET) as batch:
        wait_until(lambda: n_lines() >= n_killed + 4)
        batch.send(signal.SIGINT)
        assert batch.finish() == 130
    stopped = output.read_bytes()
    assert stopped.startswith(killed)
    assert batch.lines == [
        f"duo: {output}: {n_lines()} of {n} requests are answered, 0 of them by errors; "
        "to go on, give the same command again"
    ]
    output.write_bytes(stopped.removesuffix(b"\n"))  # as some editors leave a file
    # The last two after a power failure.
    for more, kept in ((b"\n", b"\n"), (b" \n\n", b" \n\n"), (b"\0\0", b""), (b'{"id":"batch_req_0\0\0', b"")):
        output.write_bytes(stopped + more)
        with AnswerFile(output) as again:
            assert len(again.statuses) == stopped.count(b"\n")
        assert output.read_bytes() == stopped + kept
    output.write_bytes(stopped.removesuffix(b"\n"))  # as some editors leave a file
    run = duo(*started())
    assert run.status == 0, run.stderr
    assert run.stderr == f"duo: {output}: {n} of {n} requests are answered, 0 of them by errors\n"
    assert output.read_bytes().startswith(stopped)
    answers = answered(output)
    assert sorted(one["custom_id"] for one in answers) == sorted(f"request-{i}" for i in range(n))
    assert {one["response"]["status_code"] for one in answers} == {200}
    assert {one["response"]["body"]["usage"]["completion_tokens"] for one in answers} == {WRITTEN["max_tokens"]}


@pytest.mark.parametrize(("options", "shares"), [((), True), (("-np", "1"), False), (("--exact",), False)])
def test_requests_share_a_batch(
    started: Callable[..., list[Argument]], tmp_path: Path, options: tuple[str, ...], shares: bool
) -> None:
    lines = [line(text, "/v1/completions", prompt=text, duo={}, **WRITTEN) for text in PROMPTS]
    written(tmp_path / "requests.jsonl", lines)
    run = duo(*started(*options))
    assert run.status == 0
    assert ("texts are written one at a time: with --exact" in run.stderr) == ("--exact" in options)
    together = [one["response"]["body"]["duo"]["texts"] for one in answered(tmp_path / "answers.jsonl")]
    assert len(together) == len(PROMPTS)
    if shares:
        assert 2 < max(together) <= 4
    else:
        assert together == [1] * len(PROMPTS)


def test_the_bar_shows_the_time_that_is_left(started: Callable[..., list[Argument]], tmp_path: Path) -> None:
    written(tmp_path / "requests.jsonl", map(completion, range(12)))
    soon = "from duo.cli.terminal import console; console._DELAY_S = 0\n"
    with Terminal(*started(), before=soon) as terminal:
        terminal.read_until(b"answers")
        terminal.read_until(b"0:00:")
        assert terminal.finish() == 0


def test_files_that_are_no_batch(started: Callable[..., list[Argument]], tmp_path: Path) -> None:
    requests, output = tmp_path / "requests.jsonl", tmp_path / "answers.jsonl"
    assert_refused(duo(*started()), f"file {requests}: No such file or directory")
    assert_refused(duo("batch", "-m", "x"), "duo batch REQUESTS -o FILE -m MODEL", status=2)
    written(requests, [completion(1)])
    assert_refused(duo("batch", requests, "-o", output), "no model: add -m FILE", status=2)
    assert_refused(duo("batch", requests, "-o", requests, "-m", "x"), "these are the requests", status=2)
    assert_refused(duo("batch", requests, "-o", tmp_path, "-m", "x"), "this is no file", status=2)
    for text in ("my diary\n", "my diary", '{"id":"batch_req_1"}\n', '{"id":1}'):
        output.write_text(text)
        assert_refused(duo(*started()), f"-o {output}: line 1 is no answer of a batch: name another file", status=2)
        assert output.read_text() == text


def test_an_answer_that_cannot_be_written_names_the_file(
    started: Callable[..., list[Argument]], tmp_path: Path
) -> None:
    written(tmp_path / "requests.jsonl", map(completion, range(12)))
    full = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    run = duo(*started(), before=f"{full}resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))\n")
    output = tmp_path / "answers.jsonl"
    n = output.read_bytes().count(b"\n")
    assert 0 < n < 12
    assert run.stderr.splitlines() == [
        f"duo: {output}: {n} of 12 requests are answered, 0 of them by errors; to go on, give the same command again",
        f"duo: error: -o {output}: File too large",
    ]
    assert run.status == 1


def test_urls_that_nothing_answers(started: Callable[..., list[Argument]], tmp_path: Path) -> None:
    urls = ["/v1/completions/", "/v1/nothing", "/v1/completions\n", "//other:x/", "/v1/completions"]
    written(tmp_path / "requests.jsonl", [line(url, url, prompt="Hello", max_tokens=1) for url in urls])
    for _ in range(2):  # and the file of answers is still one
        run = duo(*started())
        assert run.status == 1
        assert "Traceback" not in run.stderr
        assert run.stderr.count(": left out") == 2, run.stderr
        found = {one["custom_id"]: one["response"]["status_code"] for one in answered(tmp_path / "answers.jsonl")}
        assert found == {"/v1/completions/": 404, "/v1/nothing": 404, "/v1/completions": 200}


@pytest.mark.parametrize(("status", "error"), [(503, "ApiError(503, 'no room')"), (500, "ApiError(500, 'no memory')")])
def test_what_the_machine_failed_to_do_is_asked_again(
    status: int, error: str, started: Callable[..., list[Argument]], tmp_path: Path
) -> None:
    """And if all fail, the others are not tried."""
    written(tmp_path / "requests.jsonl", [completion(i) for i in range(40)])
    fails = (
        "from duo.server import generation_service as service\n"
        "from duo.errors import ApiError\n"
        "n = 0\n"
        "def fail(*_, **__):\n"
        "    global n\n"
        "    n += 1\n"
        "    assert n < 20\n"
        f"    raise {error}\n"
        "service.GenerationService.begin = fail\n"
    )
    run = duo(*started(), before=fails)
    assert run.status == 1
    assert f"no answer ({status}), but next time: " in run.stderr
    assert "internal error" not in run.stderr
    assert "0 of 40 requests are answered" in run.stderr
    assert duo(*started()).status == 0
    assert len(answered(tmp_path / "answers.jsonl")) == 40


@pytest.mark.parametrize(
    ("paths", "said"),
    [
        (("asked.jsonl", "-o", "-"), "-o: name a file, from which a batch can go on, not '-'"),
        (("asked.jsonl", "-o", ""), "-o: name a file"),
        (("-", "-o", "answers.jsonl"), "the requests: name a file"),
        (("", "-o", "answers.jsonl"), "the requests: name a file"),
    ],
)
def test_a_batch_has_files(paths: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "asked.jsonl", [completion(0)])
    run = duo("batch", *paths, "-m", "none.gguf")
    assert_refused(run, status=2)
    assert said in run.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["asked.jsonl"]


def test_a_batch_without_a_model_leaves_no_file(tmp_path: Path) -> None:
    requests, output = written(tmp_path / "asked.jsonl", [completion(0)]), tmp_path / "answers.jsonl"
    for is_there in (False, True):
        assert_refused(duo("batch", requests, "-o", output, "-m", tmp_path / "none.gguf"))
        assert output.exists() == is_there
        output.touch()


def test_a_file_of_wrong_lines_is_told_of_a_right_one(tmp_path: Path) -> None:
    requests = written(tmp_path / "asked.jsonl", ["no JSON", line("a", "//host/path"), line("b", "v1/completions")])
    run = duo("batch", requests, "-o", tmp_path / "answers.jsonl", "-m", "none.gguf")
    assert run.status == 1
    said = run.stderr.splitlines()
    assert all("url must be a path, such as /v1/chat/completions: left out" in one for one in said[1:3])
    prefix, example = said[3].split("such as ")
    assert prefix == "duo: no line is a request, "
    assert not read_requests(written(tmp_path / "right.jsonl", [example]))[1]
