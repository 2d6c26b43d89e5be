"""DraftClient: a draft that works for a lead on another machine, and may come and go."""

from __future__ import annotations

import logging
import random
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from websockets.exceptions import ConnectionClosed, InvalidStatus, InvalidURI, WebSocketException
from websockets.sync.client import ClientConnection, connect

from duo.engine.cache import Cache
from duo.engine.decoder import Decoder
from duo.engine.draft_thread import DraftThread
from duo.engine.drafter import Drafter
from duo.engine.metrics import Metrics
from duo.errors import LinkError, UsageError
from duo.link import messages
from duo.link.messages import ROUTE, TRY_LATER, Alive, Begin, End, Hello, Message, Refused, Text, Unable, Welcome
from duo.link.remote_target import RemoteTarget
from duo.llama.model import Model
from duo.llama.vocabulary import Fingerprint
from duo.spec.sampling import chooser
from duo.spec.types import Logits

log = logging.getLogger("duo.link")

JOINED = "joined the lead"  # how it says so
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 15.0  # before it connects again
_HANDSHAKE_S = 10.0
_LEAVE_S = 2.0  # to say goodbye
_MANY = 16  # tokens in a decode that is announced, because it may take long


class Refusal(LinkError):
    """The lead does not want this draft, and will not want it later."""


class DraftClient:
    """Drafts for one lead, whenever it is there, until it is told to stop."""

    def __init__(self, url: str, hello: Hello, context: Callable[[int], Decoder]) -> None:
        """`context` makes a draft's context for texts of so many tokens. Raises UsageError for a URL that is none."""
        # The lead prints its address as http://…, and people leave out what goes without saying.
        scheme, _, rest = url.rpartition("://")
        scheme = {"http": "ws", "https": "wss", "": "ws"}.get(scheme, scheme)
        if scheme not in ("ws", "wss") or not rest:
            raise UsageError(f"lead takes ws://host:port or wss://host:port, not {url!r}", "lead")
        url = f"{scheme}://{rest}".rstrip("/")
        self._url = url if url.endswith(ROUTE) else url + ROUTE
        self._hello = hello
        self._make_context = context
        self._cache: Cache | None = None
        self._n_ctx = 0  # tokens that the cache was made for
        self._stop = threading.Event()
        self._socket: ClientConnection | None = None

    def run(self) -> None:
        """Work until stop(). Raises Refusal if the lead does not want it, UsageError for a URL that cannot be used."""
        pause_s, told = _FIRST_PAUSE_S, False
        while not self._stop.is_set():
            try:
                with self._connect() as self._socket:
                    if self._stop.is_set():
                        break
                    welcome = self._greet(self._socket)
                    log.info("%s at %s", JOINED, self._url)
                    pause_s, told = _FIRST_PAUSE_S, False
                    self._serve(self._socket, welcome)
            except Refusal:
                raise
            except (OSError, WebSocketException, LinkError) as error:
                if not told and not self._stop.is_set():
                    log.info("no lead takes me at %s (%s): trying again until one does", self._url, _reason(error))
                told = True
            finally:
                self._socket = None
            # Not all drafts at the same time.
            self._stop.wait(pause_s * random.uniform(0.75, 1.25))  # noqa: S311
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def stop(self) -> None:
        """Leave, from any thread or signal handler."""
        self._stop.set()
        connection = self._socket
        if connection is not None:
            threading.Thread(target=connection.close, daemon=True).start()
            # A lead that hangs does not answer, and may hold up whoever is sending.
            cut = threading.Timer(_LEAVE_S, _cut, (connection,))
            cut.daemon = True
            cut.start()

    def _connect(self) -> ClientConnection:
        """Raises UsageError for a URL that cannot be used, OSError or WebSocketException if nothing answers."""
        try:
            return connect(
                self._url,
                compression=None,
                max_size=messages.MAX_FROM_LEAD,
                open_timeout=_HANDSHAKE_S,
                ping_interval=5,
                ping_timeout=10,
                close_timeout=_LEAVE_S,
                user_agent_header=None,
                proxy=None,
            )
        except (InvalidURI, ValueError) as error:
            raise UsageError(f"lead: {error}", "lead") from None

    def _greet(self, connection: ClientConnection) -> Welcome:
        connection.send(messages.encode(self._hello))
        answer = messages.from_lead(connection.recv(timeout=_HANDSHAKE_S))
        if isinstance(answer, Refused):
            raise Refusal(f"the lead refused: {answer.reason}")
        if not isinstance(answer, Welcome):
            raise LinkError("the lead did not say welcome")
        return answer

    def _serve(self, connection: ClientConnection, welcome: Welcome) -> None:
        """Do what the lead says until the connection ends."""
        cache = self._cache_for(welcome.n_ctx)
        target, serial = None, -1
        with ExitStack() as drafting, suppress(ConnectionClosed):
            for data in connection:
                message = messages.from_lead(data)
                if isinstance(message, Begin):
                    drafting.close()
                    text = drafting.enter_context(_Drafting(cache, message, connection))
                    target, serial = text.target, message.serial
                elif isinstance(message, Text) and target is not None and message.serial == serial:
                    target.update(message)
                elif isinstance(message, End):
                    drafting.close()
                    target = None
                    connection.send(messages.encode(Alive(message.serial)))  # it is ready
        log.info("left the lead" if self._stop.is_set() else "the lead has gone")

    def _cache_for(self, n_ctx: int) -> Cache:
        if self._cache is None or self._n_ctx < n_ctx:
            self._cache = None  # two at the same time might not fit
            self._cache, self._n_ctx = Cache(self._make_context(n_ctx)), n_ctx
        return self._cache


