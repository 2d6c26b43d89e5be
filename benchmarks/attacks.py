"""Attacks on a lead: the longest time of /health, asked by another process, while one client does its worst."""

from __future__ import annotations

import base64
import json
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from os import sysconf
from pathlib import Path
from typing import Any

from benchmarks import servers
from benchmarks.contestants import Setup
from benchmarks.process import Child
from benchmarks.runner import Outcome, Scenario, note, verdict
from duo.bench.programs import last_line
from duo.bench.rounds import ParseError

_ATTACK_S, _PATIENCE_S = 5.0, 30.0
_MOST_S = 1.0
_N_FILES = 4096  # of this process, during an attack
_SIZE = 8_000_000  # bytes of the largest bodies

# Prints the seconds until each /health is answered, and the number of attempts that failed.
_OBSERVER = """
import http.client, sys, time
port, seconds, patience = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
end = time.monotonic() + seconds
while time.monotonic() < end:
    began, n_failed, is_answered = time.monotonic(), 0, False
    while not is_answered and time.monotonic() < began + patience:
        link = http.client.HTTPConnection("127.0.0.1", port, timeout=patience)
        try:
            link.request("GET", "/health")
            is_answered = link.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            time.sleep(0.05)
        n_failed += not is_answered
        link.close()
    print(time.monotonic() - began, n_failed, flush=True)
    time.sleep(0.05)
"""

Attack = Callable[[int, float], object]  # on a local port, until a time.monotonic()


@dataclass(frozen=True, slots=True)
class Result:
    """What the observer saw during an attack."""

    health_s: Sequence[float]
    failed: int
    cpu_s: float | None  # of the lead and of its processes that have ended


class Attacks(Scenario):
    """Runs each attack -r times, on a new lead. -n is the number of tokens of the texts that are not read."""

    def run(self, setup: Setup) -> Outcome:
        found, complete, only = dict[str, list[Result]](), False, tuple(setup.only) or ""
        wanted = {name: attack for name, attack in _attacks(setup.n_tokens).items() if name.startswith(only)}
        with suppress(KeyboardInterrupt):
            for _ in range(setup.n_rounds):
                for name, attack in wanted.items():
                    result = _attacked(setup, attack)
                    found.setdefault(name, []).append(result)
                    note(f"{name}: longest /health {max(result.health_s):.3f} s, {result.failed} failed")
            complete = True
        return _outcome(found, complete)


def _outcome(found: Mapping[str, Sequence[Result]], complete: bool) -> Outcome:
    """The table, each attack with the worst of its rounds, and the verdicts."""
    lines = ["| attack | longest /health, s | failed /health | CPU of the lead, s |", "|---|---|---|---|"]
    longest, failed = list[float](), list[int]()
    for name, results in found.items():
        longest.append(max(max(result.health_s) for result in results))
        failed.append(sum(result.failed for result in results))
        cpu = max((result.cpu_s for result in results if result.cpu_s is not None), default=None)
        lines.append(f"| {name} | {longest[-1]:.3f} | {failed[-1]} | {'' if cpu is None else f'{cpu:.1f}'} |")
    verdicts = [
        verdict("longest /health, s", max(longest), most=_MOST_S), verdict("failed /health", sum(failed), most=0)
    ] if found else []  # fmt: skip
    document = {name: [asdict(result) for result in results] for name, results in found.items()}
    return Outcome(lines, {"attacks": document, "complete": complete}, verdicts)


def _attacked(setup: Setup, attack: Attack) -> Result:
    """Attack a new lead. Raises ParseError if the lead exits."""
    with servers.lead(setup, "--api-key", "key", "--back-token", "token") as lead:
        observer = [sys.executable, "-I", "-S", "-c", _OBSERVER, lead.port, _ATTACK_S, _PATIENCE_S]
        before_s = _cpu_s(lead.pid)
        with Child(list(map(str, observer))) as observing:
            servers.wait_until(lambda: bool(observing.stdout), observing)
            with _many_files():
                attack(lead.port, time.monotonic() + _ATTACK_S)
            answers = [line.split() for line in observing.wait().stdout.splitlines()]
        after_s = _cpu_s(lead.pid)
        if lead.status is not None:
            raise ParseError(f"duo lead exited with {lead.status}: {last_line(lead.stderr)}")
    cpu_s = None if before_s is None or after_s is None else after_s - before_s
    return Result([float(seconds) for seconds, _ in answers], sum(int(n) for _, n in answers), cpu_s)


