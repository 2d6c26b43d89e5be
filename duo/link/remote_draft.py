"""RemoteDraft: a draft on another machine, as the lead knows it."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from duo.engine.draft import DraftRequest, QueuedDraft
from duo.engine.queue import CandidateQueue, Offer
from duo.errors import LinkError
from duo.link import messages
from duo.link.messages import Alive, Begin, End, GuessMessage, Hello, Message, Refused, Text, Unable, Welcome
from duo.link.remote_drafts import RemoteDrafts
from duo.llama.vocabulary import Fingerprint, fingerprint_difference
from duo.spec.policy import StepCost
from duo.spec.schedule import Schedule
from duo.spec.types import Candidates, Guess

log = logging.getLogger("duo.link")

HELLO_S = 5.0  # for the first message
STALL_S = 5.0  # without a sign of life from a draft that was asked to go on
SPARE = 64  # messages that a draft may send beyond what an order asks for
MOST_LEFT = 16384  # that it may send until the next order

Send = Callable[[bytes], Awaitable[None]]
Receive = Callable[[], Awaitable[bytes | str | None]]


@dataclass(frozen=True, slots=True)
class Admission:
    """Which drafts may join."""

    token: str = ""  # what they must know; empty: they need not know any
    closed: bool = False  # none may
    is_own: bool = False  # for the lead's own process alone, however many drafts there are


class Drop(LinkError):
    """The connection ends, for a reason that is counted."""

    def __init__(self, reason: str, message: str, *, tell: bool = False) -> None:
        """`tell`: the draft is told, and will not come again."""
        super().__init__(message)
        self.reason = reason
        self.tell = tell


class RemoteDraft(QueuedDraft):
    """One connection to a draft, from its Hello on.

    What is a Draft's is called on the target's thread, the rest on the server's. Between the two there are the queue
    and `_current`, which is replaced as a whole.
    """

    _longest_wait_s = 0.1  # nobody knows what holds it up

    def __init__(self, drafts: RemoteDrafts, admission: Admission, send: Send, peer: str) -> None:
        super().__init__(drafts.new_policy(""))
        self.name = self.model = peer
        self._admission = admission
        self._drafts = drafts
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._current: tuple[DraftRequest, CandidateQueue] | None = None  # the text that it is to guess in
        self._begun: tuple[DraftRequest, CandidateQueue] | None = None  # the text of the last Begin
        self._serial = 0
        self._n_sent = 0  # accepted tokens that the draft knows
        self._unsent: list[int] = []  # those after them
        self._told: tuple[int, bool] | None = None  # epoch and may_draft that it knows; None: it has no text
        self._waiting_since: float | None = None  # when it was last heard of, while it is asked to go on
        self._stalled = False
        self.is_unable = False  # to guess in this text
        self._n_left = SPARE  # messages that it may send until the next order
        self._drafted_until = 0.0
        self._n_vocab = self._n_ctx = 0  # the target's

    # The target's side

    @property
    def n_target_threads(self) -> int:
        """See Draft."""
        return self._drafts.n_target_threads

    @property
    def is_working(self) -> bool:
        """Whether it takes part in a text."""
        return self._current is not None

    @property
    def is_usable(self) -> bool:
        """Whether it answers, and can guess in this text."""
        since = self._waiting_since
        late = since is not None and time.perf_counter() - since > STALL_S
        return not (late or self._stalled or self.is_unable)

    def stall(self) -> None:
        """It was not usable: it will not be before it has given a sign of life. Called under the drafts' lock."""
        if not self.is_unable:
            self._stalled = True
            self._drafts.soon(lambda: self._drafts.count("stalled"))
            log.info("draft %s does not answer", self.name)

    def begin(self, request: DraftRequest) -> None:
        """See Draft."""
        super().begin(request)
        self._queue.open()
        self._current = request, self._queue
        self._notify()

    def candidates(self, n_room: int) -> Candidates:
        """See Draft."""
        return self._take(n_room) if self.policy.schedule is Schedule.ASYNC else Candidates()

    def commit(self, tokens: Sequence[int], cost: StepCost | None) -> None:
        """See Draft."""
        super().commit(tokens, cost)
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

    def _learn_offer(self, offer: Offer) -> bool:
        session, now = self._session, time.perf_counter()
        if offer.latency_s is not None:
            self.policy.learn_latency(offer.latency_s)
        assert offer.n_known is not None
        useful = session.n_pending < self.policy.n_ahead and offer.n_known <= len(session.accepted)
        if self.policy.schedule is Schedule.ASYNC and useful:
            self.policy.learn_draft(offer.n_tokens, offer.seconds)
        useful = useful and session.offer(offer.epoch, offer.position, offer.guess, offer.n_known)
        if useful:  # when it was made, as far as that can be told here
            start = max(self._drafted_until, now - offer.seconds)
            self._metrics.drafted(start, now, offer.n_tokens, "remote draft")
            self._drafted_until = now
        else:
            self._drafts.count("stale")
        return useful

    def _expected_s(self, left_s: float, *, stale: bool) -> float:
        return self.policy.latency_s + self.policy.costs.draft_s if stale else super()._expected_s(left_s, stale=False)

    def _notify(self) -> None:
        """There may be a new order for it. Never blocks."""
        self._drafts.soon(self._ring)

    def _ring(self) -> None:
        with suppress(RuntimeError):  # when the server has ended
            self._loop.call_soon_threadsafe(self._wake.set)

    # The connection

    async def run(self, receive: Receive) -> None:
        """Greet the draft and work with it until it goes; `receive` gives None at the end of the connection."""
        try:
            await self._greet(receive)
        except Drop as drop:
            self._drafts.count(f"refused: {drop.reason}")
            # One that comes while the model is loading comes again.
            level = logging.DEBUG if drop.reason == "loading" else logging.INFO
            log.log(level, "refused a draft at %s: %s", self.name, drop)
            if drop.tell:
                await self._send(messages.encode(Refused(str(drop))))
            return
        reason = "left"
        tasks = [asyncio.create_task(work) for work in (self._listen(receive), self._give_orders())]
        try:
            await self._send(messages.encode(Welcome(self._n_ctx)))
            log.info("draft %s has joined", self.name)
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except Drop as drop:
            reason = drop.reason
            log.warning("draft %s is sent away: %s", self.name, drop)
        except LinkError:
            reason = "does not read"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._drafts.leave(self, reason)
            log.info("draft %s has gone", self.name)

    async def _greet(self, receive: Receive) -> None:
        try:
            data = await asyncio.wait_for(receive(), HELLO_S)
        except asyncio.TimeoutError:
            raise Drop("silence", "it did not say who it is") from None
        if data is None:
            raise Drop("silence", "it has gone before it said who it is")
        if (version := messages.other_version(data)) is not None:
            told = f"it speaks protocol {version}, the lead {messages.VERSION}: use the same version of duo"
            raise Drop("version", told, tell=True)
        hello = _decode(data)
        if not isinstance(hello, Hello):
            raise Drop("garbage", "it did not say hello")
        target = self._drafts.target
        self._check(hello)
        if target is None:
            raise Drop("loading", "the model is still loading")
        self._n_vocab, self._n_ctx = target.fingerprint.n_vocab, target.n_ctx
        self.model = _printable(hello.model)
        self.name = f"{self.model} at {self.name}"
        self.policy = self._drafts.new_policy(self.model)
        if not self._drafts.join(self, always=self._admission.is_own):
            raise Drop("too many", "there are enough drafts")

    def _check(self, hello: Hello) -> None:
        """Raise Drop for a draft that cannot take part."""
        if self._admission.closed:
            raise Drop("token", "it takes no remote drafts: it has to be started with a token for them", tell=True)
        if not hmac.compare_digest(_digest(hello.token), _digest(self._admission.token)) and self._admission.token:
            told = "the token is wrong" if hello.token else "it wants a token"
            raise Drop("token", f"{told}: it must be the one that the lead was started with", tell=True)
        if (target := self._drafts.target) is not None:
            draft = Fingerprint(hello.vocab_type, hello.n_vocab, hello.bos, hello.eos, hello.blocks, hello.tail)
            if difference := fingerprint_difference(target.fingerprint, target.texts, draft):
                raise Drop("vocabulary", f"the draft does not fit the target: {difference}", tell=True)

    async def _listen(self, receive: Receive) -> None:
        while (data := await receive()) is not None:
            message = _decode(data)
            if isinstance(message, Hello):
                raise Drop("garbage", "it says hello twice")
            self._stalled = False
            if self._waiting_since is not None:
                self._waiting_since = time.perf_counter()
            current = self._current if message.serial == self._serial and self._current is self._begun else None
            if (current is None or not self._take_message(message, current[1])) and isinstance(message, GuessMessage):
                self._drafts.count("stale")
            self._n_left -= 1
            if self._n_left < 0:
                raise Drop("flood", "it sends more than it is asked for")

    def _take_message(self, message: GuessMessage | Alive | Unable, queue: CandidateQueue) -> bool:
        """Pass on what a draft says about the present text. False for a guess that is of no use."""
        if isinstance(message, Alive):
            return True
        if isinstance(message, Unable):
            self.is_unable = True
            log.info("draft %s cannot guess in this text", self.name)
            return True
        if message.token >= self._n_vocab:
            raise Drop("garbage", f"there is no token {message.token}")
        guess = Guess(message.token, messages.usable_confidence(message))
        seconds = max(message.seconds, 1e-6)
        offer = Offer(message.epoch, message.position, guess, message.n_tokens, seconds, message.n_known)
        taken = queue.publish_remote(offer)
        if not taken or not queue.may_draft:
            self._wake.set()  # it is to hear of that
        return taken

    async def _give_orders(self) -> None:
        """Tell the draft what it has to know, whenever that has changed. Slow readers get fewer, larger messages."""
        self._wake.set()
        while True:
            await self._wake.wait()
            self._wake.clear()
            message = self._next_message()
            if message is not None:
                await self._send(messages.encode(message))

    def _next_message(self) -> Message | None:
        """What the draft has to know now; None: nothing."""
        current = self._current
        if current is None:
            return self._end()
        request, queue = current
        fresh = self._told is None or current is not self._begun
        if current is not self._begun:
            self._begun, self._n_sent, self._unsent = current, 0, []
            self._serial = self._serial + 1
            self._told = None
        order = queue.order(self.policy.latency_s)
        self._unsent += order.tokens
        told = (order.epoch, order.may_draft)
        idle = self._told is None or not self._told[1]
        if (idle and not order.may_draft) or (told == self._told and not self._unsent):
            return None  # who is asked for nothing need not know
        tokens, self._unsent = self._unsent, []
        position, self._n_sent = self._n_sent, self._n_sent + len(tokens)
        self._told = told
        # Each order may make it guess n_ahead tokens, and tell many times that it decodes.
        n_ahead = self.policy.n_ahead
        self._n_left = min(self._n_left + n_ahead + SPARE + len(tokens) // 16, MOST_LEFT)
        if order.may_draft == (self._waiting_since is None):
            self._waiting_since = time.perf_counter() if order.may_draft else None
        if not fresh:
            return Text(self._serial, order.epoch, position, tokens, order.may_draft)
        about = (self._n_vocab, n_ahead, request.sampling, list(request.banned))
        return Begin(self._serial, *about, order.epoch, tokens, order.may_draft)

    def _end(self) -> Message | None:
        """The text has ended, or another one drafts."""
        self._waiting_since = None
        if self._told is None:
            return None
        self._told = self._begun = None
        self._n_left = max(self._n_left, SPARE)
        return End(self._serial)


def _decode(data: bytes | str) -> messages.FromDraft:
    try:
        return messages.from_draft(data)
    except LinkError as error:
        raise Drop("garbage", str(error)) from None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)