class _Drafting:
    """Drafts for one text from `with` to its end."""

    def __init__(self, cache: Cache, begin: Begin, connection: ClientConnection) -> None:
        def send(message: Message) -> None:
            with suppress(ConnectionClosed):  # which _serve will notice
                connection.send(messages.encode(message))

        self._cache = cache
        context = cache.context
        cache.begin(begin.tokens)
        draft = _Announcing(context, lambda: send(Alive(begin.serial)))
        self.target = RemoteTarget(begin, send, context.cancel)
        guesser = chooser(begin.sampling, begin.banned)
        self._drafter = Drafter(draft, self.target, guesser, begin.n_vocab, Metrics(), begin.tokens)
        self._thread = DraftThread(self._drafter, self.target, context, on_end=lambda: send(Unable(begin.serial)))

    def __enter__(self) -> _Drafting:
        """Begin."""
        self._thread.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        """End, and keep what was read for the next text."""
        self._thread.__exit__(*error)
        self._cache.end(self._drafter.cached)
        if (failure := self._thread.error) is not None:
            log.warning("the draft failed: %s", failure, exc_info=failure)


class _Announcing:
    """A context that says so before it decodes many tokens."""

    def __init__(self, context: Decoder, announce: Callable[[], None]) -> None:
        self._context = context
        self._announce = announce
        self.n_ctx, self.n_batch, self.n_vocab = context.n_ctx, context.n_batch, context.n_vocab
        self.n_rollback = context.n_rollback
        self.rollback, self.set_threads = context.rollback, context.set_threads
        self.cancel, self.abort, self.resume = context.cancel, context.abort, context.resume

    @property
    def n_past(self) -> int:
        """Tokens in the cache."""
        return self._context.n_past

    def decode(self, tokens: Sequence[int], n_rows: int = 1) -> Logits:
        """See Decoder."""
        if len(tokens) > _MANY:
            self._announce()
        return self._context.decode(tokens, n_rows)


def hello(token: str, model: Model) -> Hello:
    """What a draft says first: `token` shows that it may."""
    fingerprint = Fingerprint.of(model)
    return Hello(
        messages.VERSION,
        token,
        model.path.stem[:256],
        fingerprint.vocab_type,
        fingerprint.n_vocab,
        fingerprint.bos,
        fingerprint.eos,
        fingerprint.blocks,
        fingerprint.tail,
    )


def _cut(connection: ClientConnection) -> None:
    with suppress(OSError):
        connection.socket.shutdown(socket.SHUT_RDWR)


def _reason(error: Exception) -> str:
    if isinstance(error, ConnectionClosed) and error.rcvd is not None and error.rcvd.code == TRY_LATER:
        return "it is still loading its model, or has enough drafts"
    if isinstance(error, InvalidStatus):
        return f"it answers with status {error.response.status_code}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
