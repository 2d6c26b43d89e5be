"""DraftProcess: a remote draft in a process of its own on this machine, started again whenever it ends."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from duo.config import ContextConfig, ModelConfig
from duo.errors import DuoError, UsageError
from duo.link.client import JOINED, DraftClient, hello
from duo.link.guard import LOOPBACK_NAMES, Rules
from duo.link.listener import Listener
from duo.link.remote_draft import Admission
from duo.link.remote_drafts import RemoteDrafts
from duo.link.route import draft_app
from duo.llama.context import Context
from duo.llama.model import Model
from duo.models.fitting import DEVICE_CTX, LAYERS_PLACED, fit

log = logging.getLogger("duo.process")

_TOKEN = "DUO_DRAFT_TOKEN"  # noqa: S105 - a variable of the environment

_LOOPBACK = "127.0.0.1"
DRAFT_BATCH = 128  # tokens that a remote draft decodes at once: the lead hears of it after each batch
_LOOK_S = 0.1  # between two looks at a process that is starting
_PATIENCE_S = 10.0  # before the text begins without it
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 15.0  # before it is started again
_STEADY_S = 30.0  # it lived so long that the next end is a new story
_LEAVE_S = 2.0  # to end by itself


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """All that the process has to know."""

    url: str  # of the lead
    model: ModelConfig
    context: ContextConfig  # n_ctx: tokens beyond those of the lead's texts


class DraftProcess:
    """Runs a draft in a process of its own from `with` to its end, which speaks the link over this machine's loopback.

    What ends that process, such as a dying RPC server, ends only that. It also ends when this one does, however that
    comes about: its standard input ends then.
    """

    def __init__(self, name: str, model: ModelConfig, context: ContextConfig, drafts: RemoteDrafts) -> None:
        """Listen; `name` says what it is, in warnings. Raises UsageError."""
        token = secrets.token_urlsafe()
        rules = Rules(hosts=frozenset(LOOPBACK_NAMES))
        self._listener = Listener(draft_app(drafts, Admission(token, is_own=True), rules), _LOOPBACK, 0)
        plan = DraftPlan(f"ws://{_LOOPBACK}:{self._listener.port}", model, context)
        self._name = name
        # Unlike `python -m` this does not run what happens to lie in the current folder.
        code = "import sys; sys.path = [path for path in sys.path if path]; from duo.link.process import main; main()"
        self._command = [sys.executable, "-c", code, msgspec.json.encode(plan, enc_hook=str).decode()]
        self._environment = os.environ | {_TOKEN: token}
        self._process: subprocess.Popen[str] | None = None
        self._stop = threading.Event()
        self._settled = threading.Event()
        self._has_joined = False
        self.is_started = False
        self._told: str | None = None  # what it ended of, as the user knows it
        self._thread = threading.Thread(target=self._run, name="duo-process")
        self.usage_error: str | None = None  # why it cannot be as it is asked for, if it never was

    def __enter__(self) -> DraftProcess:
        """Listen; the process is not started yet."""
        self._listener.__enter__()
        return self

    def start(self, stop: threading.Event | None) -> None:
        """Start it, and wait until it is ready or has failed; not for long, and not once `stop` is set.

        Raises UsageError if it cannot be as it is asked for.
        """
        self.is_started = True
        self._thread.start()
        end = time.monotonic() + _PATIENCE_S
        while not self._settled.wait(_LOOK_S) and time.monotonic() < end and not (stop and stop.is_set()):
            pass
        if self.usage_error is not None:
            raise UsageError(f"{self._name}: {self.usage_error}")
        if not self._settled.is_set():
            log.info("%s is still loading: the target begins alone", self._name)

    def __exit__(self, *_: object) -> None:
        """End it."""
        self._stop.set()
        while self._thread.is_alive():  # it may be starting one just now
            if (process := self._process) is not None:
                _end(process)
            self._thread.join(_LEAVE_S)
        self._listener.close()

    def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._stop.is_set():
            began = time.monotonic()
            status, last = self._run_once()
            if self._stop.is_set():
                return
            if status == UsageError.exit_status and not self._has_joined:
                self.usage_error = last
                self._settled.set()
                return
            pause_s = _FIRST_PAUSE_S if time.monotonic() - began > _STEADY_S else pause_s
            if last != self._told:
                log.warning("%s: %s; the target goes on alone while it is tried again", self._name, last)
                self._told = last
            self._settled.set()
            self._stop.wait(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _run_once(self) -> tuple[int, str]:
        """Run it to its end. Returns its exit status and the last thing it said."""
        last = ""
        try:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env=self._environment,
                start_new_session=True,  # Ctrl-C is for this process, which ends that one
            )
        except OSError as error:
            return 1, f"its process cannot be started: {error.strerror}"
        with process as self._process:
            assert process.stderr is not None
            for line in process.stderr:
                last = line.strip().removeprefix("duo: error: ")
                self._hear(last)
        return process.returncode, last or f"it ended with status {process.returncode}"

    def _hear(self, line: str) -> None:
        log.debug("%s: %s", self._name, line)
        if line.startswith(LAYERS_PLACED):
            log.info("%s", line)
        if line.startswith(JOINED):
            if self._told is not None:
                log.info("%s: it is back", self._name)
            self._told = None
            self._has_joined = True
            self._settled.set()


def _end(process: subprocess.Popen[str]) -> None:
    """Let it end by itself, or make it."""
    with suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()
    try:
        process.wait(_LEAVE_S)
    except subprocess.TimeoutExpired:
        process.kill()


# In the process


def main() -> None:
    """Draft for the lead that the first argument names, until standard input ends; every line is one of the lead's log.

    Exit status 2: it cannot be as it is asked for.
    """
    end_with_stdin()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("duo.llama").setLevel(logging.CRITICAL)
    try:
        plan = msgspec.json.decode(sys.argv[1], type=DraftPlan, dec_hook=_decode)
        run_draft(plan, os.environ.pop(_TOKEN, ""))
    except DuoError as error:
        log.error("%s", error)
        os._exit(error.exit_status)  # a lost RPC server may hold threads for ever


def run_draft(plan: DraftPlan, token: str) -> None:
    """Load a draft and work for a lead, whenever it is there. Raises DuoError."""
    config, _ = fit(plan.model, None, replace(plan.context, n_ctx=DEVICE_CTX), name="draft")
    with closing(Model(config)) as model:
        if not model.can_roll_back:
            raise UsageError(f"{model.path.name} cannot roll back its cache, so it cannot draft")
        client = DraftClient(plan.url, hello(token, model), lambda n_ctx: draft_context(model, plan.context, n_ctx))
        client.run()


def draft_context(model: Model, config: ContextConfig, n_ctx: int) -> Context:
    """A context for texts of so many tokens, as far as the draft was trained for that."""
    return Context(model, replace(config, n_ctx=min(model.n_ctx_train, n_ctx + config.n_ctx)))


def _decode(kind: type, value: Any) -> Any:
    return Path(value) if kind is Path else value


def end_with_stdin() -> None:
    """From now on, end at once when standard input does: nothing here is worth keeping then."""
    threading.Thread(target=_wait_for_eof, name="duo-stdin", daemon=True).start()


def _wait_for_eof() -> None:
    while os.read(0, 4096):  # not sys.stdin, which Python could not close at its own end
        pass
    os._exit(0)
