"""The process of a draft worker: `duo back`, or OwnWorker, a child process that the lead starts and restarts."""

import logging
import math
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from duo.config import MAX_BRANCHES, ContextConfig, ModelConfig
from duo.engine.contexts import time_sequences, warm_up
from duo.engine.cores import CoresInUse
from duo.engine.translated import MORE_TOKENS, Translation
from duo.errors import DuoError, UsageError
from duo.http.listener import Listener
from duo.llama.build import CPU, child_command, end_with_stdin
from duo.llama.context import Context
from duo.llama.fingerprint import Fingerprint, vocabulary_difference
from duo.llama.model import Model
from duo.models.fitting import DEVICE_CTX, fit
from duo.remote import messages
from duo.remote.connection import Admission, draft_app
from duo.remote.drafts import RemoteDrafts
from duo.remote.worker import DraftWorker, Refusal

log = logging.getLogger("duo.process")

BATCH = 128  # batch size of a draft worker, which sends a sign of life before each batch
_TOKEN = "DUO_DRAFT_TOKEN"  # noqa: S105 - an environment variable
_LOOPBACK = "127.0.0.1"
_POLL_S = 0.1  # interval of checks on a process that is starting or ending
_PATIENCE_S = 10.0  # before the text begins without the draft
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.25, 15.0  # before a restart
_STEADY_S = 30.0  # run time after which the pauses begin anew


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """What a draft worker is to do."""

    lead: str  # its URL
    model: ModelConfig
    context: ContextConfig  # n_ctx: tokens beyond those of the lead's texts
    vocabulary: Path | None = None  # file with the lead's vocabulary; None: it is the draft's
    warmup: bool = True  # whether to warm up contexts
    n_ctx: int = 0  # of all contexts; 0: as the texts need
    n_texts: int = 1  # for which it drafts at once: a connection and a context for each


@contextmanager
def draft_workers(
    plan: WorkerPlan, token: str, load: Callable[[ModelConfig], Model] = Model, cores: CoresInUse | None = None
) -> Iterator[list[DraftWorker]]:
    """Workers with the draft of the plan, which `load` loads once; `token` is the lead's. For run_all().

    Raises DuoError; UsageError if the model cannot draft.
    """
    size = replace(plan.context, n_ctx=plan.n_texts * (plan.n_ctx or DEVICE_CTX), n_branches=MAX_BRANCHES)
    config, _ = fit(plan.model, None, size, name="draft")
    with ExitStack() as stack:
        target = model = stack.enter_context(closing(load(config)))
        if not model.can_roll_back:
            raise UsageError(f"{model.path.name} cannot roll back its cache, so it cannot draft")
        translation = None
        if plan.vocabulary is not None:
            file = ModelConfig(plan.vocabulary, n_gpu_layers=0, devices=())
            target = stack.enter_context(closing(Model(file, vocabulary_only=True)))
            translation = Translation(target, model) if vocabulary_difference(target, model) else None

        def context(n_text: int) -> Context:
            n_draft = n_text if translation is None else math.ceil(MORE_TOKENS * n_text)
            n_ctx = plan.n_ctx or min(model.n_ctx_train, n_draft + plan.context.n_ctx)
            n_branches = MAX_BRANCHES if translation is None and not model.is_remote else 0
            made = Context(model, replace(plan.context, n_ctx=n_ctx, n_branches=n_branches))
            if plan.warmup:
                warm_up(made, model, 2)
            return made

        name = messages.sendable(model.path.stem[:256])
        process = secrets.token_urlsafe(12)
        hello = messages.Hello(messages.VERSION, token, name, Fingerprint.of(target), process)
        times, aborts = (lambda made: time_sequences(made, model)), model.places == {CPU}
        turn, most_saved = threading.Lock(), 2**30 // plan.n_texts
        yield [
            DraftWorker(
                plan.lead, hello, context, translation, cores, times, aborts, turn=turn, level=level,
                most_saved=most_saved,
            )
            for level in (logging.INFO, *[logging.DEBUG] * (plan.n_texts - 1))
        ]  # fmt: skip


def run_all(workers: Sequence[DraftWorker]) -> None:
    """Run draft workers of one process until the first one ends, which begins. Raises what that raises."""
    first, *others = workers

    def run(worker: DraftWorker) -> None:
        first.is_ready.wait()  # if there is room for one context only, it is that of the first
        try:
            worker.run()
        except Refusal:  # the first one says it, too
            pass
        except DuoError as error:
            log.warning("the draft helps one text less at once: %s", error)

    threads = [threading.Thread(target=run, args=(worker,), name="duo-back") for worker in others]
    for thread in threads:
        thread.start()
    try:
        first.run()
    finally:
        for worker in others:
            worker.stop()
        first.is_ready.set()
        for thread in threads:
            thread.join()


