"""The WebSocket that remote drafts connect to: the lead's side of each connection."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import dataclass, field

from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.types import ASGIApp
from starlette.websockets import WebSocket, WebSocketDisconnect

from duo.engine.draft import DraftRequest
from duo.engine.queue import Drafted
from duo.errors import LinkError
from duo.link import messages
from duo.link.admission import Admission, ConnectionRejected, TargetVocabulary, decode
from duo.link.guard import Guard, allowed_hosts
from duo.link.messages import ROUTE, TRY_LATER, Begin, End, GuessMessage, Hello, Message, Refused, Text, Unable
from duo.link.remote_drafts import RemoteDraft, RemoteDrafts
from duo.link.remote_queue import RemoteQueue
from duo.spec.types import Guess

log = logging.getLogger("duo.link")

SPARE = 64  # messages that a draft may send beyond those that an order allows
_MAX_CREDIT = 16384  # messages that it may send before the next order
_MAX_CONFIDENCE = 50.0


def draft_app(drafts: RemoteDrafts, admission: Admission, host: str) -> ASGIApp:
    """An application with only this route, at the address `host`."""
    return Guard(Starlette(routes=[draft_route(drafts, admission)]), allowed_hosts(host))


def draft_route(drafts: RemoteDrafts, admission: Admission) -> WebSocketRoute:
    """The route that remote drafts connect to."""

    async def serve(socket: WebSocket) -> None:
        await socket.accept()
        client = socket.client
        name = f"{client.host}:{client.port}" if client else "an unknown address"
        try:
            await _serve(socket, drafts, admission, name)
        except LinkError:  # it has disconnected
            return
        except Exception:  # not the draft's fault, and the lead can continue
            log.exception("internal error while serving the remote draft %s", name)
        with suppress(RuntimeError, WebSocketDisconnect, OSError):  # it may have disconnected
            await socket.close(TRY_LATER)

    return WebSocketRoute(ROUTE, serve)


async def _serve(socket: WebSocket, drafts: RemoteDrafts, admission: Admission, peer: str) -> None:
    """Serve a connection until it ends. Raises LinkError if a refusal cannot be sent."""
    try:
        connection = await _greet(socket, drafts, admission, peer)
    except ConnectionRejected as rejection:
        drafts.count(f"refused: {rejection.reason}")
        # While the model is loading, drafts keep trying.
        level = logging.DEBUG if rejection.reason == "loading" else logging.INFO
        log.log(level, "refused a draft at %s: %s", peer, rejection)
        if rejection.is_final:
            await _send(socket, Refused(str(rejection)))
        return
    draft, reason = connection.draft, "left"
    tasks = [asyncio.create_task(work) for work in (connection.listen(), connection.give_orders())]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    except ConnectionRejected as rejection:
        reason = rejection.reason
        log.warning("draft %s: closing the connection: %s", draft.name, rejection)
    except LinkError:
        reason = "does not read"
    except WebSocketDisconnect:
        pass
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        drafts.leave(draft, reason)
        log.info("draft %s disconnected", draft.name)


async def _greet(socket: WebSocket, drafts: RemoteDrafts, admission: Admission, peer: str) -> DraftConnection:
    """Wait for the Hello, and answer it. Raises ConnectionRejected, or LinkError."""
    try:
        data = await asyncio.wait_for(socket.receive_bytes(), admission.hello_s)
    except asyncio.TimeoutError:
        raise ConnectionRejected("silence", f"it sent no Hello within {admission.hello_s:g} s") from None
    except WebSocketDisconnect:
        raise ConnectionRejected("silence", "it disconnected without a Hello") from None
    hello, target = admission.check(data, drafts.target)
    wake, loop = asyncio.Event(), asyncio.get_running_loop()

    def ring() -> None:
        with suppress(RuntimeError):  # the server has stopped
            loop.call_soon_threadsafe(wake.set)

    model = messages.printable(hello.model)
    draft = RemoteDraft(drafts, f"{model} at {peer}", model, ring)
    if not drafts.join(draft, always=admission.is_own):
        raise ConnectionRejected("too many", "too many drafts are connected")
    log.info("draft %s connected", draft.name)
    return DraftConnection(socket, drafts, draft, target, wake)


async def _send(socket: WebSocket, message: Message) -> None:
    """Raises LinkError."""
    try:
        await socket.send_bytes(messages.encode(message))
    except (WebSocketDisconnect, RuntimeError, OSError) as error:
        raise LinkError(f"cannot send: {type(error).__name__}") from None


@dataclass(slots=True)
class DraftConnection:
    """Gives orders to a draft, and takes its candidates."""

    socket: WebSocket
    drafts: RemoteDrafts
    draft: RemoteDraft
    target: TargetVocabulary
    wake: asyncio.Event  # set when there may be a new order
    _begun: tuple[DraftRequest, RemoteQueue] | None = None  # the text of the last Begin
    _serial: int = 0
    _n_sent: int = 0  # accepted tokens that were sent
    _unsent: list[int] = field(default_factory=list)  # accepted tokens after those
    _sent: tuple[int, bool] | None = None  # epoch and may_draft as sent; None: no text has begun
    _credit: int = SPARE  # messages that it may send before the next order

    async def listen(self) -> None:
        """Handle what the draft sends. Raises ConnectionRejected, and WebSocketDisconnect at the end."""
        while True:
            message, draft = decode(await self.socket.receive_bytes()), self.draft
            if isinstance(message, Hello):
                raise ConnectionRejected("garbage", "it sent a second Hello")
            draft.has_stalled = False
            if draft.waiting_since is not None:
                draft.waiting_since = time.perf_counter()
            current = self._begun if message.serial == self._serial and draft.current is self._begun else None
            if isinstance(message, GuessMessage):
                if current is None or not self._offer(message, current[1]):
                    self.drafts.count("stale")
            elif isinstance(message, Unable) and current is not None:
                draft.is_unable = True
                log.info("draft %s cannot draft for this text", draft.name)
            self._credit -= 1
            if self._credit < 0:
                raise ConnectionRejected("flood", "it sends more messages than it was asked for")

    def _offer(self, message: GuessMessage, queue: RemoteQueue) -> bool:
        """Put a candidate into the queue. False if it is of no use."""
        if message.token >= self.target.fingerprint.n_vocab:
            raise ConnectionRejected("garbage", f"token {message.token} is not in the target's vocabulary")
        guess = Guess(message.token, min(max(message.confidence, 0.0), _MAX_CONFIDENCE))
        drafted = Drafted(message.n_tokens, max(message.seconds, 1e-6))
        taken = queue.offer(message.epoch, message.position, guess, message.n_known, drafted)
        if not taken or not queue.may_draft:
            self.wake.set()  # there is an order to send
        return taken

    async def give_orders(self) -> None:
        """Send an order whenever there is something new. Slow readers get fewer, larger messages. Raises LinkError."""
        await _send(self.socket, messages.Welcome(self.target.n_ctx))
        while True:
            if (message := self._next_message()) is not None:
                await _send(self.socket, message)
            await self.wake.wait()
            self.wake.clear()

    def _next_message(self) -> Message | None:
        """The next order; None: the draft has to know nothing new."""
        draft, current = self.draft, self.draft.current
        if current is None:
            return self._end()
        request, queue = current
        fresh = self._sent is None or current is not self._begun
        if current is not self._begun:
            self._begun, self._n_sent, self._unsent = current, 0, []
            self._serial += 1
            self._sent = None
        order = queue.order(draft.policy.latency_s)
        self._unsent += order.tokens
        state = (order.epoch, order.may_draft)
        idle = self._sent is None or not self._sent[1]
        if (idle and not order.may_draft) or (state == self._sent and not self._unsent):
            return None  # an idle draft gets no updates
        tokens, self._unsent = self._unsent, []
        position, self._n_sent = self._n_sent, self._n_sent + len(tokens)
        self._sent = state
        # It may answer each order with n_ahead candidates and one Alive per 16 tokens.
        n_ahead = draft.policy.n_ahead
        self._credit = min(self._credit + n_ahead + SPARE + len(tokens) // 16, _MAX_CREDIT)
        if order.may_draft == (draft.waiting_since is None):
            draft.waiting_since = time.perf_counter() if order.may_draft else None
        if not fresh:
            return Text(self._serial, order.epoch, position, tokens, order.may_draft)
        options = (self.target.fingerprint.n_vocab, n_ahead, request.sampling, list(request.banned))
        return Begin(self._serial, *options, order.epoch, tokens, order.may_draft)

    def _end(self) -> Message | None:
        """The text has ended, or another draft is in use."""
        self.draft.waiting_since = None
        if self._sent is None:
            return None
        self._sent = self._begun = None
        self._credit = max(self._credit, SPARE)
        return End(self._serial)
