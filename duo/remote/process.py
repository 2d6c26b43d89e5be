"""DraftProcess: a remote draft in a separate process on this machine, restarted whenever it ends."""

import logging
import math
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from duo.config import ContextConfig, ModelConfig
from duo.engine.contexts import warm_up
from duo.engine.cores import CoresInUse
from duo.engine.translated import MORE_TOKENS, Translation
from duo.errors import DuoError, UsageError
from duo.http.listener import Listener
from duo.llama import child
from duo.llama.context import Context
from duo.llama.fingerprint import vocabulary_difference
from duo.llama.model import Model
from duo.models.fitting import DEVICE_CTX, fit
from duo.remote.connection import Admission, draft_app
from duo.remote.drafts import RemoteDrafts
from duo.remote.worker import DraftClient, hello

log = logging.getLogger("duo.process")

_TOKEN = "DUO_DRAFT_TOKEN"  # noqa: S105 - an environment variable
_LOOPBACK = "127.0.0.1"
DRAFT_BATCH = 128  # batch size of a remote draft, which sends a sign of life after each batch
_POLL_S = 0.1  # interval of checks on a process that is starting
_PATIENCE_S = 10.0  # before the text begins without the draft
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.25, 15.0  # before a restart
_STEADY_S = 30.0  # run time after which the pauses begin anew
_EXIT_S = 2.0  # for the process to exit by itself


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """The configuration of the process."""

    model: ModelConfig
    context: ContextConfig  # n_ctx: tokens beyond those of the lead's texts
    warmup: bool = True  # whether to warm up contexts
    vocabulary: Path | None = None  # file with the target's vocabulary, if it is another one
    url: str = ""  # of the lead


class DraftProcess:
    """Runs a draft in a separate process, inside `with`, and connects to it over loopback.

    A failure of that process, such as a lost RPC server, does not affect this one. When this process ends, for whatever
    reason, that one does too: it reads end-of-file on its standard input.
    """

    def __init__(self, name: str, plan: DraftPlan, drafts: RemoteDrafts) -> None:
        """Listen; `name` names the draft in log messages. Raises UsageError."""
        token = secrets.token_urlsafe()
        self._listener = Listener(draft_app(drafts, Admission(token, is_own=True), _LOOPBACK), _LOOPBACK, 0)
        plan = replace(plan, url=f"ws://{_LOOPBACK}:{self._listener.port}")
        self._name = name
        self._command = child.call("duo.remote.process", msgspec.json.encode(plan, enc_hook=str).decode())
        self._environment = os.environ | {_TOKEN: token}
        self._process: subprocess.Popen[str] | None = None
        self._drafts = drafts
        self._stop = threading.Event()
        self._is_settled = threading.Event()  # the draft has connected or failed
        self._said = ""  # why it has failed, as logged last, until it connects again
        self._thread = threading.Thread(target=self._run, name="duo-process")
        self._usage_error: str | None = None  # why it cannot run with these options

    def __enter__(self) -> "DraftProcess":
        self._listener.__enter__()
        return self

    def start(self, stop: threading.Event | None) -> None:
        """Start the process once; wait until it is ready, fails or `stop` is set. Raises UsageError for its options."""
        if self._thread.ident is not None:
            return
        self._thread.start()
        end = time.monotonic() + _PATIENCE_S
        while not (self._is_settled.wait(_POLL_S) or (stop and stop.is_set()) or time.monotonic() > end):
            pass
        if self._usage_error is not None:
            raise UsageError(f"{self._name}: {self._usage_error}")
        if not self._is_settled.is_set():
            log.info("%s is still loading: the target starts alone", self._name)

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        while self._thread.is_alive():  # it may be starting a process
            if (process := self._process) is not None and process.stdin is not None:
                with suppress(OSError):
                    process.stdin.close()
            self._thread.join(_EXIT_S)
            if process is not None:
                process.kill()
        self._listener.close()

    def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._stop.is_set():
            began = time.monotonic()
            status, reason = self._run_once()
            if self._stop.is_set():
                return
            if status == UsageError.exit_status and not self._is_settled.is_set():
                self._usage_error = reason
                self._is_settled.set()
                return
            if reason != self._said:
                log.warning("%s: %s; the target continues alone until the draft has restarted", self._name, reason)
            self._said = reason
            self._is_settled.set()
            pause_s = _FIRST_PAUSE_S if time.monotonic() - began > _STEADY_S else pause_s
            self._stop.wait(pause_s)
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)

    def _run_once(self) -> tuple[int, str]:
        """Run the process. Returns its exit status and why it ended."""
        failure, last, n_before = "", "", self._drafts.counts["joined"]
        try:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=self._environment,
                start_new_session=True,  # Ctrl-C is for this process, which then stops that one
            )
        except OSError as error:
            return 1, f"its process cannot be started: {error.strerror}"
        with process as self._process:
            for line in process.stdout or ():
                try:
                    level, text = msgspec.json.decode(line, type=tuple[int, str])  # see _Reporter
                except (msgspec.DecodeError, RecursionError):  # any other text
                    level, text = logging.DEBUG, (last := line.strip().removeprefix("duo: error: "))
                if self._drafts.counts["joined"] > n_before:
                    self._is_settled.set()
                    if self._said:
                        self._said = ""
                        log.info("%s: connected again", self._name)
                if level >= logging.ERROR:
                    failure = text
                elif level >= logging.INFO:
                    log.log(level, "%s", text)
                else:
                    log.debug("%s: %s", self._name, text)
        return process.returncode, failure or last or f"its process exited with status {process.returncode}"