class OwnWorker:
    """A draft worker of the lead's own: a child process, inside `with`, which connects over loopback.

    A failure of that process, such as a lost RPC server, does not affect this one, which restarts it. When this process
    ends, for whatever reason, that one does too: it reads end-of-file on its standard input.
    """

    def __init__(self, name: str, plan: WorkerPlan, drafts: RemoteDrafts) -> None:
        """Listen; `name` names the draft in log messages. Raises UsageError."""
        token = secrets.token_urlsafe()
        app = draft_app(drafts, Admission(token, on_own=self._joined), _LOOPBACK)
        self._listener = Listener(app, _LOOPBACK, 0)
        plan = replace(plan, lead=f"ws://{_LOOPBACK}:{self._listener.port}")
        self._name = name
        self._command = child_command("duo.remote.process", msgspec.json.encode(plan, enc_hook=os.fsencode).decode())
        self._environment = os.environ | {_TOKEN: token}
        self._process: subprocess.Popen[str] | None = None
        self._stop = threading.Event()
        self._is_settled = threading.Event()  # the worker has connected or failed
        self._said = ""  # why it has failed, as logged last, until it connects again
        self._usage_error = ""  # why it cannot run with these options
        self._thread = threading.Thread(target=self._run, name="duo-process")

    def __enter__(self) -> "OwnWorker":
        self._listener.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        while self._thread.is_alive():  # it may be starting a process
            if self._process is not None:
                self._process.kill()
            self._thread.join(_POLL_S)
        self._listener.close()

    def start(self, stop: threading.Event | None) -> None:
        """Start the process once; wait until it is ready, fails or `stop` is set. Raises UsageError for its options."""
        if self._thread.ident is not None:
            return
        self._thread.start()
        end = time.monotonic() + _PATIENCE_S
        while not (self._is_settled.wait(_POLL_S) or (stop and stop.is_set()) or time.monotonic() > end):
            pass
        if self._usage_error:
            raise UsageError(f"{self._name}: {self._usage_error}")
        if not self._is_settled.is_set():
            log.info("%s is still loading: the target starts alone", self._name)

    def _joined(self) -> None:
        self._is_settled.set()
        if self._said:
            self._said = ""
            log.info("%s: connected again", self._name)

    def _run(self) -> None:
        pause_s, began = 0.0, time.monotonic()
        while not self._stop.wait(pause_s):
            if not pause_s or time.monotonic() - began - pause_s > _STEADY_S:
                pause_s = _FIRST_PAUSE_S
            else:
                pause_s = min(2 * pause_s, _MAX_PAUSE_S)
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

    def _run_once(self) -> tuple[int, str]:
        """Run the process. Returns its exit status and why it ended."""
        failure = last = ""
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
                    level, text = msgspec.json.decode(line, type=tuple[int, str])  # of a log message
                except (msgspec.DecodeError, RecursionError):  # any other text
                    level, text = logging.DEBUG, (last := line.strip().removeprefix("duo: error: "))
                if level >= logging.ERROR:
                    failure = text
                elif level >= logging.INFO:
                    log.log(level, "%s", text)
                else:
                    log.debug("%s: %s", self._name, text)
        return process.returncode, failure or last or f"its process exited with status {process.returncode}"


# In the child process


def main() -> None:
    """Follow the plan in the first argument until stdin is closed; status 2: its options cannot be used."""
    end_with_stdin()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[_Reporter()])
    logging.getLogger("duo.llama").setLevel(logging.CRITICAL)
    try:
        plan = msgspec.json.decode(
            sys.argv[1], type=WorkerPlan, dec_hook=lambda _, value: Path(os.fsdecode(b64decode(value)))
        )
        with draft_workers(plan, os.environ.pop(_TOKEN, "")) as workers:
            run_all(workers)
    except DuoError as error:
        log.error("%s", error)
        os._exit(error.exit_status)  # a lost RPC server may block threads forever


class _Reporter(logging.Handler):
    """Writes level and text of log messages as lines of JSON. An error is why the process ends."""

    def emit(self, record: logging.LogRecord) -> None:
        level = logging.DEBUG if record.name == "duo.remote" else record.levelno
        with suppress(OSError):  # nobody reads
            os.write(1, msgspec.json.encode((level, self.format(record))) + b"\n")
