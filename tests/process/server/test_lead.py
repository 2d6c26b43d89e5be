"""duo lead as a process: from loading to its end, what it shows, and what many requests leave behind."""

import resource
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serving import PATIENCE_S, LeadProcess, assert_error, free_port, wait_until

CONTEXT = ("-c", "512")
LONG: dict[str, Any] = {"prompt": "a", "max_tokens": -1, "ignore_eos": True}


def get(lead: LeadProcess, path: str, **headers: str) -> httpx.Response:
    return httpx.get(lead.url + path, headers=headers, timeout=PATIENCE_S)


# From loading to its end


def test_a_lead_that_is_loading_answers_503_until_ctrl_c(demo_pair: tuple[Path, Path]) -> None:
    port, endless = free_port(), "from tests.child import endless_loading; endless_loading()"
    with LeadProcess(demo_pair[1], "--port", str(port), before=endless, wait=False) as lead:
        lead.port = port
        wait_until(lambda: listens(port))
        for answer in (get(lead, "/health"), lead.post("/v1/completions", prompt="a")):
            assert_error(answer, 503, "loading")
            assert answer.headers["Retry-After"] == "1"
        assert get(lead, "/metrics").status_code == 200
        lead.wait_for("^loading begins$")  # before, Ctrl-C ends the command as it ends any other Python program
        lead.send(signal.SIGINT)
        assert lead.finish() == 130
        assert lead.lines == ["loading begins", "duo: interrupted while loading"]


def listens(port: int) -> bool:
    with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def test_a_signal_ends_streams_and_waiting_requests(demo_pair: tuple[Path, Path]) -> None:
    with LeadProcess(demo_pair[1], *CONTEXT) as lead, ThreadPoolExecutor() as pool:
        with httpx.stream("POST", f"{lead.url}/v1/completions", json=LONG | {"stream": True}) as response:
            lines = response.iter_lines()
            assert "choices" in next(lines)
            waiting = pool.submit(lead.post, "/v1/completions", **LONG)
            wait_until(lambda: lead.metric("llamacpp:requests_deferred") == 1)
            lead.send(signal.SIGINT)
            *_, told, done = (line for line in lines if line)
            assert ('"message":"the server is stopping","type":"unavailable_error"' in told, done) == (
                True,
                "data: [DONE]",
            )
        assert_error(waiting.result(), 503, "^the server is stopping$")
        assert lead.finish() == 0


def test_the_options_of_a_server(demo_pair: tuple[Path, Path]) -> None:
    names = ("--cors-origin", "https://chat.example", "--allowed-host", "lead.example", "--alias", "demo")
    with LeadProcess(demo_pair[1], *CONTEXT, *names, "-n", "3", env={"LLAMA_API_KEY": "sk-one,sk-two"}) as lead:
        assert lead.lines[-4:] == [
            "duo: model demo; context 512 tokens; temperature 0 by default",
            f"duo: OpenAI base URL {lead.url}/v1, API key required; to chat: duo chat {lead.url} --api-key KEY",
            f"duo: page {lead.url}/",
            f"duo: listening on {lead.url} (Ctrl-C to stop)",
        ]
        assert get(lead, "/v1/models", Authorization="Bearer sk-none").status_code == 401
        asked = {"x-api-key": "sk-two", "Host": "lead.example", "Origin": "https://chat.example"}
        answer = lead.post("/v1/completions", asked, prompt="The cat", ignore_eos=True)
        assert answer.headers["access-control-allow-origin"] == "https://chat.example"
        assert (answer.json()["model"], answer.json()["usage"]["completion_tokens"]) == ("demo", 3)


# What it shows

PROMPT, TEXT = "quetzal zanzibar", "marmalade xylophone"


def ask_everything(lead: LeadProcess) -> None:
    """Whatever could be a reason to show prompt or text."""
    grammar = f'root ::= "{TEXT}"'
    assert lead.write(PROMPT, 32, grammar=grammar) == TEXT
    assert lead.stream(PROMPT, 32, grammar=grammar).finish() == TEXT
    messages = [{"role": role, "content": said} for role, said in (("user", PROMPT), ("assistant", TEXT))]
    lead.post("/v1/chat/completions", messages=messages, max_tokens=8)
    lead.post("/tokenize", content=PROMPT)
    wrongs: list[dict[str, Any]] = [
        {"model": PROMPT, "temperature": -1},
        {"stop": [TEXT], "temperature": TEXT},
        {"prompt": PROMPT * 500},
        {"grammar": f'root ::= "{TEXT}" none'},
        {"json_schema": {"type": TEXT}},
    ]
    for wrong in wrongs:
        assert lead.post("/v1/completions", **{"prompt": PROMPT, **wrong}).status_code == 400
    get(lead, f"/{PROMPT}".replace(" ", "%20"))


@pytest.mark.parametrize("options", [("--color", "always"), ("--print", "accepted")])
def test_prompts_and_texts_are_shown_only_where_asked_for(
    demo_pair: tuple[Path, Path], options: tuple[str, str], tmp_path: Path
) -> None:
    log = tmp_path / "duo.log"
    with LeadProcess(demo_pair[1], *CONTEXT, *options, "-v", "--log-file", log) as lead:
        ask_everything(lead)
        lead.send(signal.SIGTERM)
        assert lead.finish() == 0
    said, shown = "\n".join(lead.lines) + log.read_text(encoding="utf-8"), lead.stdout.decode()
    assert "tokens: " in said
    assert not any(word in said for word in (*PROMPT.split(), *TEXT.split()))
    assert PROMPT not in shown
    assert shown.startswith(TEXT * 2) if "--print" in options else not shown


# What many requests leave behind


def ask_ten(lead: LeadProcess, client: httpx.Client) -> None:
    """One of each kind."""
    short = {"prompt": "The cat", "max_tokens": 1}
    for path, fields, status in (
        ("/v1/completions", short, 200),
        ("/v1/completions", short | {"stream": True}, 200),
        ("/v1/completions", short | {"temperature": 1, "json_schema": {"type": "object"}}, 200),
        ("/v1/completions", short | {"grammar": "root ::= none"}, 400),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}, 200),
        ("/tokenize", {"content": "a b c"}, 200),
        ("/v1/nothing", {}, 404),
    ):
        assert client.post(lead.url + path, json=fields).status_code == status
    assert client.get(f"{lead.url}/metrics").status_code == 200
    with client.stream("POST", f"{lead.url}/v1/completions", json=LONG | {"stream": True}) as response:
        next(response.iter_lines())  # and leaves


def test_many_requests_leave_nothing_behind(lead: LeadProcess) -> None:
    with httpx.Client(timeout=PATIENCE_S) as client:
        for _ in range(5):
            ask_ten(lead, client)
        memory, n_before = lead.facts.memory_info().rss, lead.facts.num_fds()
        for _ in range(10):
            ask_ten(lead, client)
        assert lead.facts.memory_info().rss - memory < 4e6
    wait_until(lambda: lead.facts.num_fds() <= n_before)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits another process")
def test_more_connections_than_files(lead: LeadProcess) -> None:
    limit = resource.prlimit(lead.process.pid, resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        stack.callback(resource.prlimit, lead.process.pid, resource.RLIMIT_NOFILE, limit)
        n = lead.facts.num_fds() + 20
        resource.prlimit(lead.process.pid, resource.RLIMIT_NOFILE, (n, limit[1]))
        for _ in range(100):
            stack.enter_context(socket.create_connection(("127.0.0.1", lead.port), PATIENCE_S))
        wait_until(lambda: lead.facts.num_fds() >= n)
    assert lead.write("The cat", 1)