# In the process


def main() -> None:
    """Draft for the lead in the plan, the first argument, until stdin is closed. Status 2: options cannot be used."""
    end_with_stdin()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, handlers=[_Reporter()])
    logging.getLogger("duo.llama").setLevel(logging.CRITICAL)
    try:
        plan = msgspec.json.decode(sys.argv[1], type=DraftPlan, dec_hook=lambda kind, value: kind(value))
        config, _ = fit(plan.model, None, replace(plan.context, n_ctx=DEVICE_CTX), name="draft")
        token = os.environ.pop(_TOKEN, "")
        with (
            closing(Model(config)) as model,
            draft_client(model, plan.url, token, plan.context, plan.vocabulary, warmup=plan.warmup) as client,
        ):
            client.run()
    except DuoError as error:
        log.error("%s", error)
        os._exit(error.exit_status)  # a lost RPC server may block threads forever


class _Reporter(logging.Handler):
    """Writes level and text of log messages as lines of JSON. An error is why the process ends."""

    def emit(self, record: logging.LogRecord) -> None:
        level = logging.DEBUG if record.name == "duo.remote" else record.levelno
        with suppress(OSError):  # nobody reads
            os.write(1, msgspec.json.encode((level, self.format(record))) + b"\n")


# Also of `duo back`


@contextmanager
def draft_client(
    model: Model,
    lead: str,
    token: str,
    config: ContextConfig,
    vocabulary: Path | None,
    *,
    n_ctx: int = 0,
    warmup: bool = True,
    cores: CoresInUse | None = None,
) -> Iterator[DraftClient]:
    """A client that drafts with `model` for texts of the lead, in contexts that have `config.n_ctx` tokens more.

    `vocabulary`: a file with the lead's; None: it is the draft's. `n_ctx`: of all contexts; 0: as the texts need.
    Raises ModelError, and UsageError if the model cannot draft.
    """
    if not model.can_roll_back:
        raise UsageError(f"{model.path.name} cannot roll back its cache, so it cannot draft")
    with ExitStack() as stack:
        target, translation = model, None
        if vocabulary is not None:
            file = ModelConfig(vocabulary, n_gpu_layers=0, devices=())
            target = stack.enter_context(closing(Model(file, vocabulary_only=True)))
            translation = Translation(target, model) if vocabulary_difference(target, model) else None

        def context(n_text: int) -> Context:
            n_draft = n_text if translation is None else math.ceil(MORE_TOKENS * n_text)
            made = Context(model, replace(config, n_ctx=n_ctx or min(model.n_ctx_train, n_draft + config.n_ctx)))
            if warmup:
                warm_up(made, model, 2)
            return made

        yield DraftClient(lead, hello(token, model, target), context, translation, cores)


def end_with_stdin() -> None:
    """From now on, exit at once when standard input is closed."""

    def wait_for_eof() -> None:
        while os.read(0, 4096):  # not sys.stdin, which Python could not close at exit
            pass
        os._exit(0)

    threading.Thread(target=wait_for_eof, name="duo-stdin", daemon=True).start()
