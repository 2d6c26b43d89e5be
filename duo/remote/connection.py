"""The WebSocket that draft workers connect to: which may, and the lead's side of each connection."""

import asyncio
import hmac
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.types import ASGIApp
from starlette.websockets import WebSocket, WebSocketDisconnect

from duo.engine.async_draft import Drafted
from duo.engine.proposers import RunningText
from duo.errors import LinkError
from duo.http.guard import ROUTE, Guard, allowed_hosts
from duo.llama.fingerprint import Fingerprint, fingerprint_difference
from duo.remote import messages
from duo.remote.drafts import RemoteDraft, RemoteDrafts
from duo.remote.messages import (
    TRY_LATER,
    Begin,
    CandidateMessage,
    End,
    Hello,
    Message,
    PreparedToken,
    Refused,
    Times,
    Unable,
)
from duo.remote.remote_queue import RemoteQueue
from duo.speculation.types import Candidate, Outcome

log = logging.getLogger("duo.remote")

SPARE = 64  # messages that a worker may send beyond those that an order allows
_MAX_CREDIT = 16384  # messages that it may send before the next order
_MAX_CONFIDENCE = 50.0
_LEAST_S = 1e-6  # that a decode may take
_FINAL = ("version", "token", "vocabulary")  # reasons that a worker is told; it does not connect again


class ConnectionRejected(LinkError):
    """The connection ends; `reason` is the label under which this is counted."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Admission:
    """The conditions for a draft worker to connect."""

    token: str | None = ""  # that workers must send; empty: any; None: the lead accepts none
    hello_s: float = 5.0  # for a worker to send its first message
    on_own: Callable[[], None] | None = None  # called when the lead's own has joined, however many are connected

    def check(self, data: bytes, target: Fingerprint | None) -> Hello:
        """Decode and check a worker's first message; `target` is None while it loads. Raises ConnectionRejected."""
        if (version := messages.other_version(data)) is not None:
            older = "draft worker" if version < messages.VERSION else "lead"
            versions = f"it uses protocol {version}, the lead {messages.VERSION}"
            raise ConnectionRejected("version", f"{versions}: update duo on the machine of the {older}")
        hello = _decode(data)
        if not isinstance(hello, Hello):
            raise ConnectionRejected("garbage", "its first message is not a Hello")
        if self.token is None:
            raise ConnectionRejected("token", "the lead accepts no remote drafts: start it with a token for them")
        if not hmac.compare_digest(hello.token.encode(), self.token.encode()) and self.token:
            fault = "wrong" if hello.token else "missing"
            raise ConnectionRejected("token", f"the token is {fault}: use the one that the lead was started with")
        if target is None:
            raise ConnectionRejected("loading", "the model is still loading")
        if difference := fingerprint_difference(target, hello.vocabulary):
            remedy = "start it with --vocab and a GGUF file that has the target's vocabulary"
            raise ConnectionRejected("vocabulary", f"the draft does not match the target: {difference}: {remedy}")
        return hello


def draft_app(drafts: RemoteDrafts, admission: Admission, host: str) -> ASGIApp:
    """An application with only this route, at the address `host`."""
    return Guard(Starlette(routes=[draft_route(drafts, admission)]), allowed_hosts(host))


def draft_route(drafts: RemoteDrafts, admission: Admission) -> WebSocketRoute:
    """The route that draft workers connect to."""

    async def serve(socket: WebSocket) -> None:
        await socket.accept()
        client = socket.client
        peer = f"{client.host}:{client.port}" if client else "an unknown address"
        try:
            if (connection := await _greet(socket, drafts, admission, peer)) is not None:
                await connection.serve()
        except Exception:  # not the worker's fault, and the lead can continue
            log.exception("internal error while serving the remote draft %s", peer)
        with suppress(RuntimeError, WebSocketDisconnect, OSError):  # it may have disconnected
            await socket.close(TRY_LATER)

    return WebSocketRoute(ROUTE, serve)


async def _greet(socket: WebSocket, drafts: RemoteDrafts, admission: Admission, peer: str) -> "DraftConnection | None":
    """Wait for the Hello, and answer it; None if it is refused."""
    try:
        try:
            data = await asyncio.wait_for(socket.receive_bytes(), admission.hello_s)
        except (asyncio.TimeoutError, WebSocketDisconnect):
            raise ConnectionRejected("silence", "it sent no Hello") from None
        hello, wake = admission.check(data, drafts.target), asyncio.Event()
        model = messages.printable(hello.model)
        ring = partial(asyncio.get_running_loop().call_soon_threadsafe, wake.set)
        draft = RemoteDraft(drafts, f"{model} at {peer}", model, ring, hello.process)
        if not drafts.join(draft, always=admission.on_own is not None):
            raise ConnectionRejected("too many", "too many drafts are connected")
    except ConnectionRejected as rejection:
        drafts.count(f"refused: {rejection.reason}")
        # While the model is loading, workers keep trying.
        level = logging.DEBUG if rejection.reason == "loading" else logging.INFO
        log.log(level, "refused a draft at %s: %s", peer, rejection)
        if rejection.reason in _FINAL:
            with suppress(LinkError):
                await _send(socket, Refused(str(rejection)))
        return None
    log.info("draft %s connected", draft.name)
    if admission.on_own is not None:
        admission.on_own()
    return DraftConnection(socket, drafts, draft, wake)


