"""Models on RPC servers: real servers, killed and stopped for real."""

from __future__ import annotations

import json
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from duo.llama.library import supports_rpc
from tests.command import SLOW_TARGET, assert_refused, duo
from tests.relay import Relay
from tests.serving import LeadProcess, RpcServer, Served, free_port

pytestmark = pytest.mark.skipif(not supports_rpc(), reason="this build has no RPC")

PROMPT = ("-p", "def fibonacci(n):\n    ", "-n", "48", "--ignore-eos", "--exact", "-t", "1")
LONG_PROMPT = ("-p", "one two three four five six seven eight nine ten " * 60, *PROMPT[2:])
IMPATIENT = ("--rpc-timeout", "2")
WEIGHTS = 20_000_000  # bytes that have passed while there are more of the model's to come

# Code for `before`: says when the target's first decode begins, and each later one.
TELL = """
import sys
from duo.llama.context import Context
tell = Context.decode
def telling(self, tokens, n_rows=1):
    sys.stderr.write(f"decoding {len(tokens)}\\n")
    return tell(self, tokens, n_rows)
Context.decode = telling
"""


@pytest.fixture(scope="module")
def server() -> Iterator[RpcServer]:
    with RpcServer() as first:
        yield first


@pytest.fixture(scope="module")
def other() -> Iterator[RpcServer]:
    with RpcServer() as second:
        yield second


@pytest.fixture(scope="module")
def third() -> Iterator[RpcServer]:
    with RpcServer() as last:
        yield last


@pytest.fixture(scope="module")
def plain(demo_pair: tuple[Path, Path]) -> dict[tuple[str, ...], bytes]:
    """What the target writes on this machine alone."""
    return {prompt: duo("-m", demo_pair[0], *prompt).stdout for prompt in (PROMPT, LONG_PROMPT)}


# The same text


@pytest.mark.parametrize("n_servers", [1, 2])
def test_a_target_on_servers_writes_the_same(
    demo_pair: tuple[Path, Path],
    server: RpcServer,
    other: RpcServer,
    plain: dict[tuple[str, ...], bytes],
    n_servers: int,
) -> None:
    names = ",".join([server.name, other.name][:n_servers])
    run = duo("-m", demo_pair[0], *PROMPT, "-v", "-ngl", "99", "-ts", "1,1", "--rpc", names)
    assert (run.status, run.stdout) == (0, plain[PROMPT])
    assert set(re.findall(r"RPC\d\[(\S+)\] model buffer size", run.stderr)) == set(names.split(","))


@pytest.mark.parametrize("where", ["the draft", "both", "the target, split", "the draft, split", "the target alone"])
def test_a_pair_on_servers_writes_the_same_and_the_draft_helps(
    demo_pair: tuple[Path, Path],
    server: RpcServer,
    other: RpcServer,
    third: RpcServer,
    plain: dict[tuple[str, ...], bytes],
    tmp_path: Path,
    where: str,
) -> None:
    target, draft = demo_pair
    options = {
        "the draft": ("--rpc", server.name),
        "both": ("--rpc", server.name, "--rpcd", other.name),
        "the target, split": ("--rpc", f"{server.name},{other.name}", "-ts", "1,1", "-ngl", "99", "--rpcd", third.name),
        "the draft, split": ("--rpc", f"{server.name},{other.name}", "-tsd", "1,1", "-ngld", "99"),
        "the target alone": ("--rpc", server.name, "--rpcd", "none", "-td", "1"),
    }[where]
    report = tmp_path / "run.json"
    common = ("-m", target, "-md", draft, *PROMPT, "--schedule", "async", "--json", report)
    run = duo(*common, *options, before=SLOW_TARGET)
    assert (run.status, run.stdout) == (0, plain[PROMPT])
    assert json.loads(report.read_text())["draft"]["accepted"] > 0
    assert run.warnings == []


# What becomes of the text when a server does not live


def _at_load(server: RpcServer, number: signal.Signals) -> Relay:
    return Relay(server.port, WEIGHTS, lambda: server.send_all(number))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("phase", ["loading", "prompt", "generating"])
