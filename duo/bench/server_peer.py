"""llama-server: one process for all texts, asked over HTTP, with its prompt cache off."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx

from duo.bench.contestant import Interrupted, Job, Run
from duo.bench.peers import ParseError
from duo.bench.process import Child

_LOOK_S = 0.05


class ServerPeer:
    """Starts with the first text; ends with the block."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        """`command` lacks the address."""
        self._name = name
        self._command = list(command)
        self._process: Child | None = None
        self._url = ""

    def __enter__(self) -> ServerPeer:
        """Nothing runs yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        if self._process is not None:
            self._process.end()

    def write(self, job: Job, stop: threading.Event) -> Run:
        """Ask for one text. Raises ParseError, Interrupted."""
        self._start(stop)
        request = {
            "prompt": job.prompt, "n_predict": job.n_tokens, "temperature": 0.0, "ignore_eos": True,
            "cache_prompt": False, "stream": True,
        }  # fmt: skip
        events: list[dict[str, Any]] = []
        began, first_s = time.perf_counter(), None
        done = threading.Event()
        threading.Thread(target=self._watch, args=(stop, done), name="duo-peer").start()
        try:
            with httpx.stream("POST", f"{self._url}/completion", json=request, timeout=None) as answer:  # noqa: S113 - see _watch
                if answer.status_code != httpx.codes.OK:
                    raise ParseError(f"{self._name}: status {answer.status_code}: {answer.read().decode()[:200]}")
                for line in answer.iter_lines():
                    if stop.is_set():
                        raise Interrupted
                    if line.startswith("data: {"):
                        first_s = first_s or time.perf_counter() - began
                        events.append(json.loads(line[6:]))
        except (httpx.HTTPError, ValueError) as error:
            if stop.is_set():
                raise Interrupted from None
            raise ParseError(f"{self._name}: {type(error).__name__}: {error}") from None
        finally:
            done.set()
        try:
            return parse_events(job, events, first_s)
        except (KeyError, TypeError, ValueError, ParseError) as error:
            raise ParseError(f"{self._name}: cannot read its answer: {error}") from None

    def _watch(self, stop: threading.Event, done: threading.Event) -> None:
        """A long prompt brings no line for a long time: to stop then, end the process."""
        assert self._process is not None
        while not done.wait(_LOOK_S):
            if stop.is_set():
                self._process.kill()
                return

    def _start(self, stop: threading.Event) -> None:
        if self._process is not None:
            return
        port = _free_port()
        self._url = f"http://127.0.0.1:{port}"
        command = [*self._command, "--host", "127.0.0.1", "--port", str(port)]
        try:
            self._process = Child(command)
        except OSError as error:
            raise ParseError(f"{self._name}: cannot run {command[0]}: {error.strerror}") from None
        while not self._is_ready():
            if stop.wait(_LOOK_S):
                raise Interrupted
            if self._process.has_ended:
                raise ParseError(f"{self._name} did not start: {self._process.last_words()}")

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"{self._url}/health", timeout=1.0).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False


def server_command(program: Path, job: Job, threads: int, draft_threads: int, n_max: int) -> list[str]:
    """The command for jobs with these models; it drafts if the job has a draft."""
    # Without prompt cache and checkpoints, every prompt is read anew.
    common = ["-c", str(job.n_ctx), "-np", "1", "-t", str(threads), "-cram", "0", "-ctxcp", "0"]
    command = [str(program), "-m", str(job.target), *common]
    if job.draft is None:
        return command
    drafting = ["--spec-type", "draft-simple", "--spec-draft-n-max", str(n_max), "--spec-draft-p-min", "0"]
    return [*command, "-md", str(job.draft), "-td", str(draft_threads), *drafting]


def parse_events(job: Job, events: Sequence[dict[str, Any]], first_s: float | None) -> Run:
    """Read the events of a streamed answer; the last one has the timings.

    Raises ParseError, KeyError or TypeError if they are not as this knows them.
    """
    timings = events[-1].get("timings") if events else None
    if timings is None:
        raise ParseError(f"no timings in: {str(events[-1:])[:200]}")
    tokens = int(timings["predicted_n"])
    if tokens < job.n_tokens:
        raise ParseError(f"it stopped after {tokens} of {job.n_tokens} tokens")
    return Run(
        tokens,
        timings["predicted_per_second"],
        "".join(event.get("content", "") for event in events).strip("\n"),
        prompt_tokens_per_s=timings["prompt_per_second"],
        first_token_s=first_s,
        n_verified=timings.get("draft_n"),
        n_accepted=timings.get("draft_n_accepted"),
    )


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