def _decode(data: bytes) -> messages.FromDraft:
    try:
        return messages.from_draft(data)
    except LinkError as error:
        raise ConnectionRejected("garbage", str(error)) from None


def _candidate(made: CandidateMessage | PreparedToken) -> Candidate:
    confidence = min(max(made.confidence, 0.0), _MAX_CONFIDENCE)
    return Candidate(made.token or 0, confidence, alternatives=made.alternatives)


async def _send(socket: WebSocket, message: Message) -> None:
    """Raises LinkError."""
    try:
        await socket.send_bytes(messages.encode(message))
    except (WebSocketDisconnect, RuntimeError, OSError) as error:
        raise LinkError(f"cannot send: {type(error).__name__}") from None


@dataclass(slots=True)
class DraftConnection:
    """Gives orders to a draft worker, and takes its candidates."""

    socket: WebSocket
    drafts: RemoteDrafts
    draft: RemoteDraft
    wake: asyncio.Event  # set when there may be a new order
    _begun: tuple[RunningText, RemoteQueue] | None = None  # the text of the last Begin, until the End
    _serial: int = 0
    _credit: int = SPARE  # messages that it may send before the next order

    async def serve(self) -> None:
        """Serve the connection until it ends."""
        draft, reason = self.draft, "left"
        tasks = [asyncio.create_task(work) for work in (self._listen(), self._give_orders())]
        try:
            await asyncio.gather(*tasks)
        except ConnectionRejected as rejection:
            reason = rejection.reason
            log.warning("draft %s: closing the connection: %s", draft.name, rejection)
        except LinkError as error:  # it left, or does not read: uvicorn reports both alike
            log.debug("draft %s: %s", draft.name, error)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.drafts.leave(draft, reason)
            log.info("draft %s disconnected", draft.name)

    async def _listen(self) -> None:
        """Handle what the worker sends. Raises LinkError when it disconnects, or ConnectionRejected."""
        async for data in self.socket.iter_bytes():
            self.take(_decode(data))
        raise LinkError("it disconnected")

    def take(self, message: messages.FromDraft) -> None:
        """Handle a message of the worker. Raises ConnectionRejected."""
        draft = self.draft
        if isinstance(message, Hello):
            raise ConnectionRejected("garbage", "it sent a second Hello")
        draft.has_stalled = False
        if draft.waiting_since is not None:
            draft.waiting_since = time.perf_counter()
        is_current = not isinstance(message, Times) and message.serial == self._serial
        current = self._begun if is_current and draft.current is self._begun else None
        if isinstance(message, Times):
            draft.measured = {n: max(each_s, _LEAST_S) for n, each_s in message.seconds.items()}
            draft.estimates.aborts = message.aborts
        elif isinstance(message, CandidateMessage):
            if current is None or not self._offer(message, *current):
                self.drafts.count("stale")
        elif isinstance(message, Unable) and current is not None:
            draft.is_unable = True
            log.info("draft %s cannot draft for this text", draft.name)
        self._credit -= 1
        if self._credit < 0:
            raise ConnectionRejected("flood", "it sends more messages than it was asked for")

    def _offer(self, message: CandidateMessage, request: RunningText, queue: RemoteQueue) -> bool:
        """Put what a decode has made into the queue. False if it is of no use."""
        if (token := max(message.token or 0, *(each.token for each in message.prepared), 0)) >= request.n_vocab:
            raise ConnectionRejected("garbage", f"token {token} is not in the target's vocabulary")
        own = _candidate(message) if message.token is not None else None
        prepared = [(Outcome(each.wrong, each.right), each.position, _candidate(each)) for each in message.prepared]
        drafted = Drafted(message.n_tokens, max(message.seconds, _LEAST_S), message.n_sequences)
        late_s = 0.0 if self.draft.estimates.aborts else message.late_s
        taken = queue.offer(message.epoch, message.position, own, message.n_known, drafted, prepared, late_s)
        if not taken or not queue.may_draft:
            self.wake.set()  # there is an order to send
        return taken

    async def _give_orders(self) -> None:
        """Send an order whenever there is something new. Slow readers get fewer, larger messages. Raises LinkError."""
        await _send(self.socket, messages.Welcome(self.drafts.n_ctx))
        while True:
            if (message := self.next_message()) is not None:
                await _send(self.socket, message)
            await self.wake.wait()
            self.wake.clear()

    def next_message(self) -> Message | None:
        """The next order; None: the worker has to know nothing new."""
        draft, current, begun = self.draft, self.draft.current, self._begun
        if current is None:  # the text has ended, or another draft is in use
            draft.waiting_since = self._begun = None
            if begun is None:
                return None
            self._credit = max(self._credit, SPARE)
            return End(self._serial)
        request, queue = current
        serial, latency_s = self._serial + (current is not begun), draft.estimates.restart_s
        if (order := queue.order(serial, latency_s, is_set_up=draft.is_set_up)) is None:
            return None
        self._serial = order.serial
        # It may answer each order with n_ahead candidates and one Alive for each long decode.
        n_ahead = draft.estimates.n_ahead
        self._credit = min(self._credit + n_ahead + SPARE + len(order.tokens) // messages.LONG, _MAX_CREDIT)
        draft.waiting_since = (draft.waiting_since or time.perf_counter()) if order.may_draft else None
        if current is begun:
            return order
        self._begun = current
        options = (request.n_vocab, request.sampling, list(request.banned))
        return Begin(self._serial, *options, order.epoch, order.tokens, order.may_draft, order.ahead)