def test_the_text_goes_on_when_the_drafts_server_does_not(
    demo_pair: tuple[Path, Path], plain: dict[tuple[str, ...], bytes], number: signal.Signals, phase: str
) -> None:
    target, draft = demo_pair
    prompt = LONG_PROMPT if phase == "prompt" else PROMPT
    options = ("-m", target, "-md", draft, *prompt, "--schedule", "async", *IMPATIENT, "--rpc")
    with RpcServer() as server:
        if phase == "loading":
            with _at_load(server, number) as relay, Served(*options, relay.name, before=SLOW_TARGET) as run:
                run.wait_for("duo: warning: the draft on .* (died|answered)")
                assert run.finish() == 0
        else:
            with Served(*options, server.name, before=SLOW_TARGET + TELL) as run:
                run.wait_for("decoding", n=1 if phase == "prompt" else 8)
                server.send_all(number)
                assert run.finish() == 0
        assert run.stdout == plain[prompt]
        assert not any("Traceback" in line or "error" in line for line in run.lines)


def test_a_draft_whose_server_comes_back_helps_again(
    demo_pair: tuple[Path, Path], tmp_path: Path, plain: dict[tuple[str, ...], bytes]
) -> None:
    target, draft = demo_pair
    port, report = free_port(), tmp_path / "run.json"
    options = (
        "-m",
        target,
        "-md",
        draft,
        *PROMPT,
        "--schedule",
        "async",
        "--rpc",
        f"127.0.0.1:{port}",
        "--json",
        report,
    )
    # It is not there at first; the text does not end before it is.
    wait = SLOW_TARGET.replace("0.05", "0.3")
    with Served(*options, before=wait) as run:
        run.wait_for("cannot be reached.*the target goes on alone")
        with RpcServer(port=port):
            run.wait_for("it is back")
            assert run.finish() == 0
    assert run.stdout == plain[PROMPT]
    assert json.loads(report.read_text())["draft"]["drafted"] > 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("phase", ["loading", "prompt", "generating"])
def test_the_text_so_far_is_kept_when_the_targets_server_does_not_live(
    demo_pair: tuple[Path, Path], plain: dict[tuple[str, ...], bytes], number: signal.Signals, phase: str
) -> None:
    target, draft = demo_pair
    prompt = LONG_PROMPT if phase == "prompt" else PROMPT
    options = ("-m", target, "-md", draft, *prompt, *IMPATIENT, "-ngl", "99", "--rpcd", "none", "--rpc")
    with RpcServer() as server:
        if phase == "loading":
            with _at_load(server, number) as relay, Served(*options, relay.name) as run:
                status, name = run.finish(), relay.name
        else:
            with Served(*options, server.name, before=SLOW_TARGET + TELL) as run:
                run.wait_for("decoding", n=3 if phase == "prompt" else 16)
                server.send_all(number)
                status, name = run.finish(), server.name
    said = [line for line in run.lines if not line.startswith("decoding")]
    assert status == 1
    assert plain[prompt].startswith(run.stdout)
    assert bool(run.stdout) == (phase == "generating")
    assert len(said) == 1, said
    why = "has died" if number is signal.SIGKILL else "has not answered for 2 s"
    assert said[0].startswith(f"duo: error: the RPC server {name} {why}")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_clients_of_a_lead_hear_that_its_target_is_lost(demo_pair: tuple[Path, Path], number: signal.Signals) -> None:
    with RpcServer() as server, LeadProcess(demo_pair[0], "--rpc", server.name, *IMPATIENT) as lead:
        text = lead.stream("Once upon a time", 400)
        text.wait_for_pieces(3)
        server.send_all(number)
        with pytest.raises(AssertionError, match="RPC server"):
            text.finish()
        assert lead.finish() == 1
        assert any(f"duo: error: the RPC server {server.name}" in line for line in lead.lines)


