"""DraftWorker: drafts for a lead, usually on another machine."""

import logging
import random
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, cast

from websockets.exceptions import ConnectionClosed, InvalidURI, WebSocketException
from websockets.sync.client import ClientConnection, connect

from duo.engine.async_draft import CandidateQueue, Prepared
from duo.engine.cores import CoresInUse
from duo.engine.decoder import Decoder
from duo.engine.drafter import Drafter, DraftThread, TargetSide
from duo.engine.kv_store import Cache, KvStore
from duo.engine.prepared_outcomes import PreparingDrafter
from duo.engine.recorder import Recorder
from duo.engine.translated import TranslatedTarget, Translation
from duo.errors import DecodeAborted, DuoError, LinkError, PromptError, UsageError
from duo.http.guard import ROUTE
from duo.remote import messages
from duo.remote.messages import Alive, Begin, CandidateMessage, Hello, Message, PreparedToken, Text, Times
from duo.speculation.constants import DEFAULT
from duo.speculation.sampling import chooser
from duo.speculation.sequence import TokenSequence
from duo.speculation.types import Candidate, Logits

log = logging.getLogger("duo.remote")

_MAX_PAUSE_S = 15.0  # before it connects again
_HANDSHAKE_S = 10.0
_CLOSE_S = 2.0  # for the closing handshake
_N_TEXTS = 4  # conversations of the lead that are kept
_SIGN_S = 1.0  # between two signs of life while others decode


