"""RemoteDraft: the lead's side of one connection to a remote draft."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from duo.engine.draft import DraftRequest
from duo.engine.queue import Drafted
from duo.errors import LinkError
from duo.link import messages
from duo.link.admission import Admission, ConnectionRejected, decode
from duo.link.messages import Alive, Begin, End, GuessMessage, Hello, Message, Refused, Text, Unable, Welcome
from duo.link.remote_drafts import ConnectedDraft, RemoteDrafts
from duo.link.remote_queue import RemoteQueue
from duo.spec.policy import StepCost
from duo.spec.schedule import Schedule
from duo.spec.types import Guess, Origin

log = logging.getLogger("duo.link")

STALL_S = 5.0  # without a sign of life from a draft that may draft
SPARE = 64  # messages that a draft may send beyond those that an order allows
_MAX_CREDIT = 16384  # messages that it may send before the next order

Send = Callable[[bytes], Awaitable[None]]
Receive = Callable[[], Awaitable[bytes | str | None]]


class RemoteDraft(ConnectedDraft):
    """One connection to a draft, from its Hello on.

    Draft's methods are called on the target's thread, all others on the server's. The two share the queue and
    `_current`, which is replaced as a whole.
    """

    _longest_wait_s = 0.1  # it may be slow for unknown reasons

    def __init__(self, drafts: RemoteDrafts, admission: Admission, send: Send, peer: str) -> None:
        super().__init__(drafts.new_policy(""))
        self.name = self.model = peer
        self.number = 0  # among all that have connected
        self.n_verified = self.n_accepted = 0  # candidates, in all texts; the target's thread counts them
        self._admission = admission
        self._drafts = drafts
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._current: tuple[DraftRequest, RemoteQueue] | None = None  # the text to draft for
        self._begun: tuple[DraftRequest, RemoteQueue] | None = None  # the text of the last Begin
        self._serial = 0
        self._n_sent = 0  # accepted tokens that were sent
        self._unsent: list[int] = []  # accepted tokens after those
        self._sent: tuple[int, bool] | None = None  # epoch and may_draft as sent; None: no text has begun
        self._waiting_since: float | None = None  # its last sign of life, while it may draft
        self._stalled = False
        self.is_unable = False  # to draft for this text
        self._credit = SPARE  # messages that it may send before the next order
        self._drafted_until = 0.0
        self._n_vocab = self._n_ctx = 0  # the target's

    # The target's side

    @property
    def n_target_threads(self) -> int:
        """See Draft."""
        return self._drafts.n_target_threads

    @property
    def is_working(self) -> bool:
        """See ConnectedDraft."""
        return self._current is not None

    @property
    def is_usable(self) -> bool:
        """See ConnectedDraft."""
        since = self._waiting_since
        late = since is not None and time.perf_counter() - since > STALL_S
        return not (late or self._stalled or self.is_unable)

    def stall(self) -> None:
        """See ConnectedDraft."""
        if not self.is_unable:
            self._stalled = True
            self._drafts.soon(lambda: self._drafts.count("stalled"))
            log.info("draft %s does not answer", self.name)

    def begin(self, request: DraftRequest) -> None:
        """See Draft."""
        super().begin(request)
        assert isinstance(self._queue, RemoteQueue)
        request.metrics.vocabulary, request.metrics.lost_to_translation = self._drafts.vocabulary, None
        self._queue.open()
        self._current = request, self._queue
        self._notify()

    def commit(self, tokens: Sequence[int], cost: StepCost | None) -> None:
        """See Draft."""
        super().commit(tokens, cost)
        if cost is not None and cost.source is Origin.DRAFT:
            self.n_verified += cost.n_candidates
            self.n_accepted += min(cost.n_candidates, max(0, len(tokens) - 1))
        self._notify()

    def end(self) -> None:
        """See Draft."""
        if self._current is not None:
            self._queue.close()
            self._current = None
            self._notify()
            if self.policy.rate:
                self._drafts.learn(self.model, self.policy.state())

    def interrupt(self) -> None:
        """See Draft."""
        self._queue.close()

    def _make_queue(self) -> RemoteQueue:
        return RemoteQueue(self._session, self.policy.n_ahead, self._metrics.pending, self._metrics.clock)

    def _learn_drafted(self, drafted: Drafted) -> None:
        if drafted.latency_s is not None:
            self.policy.learn_latency(drafted.latency_s)
        if self.policy.schedule is Schedule.ASYNC:
            super()._learn_drafted(drafted)
        if drafted.is_useful:  # an estimate of when it was drafted
            now = self._now()
            start = max(self._drafted_until, now - drafted.seconds)
            self._metrics.drafted(start, now, drafted.n_tokens, "remote draft")
            self._drafted_until = now

    def _expected_s(self, left_s: float, *, stale: bool) -> float:
        return self.policy.latency_s + self.policy.costs.draft_s if stale else super()._expected_s(left_s, stale=False)

    def _notify(self) -> None:
        """Let the server's thread look for a new order. Never blocks."""
        self._drafts.soon(self._ring)

    def _ring(self) -> None:
        with suppress(RuntimeError):  # the server has stopped
            self._loop.call_soon_threadsafe(self._wake.set)

    # The connection

    async def run(self, receive: Receive) -> None:
        """Serve the connection until it ends; `receive` then returns None."""
        try:
            await self._greet(receive)
        except ConnectionRejected as drop:
            self._drafts.count(f"refused: {drop.reason}")
            # While the model is loading, drafts keep trying.
            level = logging.DEBUG if drop.reason == "loading" else logging.INFO
            log.log(level, "refused a draft at %s: %s", self.name, drop)
            if drop.is_final:
                await self._send(messages.encode(Refused(str(drop))))
            return
        reason = "left"
        tasks = [asyncio.create_task(work) for work in (self._listen(receive), self._give_orders())]
        try:
            await self._send(messages.encode(Welcome(self._n_ctx)))
            log.info("draft %s connected", self.name)
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except ConnectionRejected as drop:
            reason = drop.reason
            log.warning("draft %s: closing the connection: %s", self.name, drop)
        except LinkError:
            reason = "does not read"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._drafts.leave(self, reason)
            log.info("draft %s disconnected", self.name)

    async def _greet(self, receive: Receive) -> None:
        try:
            data = await asyncio.wait_for(receive(), self._admission.hello_s)
        except asyncio.TimeoutError:
            raise ConnectionRejected("silence", f"it sent no Hello within {self._admission.hello_s:g} s") from None
        if data is None:
            raise ConnectionRejected("silence", "it disconnected without a Hello")
        target = self._drafts.target
        hello = self._admission.check(data, target)
        assert target is not None
        self._n_vocab, self._n_ctx = target.fingerprint.n_vocab, target.n_ctx
        self.model = messages.printable(hello.model)
        self.name = f"{self.model} at {self.name}"
        self.policy = self._drafts.new_policy(self.model)
        if not self._drafts.join(self, always=self._admission.is_own):
            raise ConnectionRejected("too many", "too many drafts are connected")

    async def _listen(self, receive: Receive) -> None:
        while (data := await receive()) is not None:
            message = decode(data)
            if isinstance(message, Hello):
                raise ConnectionRejected("garbage", "it sent a second Hello")
            self._stalled = False
            if self._waiting_since is not None:
                self._waiting_since = time.perf_counter()
            current = self._current if message.serial == self._serial and self._current is self._begun else None
            if (current is None or not self._take_message(message, current[1])) and isinstance(message, GuessMessage):
                self._drafts.count("stale")
            self._credit -= 1
            if self._credit < 0:
                raise ConnectionRejected("flood", "it sends more messages than it was asked for")

    def _take_message(self, message: GuessMessage | Alive | Unable, queue: RemoteQueue) -> bool:
        """Handle a message about the current text. False for a useless candidate."""
        if isinstance(message, Alive):
            return True
        if isinstance(message, Unable):
            self.is_unable = True
            log.info("draft %s cannot draft for this text", self.name)
            return True
        if message.token >= self._n_vocab:
            raise ConnectionRejected("garbage", f"token {message.token} is not in the target's vocabulary")
        guess = Guess(message.token, messages.usable_confidence(message))
        seconds = max(message.seconds, 1e-6)
        drafted = Drafted(message.n_tokens, seconds)
        taken = queue.offer(message.epoch, message.position, guess, message.n_known, drafted)
        if not taken or not queue.may_draft:
            self._wake.set()  # there is an order to send
        return taken

    async def _give_orders(self) -> None:
        """Send an order whenever there is something new. Slow readers get fewer, larger messages."""
        self._wake.set()
        while True:
            await self._wake.wait()
            self._wake.clear()
            message = self._next_message()
            if message is not None:
                await self._send(messages.encode(message))

    def _next_message(self) -> Message | None:
        """The next order; None: the draft has to know nothing new."""
        current = self._current
        if current is None:
            return self._end()
        request, queue = current
        fresh = self._sent is None or current is not self._begun
        if current is not self._begun:
            self._begun, self._n_sent, self._unsent = current, 0, []
            self._serial = self._serial + 1
            self._sent = None
        order = queue.order(self.policy.latency_s)
        self._unsent += order.tokens
        state = (order.epoch, order.may_draft)
        idle = self._sent is None or not self._sent[1]
        if (idle and not order.may_draft) or (state == self._sent and not self._unsent):
            return None  # an idle draft gets no updates
        tokens, self._unsent = self._unsent, []
        position, self._n_sent = self._n_sent, self._n_sent + len(tokens)
        self._sent = state
        # It may answer each order with n_ahead candidates and one Alive per 16 tokens.
        n_ahead = self.policy.n_ahead
        self._credit = min(self._credit + n_ahead + SPARE + len(tokens) // 16, _MAX_CREDIT)
        if order.may_draft == (self._waiting_since is None):
            self._waiting_since = time.perf_counter() if order.may_draft else None
        if not fresh:
            return Text(self._serial, order.epoch, position, tokens, order.may_draft)
        options = (self._n_vocab, n_ahead, request.sampling, list(request.banned))
        return Begin(self._serial, *options, order.epoch, tokens, order.may_draft)

    def _end(self) -> Message | None:
        """The text has ended, or another draft is in use."""
        self._waiting_since = None
        if self._sent is None:
            return None
        self._sent = self._begun = None
        self._credit = max(self._credit, SPARE)
        return End(self._serial)