def test_a_lead_has_its_draft_on_a_server(demo_pair: tuple[Path, Path], server: RpcServer) -> None:
    target, draft = demo_pair
    options = ("-md", draft, "--schedule", "async", "--exact", "--rpc", server.name, "--api-key", "secret")
    headers = {"Authorization": "Bearer secret"}
    with LeadProcess(target, *options, before=SLOW_TARGET) as lead:
        answer = lead.post("/v1/completions", headers, prompt="Once upon a time", max_tokens=40, ignore_eos=True)
        lead.send(signal.SIGTERM)
        assert lead.finish() == 0
    plain = duo("-m", target, "-p", "Once upon a time", "-n", "40", "--ignore-eos", "--exact", "-t", "1")
    assert answer.json()["choices"][0]["text"] == plain.text
    assert answer.json()["timings"]["draft_n_accepted"] > 0


def test_the_drafts_process_ends_with_the_one_that_started_it(demo_pair: tuple[Path, Path]) -> None:
    target, draft = demo_pair
    with RpcServer("-v") as server:
        with Served("-m", target, "-md", draft, *PROMPT, "--rpc", server.name, before=SLOW_TARGET + TELL) as run:
            run.wait_for("decoding", n=4)
            n_gone = sum("Client connection closed" in line for line in server.lines)
            run.send(signal.SIGKILL)
            # Its connection is the one that is still open.
            server.wait_for("Client connection closed", n=n_gone + 1)
        assert duo("-m", target, "-n", "2", "-p", "a", "--rpc", server.name).status == 0


# What cannot be


def test_a_server_that_is_not_there(demo_pair: tuple[Path, Path]) -> None:
    run = duo("-m", demo_pair[0], *PROMPT, "--rpc", f"127.0.0.1:{free_port()}")
    assert_refused(run, "cannot be reached", "refused")


def test_a_host_that_is_not_there(demo_pair: tuple[Path, Path]) -> None:
    run = duo("-m", demo_pair[0], *PROMPT, "--rpc", "no-such-host.invalid:50052")
    assert_refused(run, "no-such-host.invalid:50052 cannot be reached")


def test_a_name_that_is_none(demo_pair: tuple[Path, Path]) -> None:
    assert_refused(duo("-m", demo_pair[0], *PROMPT, "--rpc", "a..b:1"), "a..b:1 cannot be reached")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("-dev", "GPU99"), "no device GPU99 (there are: RPC0)"),
        (("-ts", ",".join(["1"] * 99)), "-ts has 99 parts"),
        (("-sm", "none", "-mg", "5"), "there is no device 5"),
    ],
)
def test_devices_that_there_are_not(
    demo_pair: tuple[Path, Path], server: RpcServer, options: tuple[str, ...], why: str
) -> None:
    assert_refused(duo("-m", demo_pair[0], *PROMPT, "--rpc", server.name, "-ngl", "99", *options), why, status=2)


def test_a_devices_memory_is_not_waited_for_for_ever(demo_pair: tuple[Path, Path]) -> None:
    with RpcServer() as server:
        n_bytes = 3 * (1 + 8 + 24) + 1 + 8  # three greetings and how many devices there are: then it is asked for that
        with Relay(server.port, n_bytes + 1, lambda: server.send_all(signal.SIGSTOP)) as relay:
            run = duo("-m", demo_pair[0], *PROMPT, "-ngl", "auto", "--rpc", relay.name, *IMPATIENT)
    assert_refused(run, f"the RPC server {relay.name} has not answered for 2 s")


@pytest.mark.parametrize("whose", ["target", "draft"])
def test_a_server_that_hangs_from_the_start(
    demo_pair: tuple[Path, Path], plain: dict[tuple[str, ...], bytes], whose: str
) -> None:
    target, draft = demo_pair
    more = () if whose == "target" else ("-md", draft)
    with RpcServer() as server:
        server.send_all(signal.SIGSTOP)
        run = duo("-m", target, *more, *PROMPT, "--rpc", server.name, *IMPATIENT)
    if whose == "target":
        assert_refused(run, f"the RPC server {server.name} does not answer")
    else:
        assert (run.status, run.stdout) == (0, plain[PROMPT])
        assert any("does not answer" in line and "goes on alone" in line for line in run.warnings)


