"""DraftWorker: drafts for a lead, usually on another machine."""

import logging
import random
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, cast

from websockets.exceptions import ConnectionClosed, InvalidURI, WebSocketException
from websockets.sync.client import ClientConnection, connect

from duo.engine.cores import CoresInUse
from duo.engine.decoder import Decoder
from duo.engine.drafter import Drafter, DraftThread, DraftUpdate, TargetSide
from duo.engine.kv_store import Cache, KvStore
from duo.engine.recorder import Recorder
from duo.engine.translated import TranslatedTarget, Translation
from duo.errors import DuoError, LinkError, PromptError, UsageError
from duo.http.guard import ROUTE
from duo.remote import messages
from duo.remote.messages import Alive, Begin, CandidateMessage, Hello, Message, Text
from duo.speculation.sampling import chooser
from duo.speculation.types import Candidate, Logits

log = logging.getLogger("duo.remote")

_MAX_PAUSE_S = 15.0  # before it connects again
_HANDSHAKE_S = 10.0
_CLOSE_S = 2.0  # for the closing handshake
_N_TEXTS, _MAX_SAVED = 4, 2**30  # conversations of the lead that are kept, and bytes of the copies
_ANNOUNCED = 16  # decodes of more tokens are announced, because they may take long


@dataclass(eq=False)
class RemoteTarget:
    """Takes the place of the lead's CandidateQueue for one text: sends candidates, receives accepted tokens.

    The lock protects all fields; the condition notifies the draft's thread of changes. Nothing is sent under the lock,
    because sending may block.
    """

    text: Begin
    send: Callable[[Message], None]  # sends a message to the lead
    cancel: Callable[[], None]  # aborts the draft's current decode when it has become useless

    def __post_init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._epoch, self._may_draft = self.text.epoch, self.text.may_draft
        self._accepted = list(self.text.tokens)
        self._next = len(self._accepted)  # the position after the last candidate
        self._n_known = 0  # accepted tokens that the last candidate builds on
        self._ended = False

    def update(self, text: Text) -> None:
        """Add the lead's accepted tokens, if they are of this text. Raises LinkError if there is a gap before them."""
        if text.serial != self.text.serial:
            return
        with self._changed:
            if text.position != len(self._accepted):
                raise LinkError(f"the lead sent token {text.position} after {len(self._accepted)} tokens")
            self._accepted += text.tokens
            self._may_draft = text.may_draft
            if text.epoch != self._epoch:
                self._epoch = text.epoch
                self._next = len(self._accepted)
                self.cancel()
            self._changed.notify_all()

    def close(self) -> None:
        """See QueueSide."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    @property
    def has_room(self) -> bool:
        """Whether the draft may continue."""
        return self._may_draft and self._next < len(self._accepted) + self.text.n_ahead

    def wait_for_room(self) -> bool:
        """See QueueSide."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self.has_room)
            return not self._ended

    def begin(self) -> DraftUpdate:
        """See TargetSide."""
        with self._changed:
            n_seen, self._n_known = self._n_known, len(self._accepted)
            return DraftUpdate(self._epoch, self._accepted[n_seen:])

    def publish(self, epoch: int, position: int, candidate: Candidate, n_tokens: int, seconds: float) -> bool:
        """See TargetSide. Sends the candidate, unless it is already known to be useless."""
        with self._changed:
            if epoch != self._epoch:
                return False
            self._next = position + 1
            right = position >= len(self._accepted) or self._accepted[position] == candidate.token
            made = (candidate.token, candidate.confidence, n_tokens, seconds)
            message = CandidateMessage(self.text.serial, epoch, self._n_known, position, *made)
        self.send(message)
        return right


class Refusal(DuoError):
    """The lead refused this draft worker for good."""


