"""A lead's side of the link over a fake target, and clients of it that say what a test wants."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from duo.http.guard import ROUTE
from duo.http.listener import Listener
from duo.llama.fingerprint import Fingerprint
from duo.remote import messages
from duo.remote.connection import Admission, draft_app
from duo.remote.drafts import RemoteDrafts
from duo.remote.messages import Begin, CandidateMessage, Hello, Message, PreparedToken, Welcome
from duo.speculation.draft_estimates import DraftEstimates
from tests.fakes import N_VOCAB, Eager, FakeContext, text_after
from tests.unit.engine.helpers import PROMPT, Writing, make_ending, run, until

TOKEN = "secret"
N = 24  # tokens of a text
N_AHEAD = 6
TEXT = text_after(PROMPT, N)


FINGERPRINT = Fingerprint(vocab_type=2, n_vocab=N_VOCAB, bos=1, eos=-1, hashes=(b"of all",))
ADMISSION = Admission(TOKEN, hello_s=60.0)


class EagerDrafts(RemoteDrafts):
    """They draft as much as they may, and all that is ready is verified."""

    def new_estimates(self, model: str) -> DraftEstimates:
        return Eager(4, N_AHEAD, target=self.costs, remote=True, name=model)


class Stage:
    """A lead's drafts, and a text that waits before its first decode until it may go on."""

    writing: Writing  # the last text

    def __init__(self, admission: Admission = ADMISSION) -> None:
        self.drafts = EagerDrafts()
        self.drafts.target, self.drafts.n_ctx = FINGERPRINT, 1000
        self.app = draft_app(self.drafts, admission, "127.0.0.1")
        self._listener = Listener(self.app, "127.0.0.1", 0)
        self.port = self._listener.port
        self.target = FakeContext(n_batch=64)
        self._may_go_on = threading.Event()
        self._tokens: list[int] = []
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Stage:
        self._listener.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.finish()
        finally:
            self._listener.close()  # or its thread would outlive a test that fails

    @property
    def connections(self) -> list[Any]:
        """The listener's, uvicorn's protocols."""
        return list(self._listener._server.server_state.connections)

    def worker(self) -> ScriptedWorker:
        return ScriptedWorker(self.port)

    def begin(self, during: Callable[[], object] = lambda: None) -> None:
        """Begin a text; `during` is called in each decode, as soon as it may go on."""

        def decode() -> None:
            assert self._may_go_on.wait(60)
            during()

        self.target.rollback(0)
        self.target.during = decode
        self._may_go_on.clear()
        self._tokens.clear()
        self.writing = Writing(self.target, None, make_ending(N), remote=self.drafts)
        self._thread = threading.Thread(target=lambda: self._tokens.extend(run(self.writing)), daemon=True)
        self._thread.start()

    @property
    def n_accepted(self) -> int:
        """Candidates accepted in the last text."""
        return sum(step.n_accepted for step in self.writing.metrics.steps)

    def finish(self) -> None:
        """Let the text be written; it is the target's own."""
        self._may_go_on.set()
        if self._thread is not None:
            self._thread.join(60)
            assert not self._thread.is_alive()
            self._thread = None
            assert self._tokens == TEXT

    def count(self, what: str) -> int:
        return self.drafts.counts[what]

    def wait_for(self, what: str, n: int) -> None:
        """Until it has happened `n` times."""
        until(lambda: self.count(what) >= n)
        assert self.count(what) == n


class ScriptedWorker:
    """A client that says to a lead what it is told to say."""

    def __init__(self, port: int) -> None:
        self._url = f"ws://127.0.0.1:{port}{ROUTE}"

    def __enter__(self) -> ScriptedWorker:
        connecting = connect(self._url, compression=None, proxy=None, ping_interval=None, max_queue=None)
        self._socket = connecting.__enter__()
        self.peer = "{}:{}".format(*self._socket.local_address)
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        self._socket.close()

    def say(self, *said: Message | bytes) -> None:
        with suppress(ConnectionClosed):
            for one in said:
                self._socket.send(messages.encode(one) if isinstance(one, Message) else one)

    def hear(self) -> messages.FromLead:
        return messages.from_lead(self._socket.recv(60))

    def join(self) -> ScriptedWorker:
        self.say(hello())
        assert isinstance(self.hear(), Welcome)
        return self

    def begin(self) -> Begin:
        """The next Begin."""
        while not isinstance(message := self.hear(), Begin):
            pass
        return message

    def close_code(self) -> int | None:
        """Of the connection, which the lead closes."""
        with suppress(ConnectionClosed):
            while True:
                self.hear()
        return self._socket.close_code


def hello(**lies: Any) -> Hello:
    """A hello that nothing is wrong with but the `lies`."""
    right = {"version": messages.VERSION, "token": TOKEN, "model": "back", "vocabulary": FINGERPRINT}
    return Hello(**cast(Any, right | lies))


def candidate(begin: Begin, **lies: Any) -> CandidateMessage:
    """A candidate that may be wrong and nothing else, but for the `lies`."""
    n = len(begin.tokens)
    right = {"serial": begin.serial, "epoch": begin.epoch, "n_known": n, "position": n, "token": 7}
    return CandidateMessage(**cast(Any, right | {"confidence": 9.0, "n_tokens": 1, "seconds": 0.001} | lies))


def prepared(begin: Begin, **lies: Any) -> CandidateMessage:
    """A candidate, and what follows if 8 comes instead of it, which may be wrong and nothing else."""
    n = len(begin.tokens)
    right = {"wrong": n, "right": 8, "position": n + 1, "token": 9, "confidence": 9.0}
    return candidate(begin, n_sequences=2, prepared=(PreparedToken(**cast(Any, right | lies)),))


def frame(opcode: int, data: bytes) -> bytes:
    """One whole frame, masked with zeros."""
    length = bytes([0x80 | len(data)]) if len(data) < 126 else struct.pack(">BH", 0xFE, len(data))
    return bytes([0x80 | opcode]) + length + bytes(4) + data