def test_without_drafting_the_drafts_server_is_not_the_targets(demo_pair: tuple[Path, Path]) -> None:
    target, draft = demo_pair
    run = duo("-m", target, "-md", draft, *PROMPT, "--rpc", f"127.0.0.1:{free_port()}", "--draft", "0")
    assert (run.status, run.warnings) == (0, [])


def test_a_run_that_was_suspended_goes_on(
    demo_pair: tuple[Path, Path], server: RpcServer, plain: dict[tuple[str, ...], bytes]
) -> None:
    with Served("-m", demo_pair[0], *PROMPT, "--rpc", server.name, *IMPATIENT, before=SLOW_TARGET + TELL) as run:
        for n in (8, 16):
            run.wait_for("decoding", n=n)
            server.send_all(signal.SIGSTOP)
            time.sleep(0.5)  # it waits for an answer by now
            run.send(signal.SIGSTOP)
            time.sleep(2.5)
            run.send(signal.SIGCONT)
            time.sleep(0.5)  # it has looked how long it has been waiting
            server.send_all(signal.SIGCONT)
        assert run.finish() == 0
    assert run.stdout == plain[PROMPT]


def test_another_server_at_that_port(demo_pair: tuple[Path, Path]) -> None:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        run = duo("-m", demo_pair[0], *PROMPT, "--rpc", f"127.0.0.1:{web.server_port}", *IMPATIENT)
        web.shutdown()
    assert_refused(run, f"127.0.0.1:{web.server_port}", "no RPC server")


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0" * 64])
def test_whatever_else_answers(demo_pair: tuple[Path, Path], answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            connection.sendall(answer)
            connection.close()

        threading.Thread(target=serve, daemon=True).start()
        name = f"127.0.0.1:{listening.getsockname()[1]}"
        run = duo("-m", demo_pair[0], *PROMPT, "--rpc", name)
    assert_refused(run, name)


def test_a_server_with_another_client(demo_pair: tuple[Path, Path]) -> None:
    slowly = SLOW_TARGET.replace("0.05", "0.3") + TELL
    with RpcServer() as server, Served("-m", demo_pair[0], *PROMPT, "--rpc", server.name, before=slowly) as first:
        first.wait_for("decoding", n=3)
        second = duo("-m", demo_pair[0], *PROMPT, "--rpc", server.name)
        assert_refused(second, f"{server.name} does not answer", "another client")
        assert first.finish() == 0


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--rpc", "localhost"), "not written host:port"),
        (("--rpc", "localhost:x"), "not written host:port"),
        (("--rpc", "a:1,,b:2"), "a name is missing"),
        (("--rpcd", "localhost:1"), "--rpcd without a draft"),
        (("-ts", "1,x"), "not written N,N"),
        (("--rpc", "[::1]:5"), "not written host:port"),
        (("--rpc", "a:1", "-ngl", "0"), "0 layers"),
        (("--rpc", "a:1", "-dev", "none"), "-dev none"),
        (("--rpc", "localhost:1,127.0.0.1:1"), "is named twice"),
    ],
)
def test_what_cannot_be_meant_is_refused(demo_pair: tuple[Path, Path], options: tuple[str, ...], why: str) -> None:
    assert_refused(duo("-m", demo_pair[0], *PROMPT, *options), why, status=2)


def test_one_server_cannot_serve_both(demo_pair: tuple[Path, Path]) -> None:
    target, draft = demo_pair
    run = duo("-m", target, "-md", draft, *PROMPT, "--rpc", "a:1,b:2", "--rpcd", "b:2")
    assert_refused(run, "b:2 is named twice", status=2)


def test_classic_rejection_needs_a_draft_in_the_process(demo_pair: tuple[Path, Path]) -> None:
    target, draft = demo_pair
    run = duo("-m", target, "-md", draft, *PROMPT, "--rpc", "a:1", "--temp", "1", "--verify", "rejection")
    assert_refused(run, "--verify rejection", status=2)