class RemoteTarget(CandidateQueue):
    """Takes the place of the lead's CandidateQueue for one text: sends what is drafted, receives accepted tokens.

    Its epochs are its own: those of the lead are only told back. Nothing is sent under the lock: sending may block.
    """

    def __init__(
        self,
        text: Begin,
        send: Callable[[Message], None],
        cancel: Callable[[], None],
        recorder: Recorder | None = None,
    ) -> None:
        """`send` sends a message to the lead; `cancel` aborts the draft's decode that has become useless."""
        super().__init__(TokenSequence(text.tokens, text.n_vocab, judges_all=False), recorder or Recorder())
        self._serial, self._send, self._cancel = text.serial, send, cancel
        self._lead_epoch, self._may_draft = text.epoch, text.may_draft
        self._message: CandidateMessage | None = None
        self._told: float | None = None  # when it was last told to begin anew, until the next candidate
        if text.ahead is not None:
            self._lookahead = text.ahead.lookahead()
        self.open()

    def update(self, text: Text) -> None:
        """Add the lead's accepted tokens, if they are of this text. Raises LinkError if there is a gap before them."""
        if text.serial != self._serial:
            return
        with self._changed:
            sequence = self._sequence
            if text.position != len(sequence.accepted):
                raise LinkError(f"the lead sent token {text.position} after {len(sequence.accepted)} tokens")
            before = sequence.epoch
            sequence.commit(text.tokens)
            if text.epoch != self._lead_epoch and sequence.epoch == before:  # it lacks a candidate that was sent
                sequence.restart()
            if sequence.epoch != before or (text.may_draft and not self._may_draft):
                self._told = self._now()
            self._lead_epoch, self._may_draft = text.epoch, text.may_draft
            if text.ahead is not None:
                self._lookahead = text.ahead.lookahead()
            self._n_verified = text.n_verified if self._lookahead.n_branches else 0
            self._may_prepare = self._n_verified > 0
            is_useless = self._is_useless()
            self._notify()
        if is_useless:
            self._cancel()

    def publish(self, *made: Any, **more: Any) -> bool:
        """See CandidateQueue. Sends what is of use."""
        is_useful = super().publish(*made, **more)
        message, self._message = self._message, None
        if message is not None:
            self._send(message)
        return is_useful

    def _publish(self, position: int, candidate: Candidate | None, prepared: Sequence[Prepared]) -> None:
        drafted = self._drafted.pop()
        if candidate is None and not prepared:
            return
        token, confidence, _, others = candidate or Candidate(0, 0.0)
        late_s = 0.0
        if candidate is not None and self._told is not None:
            late_s, self._told = max(0.0, self._now() - drafted.seconds - self._told), None
        self._message = CandidateMessage(
            self._serial, self._lead_epoch, self._n_told, position, token if candidate is not None else None,
            confidence, drafted.n_tokens, drafted.seconds, others, drafted.n_sequences,
            tuple(
                PreparedToken(*outcome, at, one.token, one.confidence, one.alternatives)
                for outcome, at, one in prepared
            ),
            late_s,
        )  # fmt: skip

    def _allows(self) -> bool:
        return self._may_draft and super()._allows()

    def is_stale(self) -> bool:
        """Whether the decode that was begun is of no use any more."""
        with self._changed:
            return self._is_useless()


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
    # Seconds for a token in each of so many sequences, for the lead; none: outcomes are not prepared.
    measure: Callable[[Decoder], Mapping[int, float]] = lambda _: {}
    aborts: bool = True  # whether the device can abort a decode
    turn: threading.Lock = field(default_factory=threading.Lock)  # to decode, among the workers of this process
    level: int = logging.INFO  # of messages about the connection
    most_saved: int = 2**30  # bytes of the copies of conversations
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
        self._times: dict[int, float] = {}  # what measure() has returned
        self._saved = KvStore(_N_TEXTS, self.most_saved)  # beside it
        self.is_ready = threading.Event()  # it has had a context
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
                    log.log(self.level, "connected to the lead at %s", self.url)
                    reported = False
                    self._serve(self._socket, n_ctx)
            except (OSError, WebSocketException, LinkError, PromptError) as error:
                if not reported and not self._stop.is_set():
                    then = "trying again until `duo lead` listens there"
                    log.log(self.level, "cannot connect to the lead at %s (%s): %s", self.url, _reason(error), then)
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
            with self.turn:
                self._cache, self._n_ctx = Cache(self.make_context(n_ctx)), n_ctx
                self._saved = KvStore(_N_TEXTS, self.most_saved)
                self._times = dict(self.measure(self._cache.context))
            self.is_ready.set()
        target: RemoteTarget | None = None

        def send(message: Message) -> None:
            with suppress(ConnectionClosed):  # the loop ends, too
                connection.send(messages.encode(message))

        send(Times(self._times, self.aborts))
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
        log.log(self.level, "disconnected from the lead" if self._stop.is_set() else "the lead disconnected")

    @contextmanager
    def _draft(self, cache: Cache, begin: Begin, send: Callable[[Message], None]) -> Iterator[RemoteTarget]:
        """Draft for one text. Raises PromptError if it cannot be translated."""
        if self.cores is not None:
            with self.turn:
                self.cores.begin()
        target = RemoteTarget(begin, send, cache.context.cancel)
        announcing = _Announcing(
            cache.context, lambda: send(Alive(begin.serial)), self.cores, self.turn, target.is_stale
        )
        context = cast(Decoder, announcing)
        side: TargetSide = target
        text, n_vocab = begin.tokens, begin.n_vocab
        if self.translation is None:
            sampler = chooser(begin.sampling, begin.banned, len(DEFAULT.ranks) if context.n_branches else 0)
        else:
            text, translator = self.translation.begin(text)
            side, n_vocab = TranslatedTarget(target, translator, Recorder(), local=False), context.n_vocab
            sampler = self.translation.sampler(ends=not begin.banned)
        self._saved.begin([cache], text)
        cache.begin(text)
        if self.translation is None and context.n_branches:
            drafter: Drafter = PreparingDrafter(context, target, sampler, n_vocab, Recorder(), text)
        else:
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
    turn: threading.Lock
    is_stale: Callable[[], bool]  # whether the decode has become useless, while others had their turns

    def __getattr__(self, name: str) -> Any:
        return getattr(self.context, name)

    def decode(self, tokens: Sequence[int], n_rows: int = 1) -> Logits:
        if len(tokens) > messages.LONG:
            self.announce()
        with self._own_turn():
            return self.context.decode(tokens, n_rows)

    def decode_each(self, tokens: Sequence[tuple[int, int]]) -> Logits:
        with self._own_turn():
            return self.context.decode_each(tokens)

    @contextmanager
    def _own_turn(self) -> Iterator[None]:
        while not self.turn.acquire(timeout=_SIGN_S):
            self.announce()
        try:
            if self.is_stale():
                raise DecodeAborted
            self._follow_cores()
            yield
        finally:
            self.turn.release()

    def _follow_cores(self) -> None:
        if (cores := self.cores) is not None:
            n = cores.limit or cores.n_cores
            self.context.set_threads(n, n)
            cores.decoded()


def _reason(error: Exception) -> str:
    if isinstance(error, ConnectionClosed) and error.rcvd is not None and error.rcvd.code == messages.TRY_LATER:
        return "it is still loading its model, or has too many drafts"
    return getattr(error, "strerror", None) or messages.printable(str(error)) or type(error).__name__