@dataclass(eq=False)
class DraftWorker:
    """Drafts for one lead until stop(); connects again when the connection ends. Raises UsageError for a bad URL."""

    url: str
    hello: Hello
    make_context: Callable[[int], Decoder]  # for texts of so many tokens
    translation: Translation | None = None  # of a draft with another vocabulary than the lead's
    cores: CoresInUse | None = None  # that limit its threads
    pause_s: float = 0.25  # until it connects again, about; first, the shortest

    def __post_init__(self) -> None:
        # The lead prints http://…; without a scheme it is ws://.
        scheme, _, rest = self.url.rpartition("://")
        scheme = {"http": "ws", "https": "wss", "": "ws"}.get(scheme, scheme)
        if scheme not in ("ws", "wss") or not rest:
            raise UsageError(f"lead must be ws://host:port or wss://host:port, not {self.url!r}", "lead")
        self.url = f"{scheme}://{rest.rstrip('/').removesuffix(ROUTE)}{ROUTE}"
        self._first_pause_s = self.pause_s
        self._cache: Cache | None = None
        self._n_ctx = 0  # of the lead for which the cache was made
        self._saved = KvStore(_N_TEXTS, _MAX_SAVED)  # beside it
        self._stop = threading.Event()
        self._socket: ClientConnection | None = None

    def run(self) -> None:
        """Draft until stop(). Raises Refusal if the lead refuses the worker, UsageError for an invalid URL."""
        reported = False
        while not self._stop.is_set():
            try:
                with self._connect() as self._socket:
                    if self._stop.is_set():
                        break
                    n_ctx = self._greet(self._socket)
                    log.info("connected to the lead at %s", self.url)
                    reported = False
                    self._serve(self._socket, n_ctx)
            except (OSError, WebSocketException, LinkError, PromptError) as error:
                if not reported and not self._stop.is_set():
                    log.info("cannot connect to the lead at %s (%s): trying again", self.url, _reason(error))
                reported = True
            finally:
                self._socket = None
            # Jitter: all workers of a lead would connect in the same moment.
            self._stop.wait(self.pause_s * random.uniform(0.75, 1.25))  # noqa: S311
            self.pause_s = min(2 * self.pause_s, _MAX_PAUSE_S)

    def stop(self) -> None:
        """Disconnect and let run() return. From any thread or signal handler."""
        self._stop.set()
        if (connection := self._socket) is not None:
            with suppress(OSError):  # not close(): a lead that hangs may block a thread that is sending
                connection.socket.shutdown(socket.SHUT_RDWR)

    def _connect(self) -> ClientConnection:
        """Raises UsageError for an invalid URL, OSError or WebSocketException if the connection fails."""
        try:
            return connect(
                self.url,
                compression=None,
                max_size=messages.MAX_FROM_LEAD,
                open_timeout=_HANDSHAKE_S,
                ping_interval=5,
                ping_timeout=10,
                close_timeout=_CLOSE_S,
                user_agent_header=None,
                proxy=None,
            )
        except (InvalidURI, ValueError) as error:
            raise UsageError(f"lead: {error}", "lead") from None

    def _greet(self, connection: ClientConnection) -> int:
        """The size of the lead's context."""
        connection.send(messages.encode(self.hello))
        answer = messages.from_lead(connection.recv(timeout=_HANDSHAKE_S))
        if isinstance(answer, messages.Refused):
            raise Refusal(f"the lead refused this draft: {messages.printable(answer.reason)}")
        if not isinstance(answer, messages.Welcome):
            raise LinkError("the lead sent no Welcome")
        return answer.n_ctx

    def _serve(self, connection: ClientConnection, n_ctx: int) -> None:
        """Handle the lead's messages until the connection ends."""
        if self._cache is None or self._n_ctx < n_ctx:
            self._cache = None  # freed first: two might not fit the memory
            self._cache, self._n_ctx = Cache(self.make_context(n_ctx)), n_ctx
            self._saved = KvStore(_N_TEXTS, _MAX_SAVED)
        target: RemoteTarget | None = None

        def send(message: Message) -> None:
            with suppress(ConnectionClosed):  # the loop ends, too
                connection.send(messages.encode(message))

        with ExitStack() as drafting, suppress(ConnectionClosed):
            for data in connection:
                message = messages.from_lead(data)
                if isinstance(message, Begin):
                    drafting.close()
                    self.pause_s = self._first_pause_s  # a lead that has texts is worth connecting to
                    target = drafting.enter_context(self._draft(self._cache, message, send))
                elif isinstance(message, Text) and target is not None:
                    target.update(message)
                elif isinstance(message, messages.End):
                    drafting.close()
                    target = None
                    send(Alive(message.serial))  # ready for the next text
        log.info("disconnected from the lead" if self._stop.is_set() else "the lead disconnected")

    @contextmanager
    def _draft(self, cache: Cache, begin: Begin, send: Callable[[Message], None]) -> Iterator[RemoteTarget]:
        """Draft for one text. Raises PromptError if it cannot be translated."""
        if self.cores is not None:
            self.cores.begin()
        context = cast(Decoder, _Announcing(cache.context, lambda: send(Alive(begin.serial)), self.cores))
        target = RemoteTarget(begin, send, context.cancel)
        side: TargetSide = target
        text, n_vocab = begin.tokens, begin.n_vocab
        if self.translation is None:
            sampler = chooser(begin.sampling, begin.banned)
        else:
            text, translator = self.translation.begin(text)
            side, n_vocab = TranslatedTarget(target, translator, Recorder(), local=False), context.n_vocab
            sampler = self.translation.sampler(ends=not begin.banned)
        self._saved.begin([cache], text)
        cache.begin(text)
        drafter = Drafter(context, side, sampler, n_vocab, Recorder(), text)
        thread = DraftThread(drafter, target, on_end=lambda: send(messages.Unable(begin.serial)))
        thread.start()
        try:
            yield target
        finally:
            thread.stop()
            cache.end(drafter.end(), len(text))
            if thread.error is not None:
                log.warning("the draft failed: %s", thread.error, exc_info=thread.error)


@dataclass(slots=True)
class _Announcing:
    """A context that calls `announce` before it decodes many tokens, and whose threads follow the free cores."""

    context: Decoder
    announce: Callable[[], None]
    cores: CoresInUse | None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.context, name)

    def decode(self, tokens: Sequence[int], n_rows: int = 1) -> Logits:
        if len(tokens) > _ANNOUNCED:
            self.announce()
        if (cores := self.cores) is not None:
            n = cores.limit or cores.n_cores
            self.context.set_threads(n, n)
            cores.decoded()
        return self.context.decode(tokens, n_rows)


def _reason(error: Exception) -> str:
    if isinstance(error, ConnectionClosed) and error.rcvd is not None and error.rcvd.code == messages.TRY_LATER:
        return "it is still loading its model, or has too many drafts"
    return getattr(error, "strerror", None) or messages.printable(str(error)) or type(error).__name__
