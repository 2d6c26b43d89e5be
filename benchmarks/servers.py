"""Leads, remote drafts, RPC servers and llama-server as processes, their clients, and a link with a delay."""

from __future__ import annotations

import asyncio
import json
import re
import selectors
import shutil
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx

from benchmarks.contestants import N_CTX, Setup
from benchmarks.process import Child
from duo.bench.contestants import last_line
from duo.bench.rounds import Contestant, Job, ParseError, Run
from duo.engine.cores import allowed_cores

_LOOK_S = 0.02
_PATIENCE_S = 120.0


class Server(Child):
    """`duo lead` or `duo rpc-server` on a local port, with one thread."""

    def __init__(self, setup: Setup, command: str, *options: str | Path) -> None:
        self.port = free_port()
        line = [*setup.duo, command, "--port", str(self.port), "-t", "1", *map(str, options)]
        super().__init__(line, setup.config(str(self.port)), subprocess.PIPE)
        self.url = f"http://127.0.0.1:{self.port}"

    def metric(self, name: str) -> float:
        text = httpx.get(f"{self.url}/metrics").text
        return sum(map(float, re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)))

    def listens(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
            return True
        return False


def lead(setup: Setup, *options: str | Path, remembers: bool = False) -> Server:
    """Start a lead that runs until the scenario ends. If it `remembers`, it knows texts that are repeated."""
    memory = () if remembers else ("--memory", "off")
    found = setup.stack.enter_context(Server(setup, "lead", "-m", setup.target, *memory, *options))
    wait_until_healthy(found.url, found)
    return found


def rpc_server(setup: Setup) -> Server:
    """An RPC server on the CPU, in a single process so that signals reach it."""
    server = Server(setup, "rpc-server", "-d", "CPU", "--until-eof")
    wait_until(server.listens, server)
    return server


def back(setup: Setup, port: int, command: Sequence[str] = ()) -> Child:
    options = ["back", "-m", str(setup.draft), "--lead", f"ws://127.0.0.1:{port}", "-t", "1"]
    return Child([*(command or setup.duo), *options])


def pinned(setup: Setup) -> tuple[Setup, Setup]:
    """For processes on the first core and on the last one, where there is taskset."""
    if not shutil.which("taskset"):
        return setup, setup
    cores = sorted(allowed_cores())
    first, last = (replace(setup, duo=["taskset", "-c", str(core), *setup.duo]) for core in (cores[0], cores[-1]))
    return first, last


def wait_until(is_so: Callable[[], bool], process: Child) -> None:
    """Poll a condition. Raises ParseError if the process exits or the wait times out."""
    end = time.monotonic() + _PATIENCE_S
    while not is_so():
        if process.status is not None or time.monotonic() > end:
            raise ParseError(f"a process failed or timed out: {last_line(process.stderr)}")
        time.sleep(_LOOK_S)


def client(name: str, server: Server) -> Contestant:
    """Requests texts from a lead."""
    return Contestant(name, lambda job, _: stream(server.url, job.prompt, job.n_tokens))


def stream(url: str, prompt: str, n_tokens: int, **fields: object) -> Run:
    """Request a text of a lead or llama-server, and time it by the client's clock. Raises ParseError.

    Of llama-server, which does not say how many tokens each piece has, tokens_per_s is 0.
    """
    request = {"prompt": prompt, "max_tokens": n_tokens, "ignore_eos": True, "stream": True, "duo": True,
               "stream_options": {"include_usage": True}} | fields  # fmt: skip
    began, times, pieces, counts, n_seen = time.monotonic(), list[float](), list[str](), list[int](), 0
    for event in streamed(f"{url}/v1/completions", request):
        if "error" in event:
            raise ParseError(f"{url}: {event['error']}")
        if event.get("choices"):
            n_seen += event.get("duo", {"tokens": 0})["tokens"]
            if text := str(event["choices"][0]["text"]):
                times.append(time.monotonic())
                pieces.append(text)
                counts.append(n_seen)
        n_seen = (event.get("usage") or {}).get("completion_tokens", n_seen)
    if not times:
        raise ParseError(f"{url}: no text after {n_seen} tokens")
    rate = (counts[-1] - counts[0]) / (times[-1] - times[0]) if times[-1] > times[0] else 0.0
    gaps_s = [after - before for before, after in pairwise(times)]
    figures = {"first_token_s": times[0] - began, "last_token_s": times[-1] - began,
               "longest_gap_s": max(gaps_s, default=0.0)}  # fmt: skip
    return Run("".join(pieces).strip("\n"), n_seen, rate, figures)


def wait_until_healthy(url: str, process: Child) -> None:
    """Wait until the server has loaded its model. Raises ParseError if it exits or is too slow."""

    def is_healthy() -> bool:
        with suppress(httpx.HTTPError):
            return httpx.get(f"{url}/health", timeout=1.0).is_success
        return False

    wait_until(is_healthy, process)


def streamed(url: str, request: dict[str, Any]) -> Generator[dict[str, Any], None, None]:
    """The events of a streamed response. Raises httpx.HTTPError, or ValueError for invalid JSON."""
    with httpx.stream("POST", url, json=request, timeout=None) as answer:  # prefill may take long
        if answer.status_code != httpx.codes.OK:
            raise httpx.HTTPError(f"status {answer.status_code}: {answer.read().decode()[:200]}")
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                yield json.loads(line[6:])


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def llama_server(setup: Setup, threads: int, *more: str, name: str = "") -> Contestant:
    """A client of llama-server, without its prompt cache and checkpoints: each prompt is processed as a whole."""
    client = LlamaServer(setup, ["-t", str(threads), *more])
    return Contestant(name or f"llama-server -t {threads}" + (" and the draft" if more else ""), client)


@dataclass(slots=True)
class LlamaServer:
    """Requests streamed texts from a llama-server, which starts at the first one. Times are by the client's clock."""

    setup: Setup
    more: Sequence[str]  # options; {draft} is replaced by the draft
    url: str = ""

    def __call__(self, job: Job, _: threading.Event) -> Run:
        """See Contestant."""
        url = self.url = self.url or start_llama_server(self.setup, "-np", "1", *self.more)
        request = {"prompt": job.prompt, "n_predict": job.n_tokens, "temperature": job.temperature, "seed": 1,
                   "ignore_eos": not job.may_end, "cache_prompt": False, "stream": True}  # fmt: skip
        began, first, last, text, event = time.monotonic(), 0.0, 0.0, "", dict[str, Any]()
        try:
            for event in streamed(f"{url}/completion", request):
                last = time.monotonic()
                if piece := event.get("content"):
                    first, text = first or last, text + piece
        except httpx.HTTPError:
            self.url = ""  # it may have ended
            raise
        timings = event.get("timings")
        if timings is None or not text:
            raise ParseError(f"llama-server: no text or timings in {str(event)[:200]}")
        # To the last event: the token that ends a text is counted, and has no text.
        n, seconds = int(timings["predicted_n"]), last - first
        figures = {"prompt_tokens_per_s": timings["prompt_per_second"], "verified": timings.get("draft_n"),
                   "accepted": timings.get("draft_n_accepted"), "first_token_s": first - began}  # fmt: skip
        return Run(text.strip("\n"), n, (n - 1) / seconds if seconds else 0.0, figures)


def start_llama_server(setup: Setup, *more: str) -> str:
    """Start a llama-server on the CPU, which ends with the scenario; {draft} is replaced by the draft. Its URL."""
    options = ["-c", str(N_CTX), "-cram", "0", "-ctxcp", "0", "-dev", "none"]
    where = ["--host", "127.0.0.1", "--port", str(port := free_port())]
    command = [str(setup.program("llama-server")), "-m", str(setup.target), *options, *where]
    command += [str(setup.draft) if word == "{draft}" else word for word in more]
    process = setup.stack.enter_context(Child(command))
    wait_until_healthy(url := f"http://127.0.0.1:{port}", process)
    return url


class Relay:
    """A TCP proxy to a local port, with a delay in each direction, which may be changed at any time."""

    def __init__(self, port: int, delay_s: float) -> None:
        self._to, self.delay_s = port, delay_s
        # select() has a resolution of microseconds; epoll() rounds up to milliseconds.
        self._loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
        self._stop = asyncio.Event()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._listen(),))
        self.port = 0

    def __enter__(self) -> Relay:
        self._thread.start()
        self._listening.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._listening.set()
        await self._stop.wait()
        server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # let closed connections finish

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Python 3.11 prints the end of a cancelled task.
        with suppress(OSError, asyncio.CancelledError), closing(writer):
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self._to)
            with closing(to_writer):
                await asyncio.gather(self._pump(reader, to_writer), self._pump(to_reader, writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        at, pieces = 0.0, deque[bytes]()  # in order, also when the delay has become shorter
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                at = max(at, self._loop.time() + self.delay_s)
                pieces.append(data)
                self._loop.call_at(at, lambda: writer.write(pieces.popleft()))
        await asyncio.sleep(max(0.0, at - self._loop.time()))
        writer.close()
