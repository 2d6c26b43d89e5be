"""Worker: the lead's side of one connection to a back."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from duo.errors import LinkError
from duo.link import messages
from duo.link.backs import Backs, Job
from duo.link.messages import Alive, Begin, End, Guess, Hello, Message, Refused, Text, Unable, Welcome
from duo.llama.vocabulary import Fingerprint, fingerprint_difference
from duo.spec import types

log = logging.getLogger("duo.link")

HELLO_S = 5.0  # for the first message
STALL_S = 5.0  # without a sign of life from a back that was asked to draft
SPARE = 64  # messages that a back may send beyond what an order asks for
MOST_LEFT = 16384  # that it may send until the next order

Send = Callable[[bytes], Awaitable[None]]
Receive = Callable[[], Awaitable[bytes | str | None]]


@dataclass(frozen=True, slots=True)
class Door:
    """Who may come in as a back."""

    token: str = ""  # what it must know; empty: it need not know any
    closed: bool = False  # nobody may
    is_own: bool = False  # for the lead's own process alone, however many backs there are


class Drop(LinkError):
    """The connection ends, for a reason that is counted."""

    def __init__(self, reason: str, message: str, *, tell: bool = False) -> None:
        """`tell`: the back is told, and will not come again."""
        super().__init__(message)
        self.reason = reason
        self.tell = tell


class Worker:
    """One back, from its Hello on. notify() and usable() are called from any thread, the rest from the server's."""

    def __init__(self, backs: Backs, door: Door, send: Send, peer: str) -> None:
        self._door = door
        self.name = self.model = peer
        self._backs = backs
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._job: Job | None = None  # the text of the last Begin
        self._serial = 0
        self._n_seen = 0  # accepted tokens that the back knows
        self._told: tuple[int, bool] | None = None  # epoch and may_draft that it knows; None: it has no text
        self._waiting_since: float | None = None  # when it was last heard of, while it is asked to draft
        self._stalled = False
        self._unable_in: Job | None = None
        self._n_left = SPARE  # messages that it may send until the next order
        self._drafted_until = 0.0
        self._n_vocab = self._n_ctx = 0  # the target's

    def notify(self) -> None:
        """See Helper."""
        self._backs.bell.ring(self._ring)

    def _ring(self) -> None:
        with suppress(RuntimeError):  # when the server has ended
            self._loop.call_soon_threadsafe(self._wake.set)

    def usable(self, job: Job | None) -> bool:
        """Whether it answers, and can guess in this text."""
        since = self._waiting_since
        late = since is not None and time.perf_counter() - since > STALL_S
        return not (late or self._stalled) and (self._unable_in is None or self._unable_in is not job)

    def stall(self) -> None:
        """See Standing."""
        self.notify()
        if self._unable_in is None:
            self._stalled = True
            self._backs.counts["stalled"] += 1
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(log.info, "back %s does not answer", self.name)

    # The connection

    async def run(self, receive: Receive) -> None:
        """Greet the back and work with it until it goes; `receive` gives None at the end of the connection."""
        try:
            await self._greet(receive)
        except Drop as drop:
            self._backs.counts[f"refused: {drop.reason}"] += 1
            # One that comes while the model is loading comes again.
            log.log(
                logging.DEBUG if drop.reason == "loading" else logging.INFO, "refused a back at %s: %s", self.name, drop
            )
            if drop.tell:
                await self._send(messages.encode(Refused(str(drop))))
            return
        reason = "left"
        tasks = [asyncio.create_task(work) for work in (self._listen(receive), self._give_orders())]
        try:
            await self._send(messages.encode(Welcome(self._n_ctx)))
            log.info("back %s has joined", self.name)
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except Drop as drop:
            reason = drop.reason
            log.warning("back %s is sent away: %s", self.name, drop)
        except LinkError:
            reason = "does not read"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._backs.leave(self, reason)
            log.info("back %s has gone", self.name)

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
        target = self._backs.target
        self._check(hello)
        if target is None:
            raise Drop("loading", "the model is still loading")
        self._n_vocab, self._n_ctx = target.fingerprint.n_vocab, target.n_ctx
        self.model = _printable(hello.model)
        self.name = f"{self.model} at {self.name}"
        if not self._backs.join(self, always=self._door.is_own):
            raise Drop("too many", "there are enough backs")

    def _check(self, hello: Hello) -> None:
        """Raise Drop for a back that cannot take part."""
        if self._door.closed:
            raise Drop("token", "it takes no backs: it has to be started with --back-token", tell=True)
        if not hmac.compare_digest(_digest(hello.token), _digest(self._door.token)) and self._door.token:
            told = "the token is wrong" if hello.token else "it wants a token"
            raise Drop("token", f"{told}: --token must be the lead's --back-token", tell=True)
        if (target := self._backs.target) is not None:
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
            current = self._job if message.serial == self._serial else None
            useful = current is not None and self._take(message, current)
            self._backs.counts["stale"] += isinstance(message, Guess) and not useful
            self._n_left -= 1
            if self._n_left < 0:
                raise Drop("flood", "it sends more than it is asked for")

    def _take(self, message: Guess | Alive | Unable, job: Job) -> bool:
        """Pass on what a back says about the present text. False if it brings nothing."""
        if isinstance(message, Alive):
            return False
        if isinstance(message, Unable):
            self._unable_in = job
            log.info("back %s cannot guess in this text", self.name)
            return False
        if message.token >= self._n_vocab:
            raise Drop("garbage", f"there is no token {message.token}")
        guess = types.Guess(message.token, messages.usable_confidence(message))
        seconds = max(message.seconds, 1e-6)
        where = (message.epoch, message.n_known, message.position)
        useful = job.queue.publish_from(self, *where, guess, message.n_tokens, seconds)
        if useful:
            self._record(job, message.n_tokens, seconds)
        return useful

    def _record(self, job: Job, n_tokens: int, seconds: float) -> None:
        """Note when the guess was made, as far as that can be told here."""
        now = time.perf_counter()
        start = max(self._drafted_until, now - seconds)
        job.metrics.drafted(start, now, n_tokens, "draft elsewhere")
        self._drafted_until = now

    async def _give_orders(self) -> None:
        """Tell the back what it has to know, whenever that has changed. Slow readers get fewer, larger messages."""
        self._wake.set()
        while True:
            await self._wake.wait()
            self._wake.clear()
            message = self._next_message()
            if message is not None:
                await self._send(messages.encode(message))

    def _next_message(self) -> Message | None:
        """What the back has to know now; None: nothing."""
        job = self._backs.job
        fresh = self._told is None or job is not self._job
        n_seen = 0 if fresh else self._n_seen
        order = job.queue.order(self, n_seen) if job is not None else None
        if job is None or order is None:
            return self._end()
        told = (order.epoch, order.may_draft)
        idle = fresh or self._told is None or not self._told[1]
        if (idle and not order.may_draft) or (told == self._told and not fresh and not order.tokens):
            return None  # who is asked for nothing need not know
        self._told, self._n_seen = told, n_seen + len(order.tokens)
        # Each order may make it guess n_ahead tokens, and tell many times that it reads.
        n_ahead = job.queue.policy.n_ahead
        self._n_left = min(self._n_left + n_ahead + SPARE + len(order.tokens) // 16, MOST_LEFT)
        if order.may_draft == (self._waiting_since is None):
            self._waiting_since = time.perf_counter() if order.may_draft else None
        if not fresh:
            return Text(self._serial, order.epoch, n_seen, order.tokens, order.may_draft)
        self._job, self._serial = job, self._backs.next_serial()
        brief = job.brief
        about = (self._n_vocab, n_ahead, brief.sampling, list(brief.banned))
        return Begin(self._serial, *about, order.epoch, order.tokens, order.may_draft)

    def _end(self) -> Message | None:
        """The text has ended, or another one drafts."""
        self._waiting_since = None
        if self._told is None:
            return None
        self._told = self._job = None
        self._n_left = max(self._n_left, SPARE)
        return End(self._serial)


def _decode(data: bytes | str) -> messages.FromBack:
    try:
        return messages.from_back(data)
    except LinkError as error:
        raise Drop("garbage", str(error)) from None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)