def _cpu_s(pid: int) -> float | None:
    """Processor time of a process and of its children that have ended; None without /proc."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / sysconf("SC_CLK_TCK")
    return None


@contextmanager
def _many_files() -> Iterator[None]:
    """Allow this process more connections; processes that were started before keep their limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _N_FILES if hard == resource.RLIM_INFINITY else min(_N_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _hold(port: int, end: float, n: int, data: bytes = b"", per_s: int = 0, window: int | None = None) -> None:
    """Keep `n` connections open that send `data` or are not waited for, and open further ones, `per_s`; read none."""
    links = list[socket.socket]()
    while (left_s := end - time.monotonic()) > 0:
        links.append(socket.socket())
        links[-1].settimeout(left_s if data else 0)
        if window is not None:
            links[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        with suppress(OSError):
            links[-1].connect(("127.0.0.1", port))
            links[-1].sendall(data)
        if len(links) >= n:
            time.sleep(1 / per_s if per_s else max(0.0, end - time.monotonic()))
    for link in links:
        link.close()


def _repeat(port: int, end: float, n: int, data: bytes, first: bytes = b"") -> None:
    """`n` connections that send `data`, after an answer to `first`, read until the end, and connect again."""

    def send() -> None:
        while (left_s := end - time.monotonic()) > 0:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), left_s) as link:
                link.sendall(first)
                if first and not link.recv(4096):
                    continue
                link.sendall(data)
                while link.recv(1 << 16) and time.monotonic() < end:
                    pass

    clients = [threading.Thread(target=send, daemon=True) for _ in range(n)]
    for client in clients:
        client.start()
    for client in clients:
        client.join(max(0.0, end - time.monotonic()))


def _request(path: str, body: bytes, length: str = "") -> bytes:
    headers = "Host: localhost\r\nAuthorization: Bearer key\r\nConnection: close\r\n"
    return f"POST {path} HTTP/1.1\r\n{headers}{length or f'Content-Length: {len(body)}'}\r\n\r\n".encode() + body


def _completion(**fields: object) -> bytes:
    return _request("/v1/completions", json.dumps({"prompt": "a", "max_tokens": 16, **fields}).encode())


def _attacks(n_tokens: int) -> dict[str, Attack]:
    get, upgrade = "GET /health HTTP/1.1\r\nHost: localhost\r\n", "Upgrade: websocket\r\nConnection: Upgrade\r\n"
    draft = "/v1/draft HTTP/1.1\r\nHost: localhost\r\n" + upgrade
    terms = f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {base64.b64encode(bytes(16)).decode()}\r\n\r\n"
    websocket = f"GET {draft}{terms}".encode()
    chunks = _request("/tokenize", b"1\r\nx\r\n" * 100_000 + b"0\r\n\r\n", "Transfer-Encoding: chunked")
    array: dict[str, Any] = {"type": "array", "items": {"type": "string"}, "minItems": 9999}
    nested: dict[str, Any] = {"type": "string"}
    for _ in range(12):
        nested = {"type": "array", "items": nested, "minItems": 99}
    parts = b",".join([b'{"type":"text"}'] * (_SIZE // 16))
    chat = b'{"max_tokens":1,"messages":[{"role":"user","content":[' + parts + b"]}]}"
    floats = b'{"prompt":[' + b",".join([b"0.5"] * (_SIZE // 4)) + b"]}"
    emoji = b'{"content":"' + "🙂".encode() * 2**18 + b'"}'
    unread = _completion(max_tokens=n_tokens, ignore_eos=True, stream=True)
    fragments = b"\x02\x81\0\0\0\0x" + b"\0\x81\0\0\0\0x" * 100_000
    arrays = _completion(json_schema={"properties": {f"p{i}": array for i in range(100)}})
    name = _completion(json_schema={"properties": {"x" * 5000: nested}})
    return {
        "600 POST handshakes": partial(_hold, n=600, per_s=100, data=f"POST {draft}Content-Length: 3\r\n\r\n".encode()),
        "600 half-open connections": partial(_hold, n=600, per_s=100, data=b"GET /health HT"),
        "600 WebSockets without Hello": partial(_hold, n=600, per_s=100, data=websocket),
        "1,500 connects at once": partial(_hold, n=1500),
        "one-byte chunks": partial(_repeat, n=1, data=chunks),
        "one-byte chunks, 50 connections": partial(_repeat, n=50, data=chunks),
        "100 header floods": partial(_repeat, n=100, data=get.encode() + b"a:\r\n" * 2**19),
        "10,000 pipelined requests": partial(_repeat, n=1, data=f"{get}\r\n".encode() * 10_000),
        "80 slow readers": partial(_hold, n=80, data=unread, window=4096),
        "100 WebSockets of fragments": partial(_repeat, n=100, data=fragments, first=websocket),
        "schema of 100 arrays": partial(_repeat, n=4, data=arrays),
        "schema with a name of 5,000 characters": partial(_repeat, n=4, data=name),
        "ambiguous grammar": partial(_repeat, n=4, data=_completion(grammar='root ::= ("a"? ){1000}')),
        "1 MiB of emoji": partial(_repeat, n=4, data=_request("/tokenize", emoji)),
        "8 MB of content parts": partial(_repeat, n=4, data=_request("/v1/chat/completions", chat)),
        "8 MB of floats": partial(_repeat, n=4, data=_request("/v1/completions", floats)),
    }
