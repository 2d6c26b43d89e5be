"""Backs that mean harm or have lost their mind. Each is refused, sent away or harmless; the text is the lead's own."""

from __future__ import annotations

import base64
import math
import os
import re
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from duo.config import ModelConfig
from duo.link import messages
from duo.link.messages import Alive, Begin, End, GuessMessage, Hello, Message, Refused, Text, Unable, Welcome
from duo.link.remote_draft import SPARE
from duo.link.remote_drafts import MOST
from duo.llama.model import Model
from duo.llama.vocabulary import Fingerprint
from tests.prompts import PROMPTS
from tests.serving import PATIENCE_S, BackProcess, LeadProcess, StreamedText

PROMPT = PROMPTS["list"]
SHORT, LONG = 8, 32  # tokens of a text
TOKEN = "secret"
TRY_LATER, TOO_BIG = 1013, 1009  # codes that a connection is closed with
MIB = 2**20
STALE_GUESSES = "duo:stale_candidates_total"

# Code for `before`: the target computes nothing while a file is there.
HELD = """
import duo.link.listener
duo.link.listener.READ_S = 1.0
import os, threading, time
from duo.llama.context import Context
decode = Context.decode
def held(self, *arguments, **more):
    while threading.current_thread().name == "duo-target" and os.path.exists(os.environ["TEST_HOLD"]):
        time.sleep(0.005)
    return decode(self, *arguments, **more)
Context.decode = held
"""

# Code for `before`: patience of tests. The target is slow enough for a back to be missed.
HASTY = """
import threading, time
import duo.link.remote_draft as remote
remote.HELLO_S, remote.STALL_S = 1.0, 0.25
from duo.llama.context import Context
decode = Context.decode
def slowly(self, *arguments, **more):
    if threading.current_thread().name == "duo-target":
        time.sleep(0.02)
    return decode(self, *arguments, **more)
Context.decode = slowly
"""

OPTIONS = ("--exact", "--schedule", "async", "-c", "512", "--back-token", TOKEN)


class Stage:
    """A lead whose target can be held, and what it writes when nobody helps."""

    def __init__(self, lead: LeadProcess, hold: Path) -> None:
        self.lead = lead
        self._hold = hold
        self._text: StreamedText | None = None
        self._n = 0
        self.plain = {n: lead.write(PROMPT, n) for n in (SHORT, LONG)}

    def begin(self, n: int = SHORT) -> None:
        """A text begins, and goes no farther than to its first decode."""
        self._hold.touch()
        self._n = n
        self._text = self.lead.stream(PROMPT, n)

    def go_on(self) -> StreamedText:
        """Let it be written."""
        self._hold.unlink(missing_ok=True)
        assert self._text is not None
        return self._text

    def finish(self) -> None:
        """Let it be written to its end, and see that it is as it should be."""
        assert self.go_on().finish() == self.plain[self._n]
        self._text = None

    def clear(self) -> None:
        """Leave nothing behind for the next test."""
        self._hold.unlink(missing_ok=True)
        if self._text is not None:
            self._text.finish()
            self._text = None
        self.wait_until("duo:workers_connected", 0)

    def goes_on(self) -> None:
        """It answers, and with the same text."""
        assert httpx.get(f"{self.lead.url}/health").status_code == 200
        assert self.plain[SHORT].startswith(self.lead.write(PROMPT, 4))

    def count(self, metric: str) -> float:
        """The value of a metric, which is not there as long as it is 0."""
        found = re.search(rf"^{re.escape(metric)} (\S+)$", self.metrics(), re.MULTILINE)
        return float(found[1]) if found else 0.0

    def total(self, metric: str) -> float:
        """The sum of a metric over its reasons."""
        return sum(map(float, re.findall(rf"^{metric}{{.*}} (\S+)$", self.metrics(), re.MULTILINE)))

    def metrics(self) -> str:
        return httpx.get(f"{self.lead.url}/metrics", timeout=PATIENCE_S).text

    def wait_until_heard(self, client: Impostor, begin: Begin) -> None:
        """Until the lead has heard what the client has said; this is one guess of no use more."""
        stale = self.count(STALE_GUESSES)
        client.say(guess(begin, serial=begin.serial + 1))
        end = time.monotonic() + PATIENCE_S
        while self.count(STALE_GUESSES) <= stale:
            assert time.monotonic() < end, self.lead.lines[-10:]
            time.sleep(0.005)

    def wait_until(self, metric: str, value: float) -> None:
        end = time.monotonic() + PATIENCE_S
        while (count := self.count(metric)) != value:
            assert time.monotonic() < end, f"{metric} is {count}, not {value}: {self.lead.lines[-10:]}"
            time.sleep(0.005)

    def memory(self) -> int:
        """Bytes of memory that the lead has."""
        status = Path(f"/proc/{self.lead.process.pid}/status")
        if not status.exists():
            pytest.skip("only Linux tells")
        found = re.search(r"VmRSS:\s+(\d+) kB", status.read_text())
        assert found is not None
        return int(found[1]) * 1024


class Impostor:
    """A client that says to a lead what it is told to say."""

    n = 0

    def __init__(self, port: int) -> None:
        Impostor.n += 1
        self.name = f"impostor {Impostor.n}"
        url = f"ws://127.0.0.1:{port}{messages.ROUTE}"
        self._open = ExitStack()
        self._connection = self._open.enter_context(
            connect(
                url, compression=None, max_size=None, max_queue=None, close_timeout=5, ping_interval=None, proxy=None
            )
        )
        self.port: int = self._connection.local_address[1]

    def __enter__(self) -> Impostor:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def say(self, *said: Message | bytes | str | Sequence[bytes]) -> None:
        """Say this, or as much of it as is heard."""
        with suppress(ConnectionClosed):
            for one in said:
                self._connection.send(messages.encode(one) if isinstance(one, Message) else one)

    def hear(self) -> messages.FromLead:
        return messages.from_lead(self._connection.recv(timeout=PATIENCE_S))

    def join(self, fingerprint: Fingerprint) -> None:
        self.say(hello(fingerprint, model=self.name))
        assert isinstance(self.hear(), Welcome)

    def begin(self) -> Begin:
        """The next Begin."""
        while not isinstance(message := self.hear(), Begin):
            pass
        return message

    def sent_away(self) -> int:
        """The code of the connection's end, which must come from the lead."""
        end = self._end()
        assert end.rcvd is not None, "the connection was cut"
        assert end.rcvd_then_sent, "it is this side that went"
        return end.rcvd.code

    def is_cut_off(self) -> bool:
        """Whether the lead has ended this without reading all: its reason may get lost on the way then."""
        end = self._end()
        return end.rcvd is None or end.rcvd.code == TOO_BIG

    def _end(self) -> ConnectionClosed:
        try:
            while True:
                self.hear()
        except ConnectionClosed as end:
            return end

    def leave(self) -> None:
        self._open.close()

    def draft(self, begin: Begin, token: Callable[[int], int | None], **lies: Any) -> None:
        """Guess `token(position)` as far ahead as may be, until the text ends; None: nothing."""
        accepted, epoch, may_draft = len(begin.tokens), begin.epoch, begin.may_draft
        following = accepted
        while True:
            while may_draft and following < accepted + begin.n_ahead and (guessed := token(following)) is not None:
                where = {"epoch": epoch, "n_known": accepted, "position": following}
                self.say(guess(begin, token=guessed, **where, **lies))
                following += 1
            message = self.hear()
            if isinstance(message, End):
                return
            assert isinstance(message, Text)
            accepted, may_draft = message.position + len(message.tokens), message.may_draft
            if message.epoch != epoch:
                following = accepted
            epoch, following = message.epoch, max(following, accepted)


def hello(fingerprint: Fingerprint, **lies: Any) -> Hello:
    """A hello that nothing is wrong with but the `lies`."""
    right: dict[str, Any] = {
        "version": messages.VERSION,
        "token": TOKEN,
        "model": "impostor",
        "vocab_type": fingerprint.vocab_type,
        "n_vocab": fingerprint.n_vocab,
        "bos": fingerprint.bos,
        "eos": fingerprint.eos,
        "blocks": fingerprint.blocks,
        "tail": fingerprint.tail,
    }
    return Hello(**(right | lies))


def guess(begin: Begin, **lies: Any) -> GuessMessage:
    """A guess that may be wrong and nothing else, but for the `lies`."""
    right: dict[str, Any] = {
        "serial": begin.serial,
        "epoch": begin.epoch,
        "n_known": len(begin.tokens),
        "position": len(begin.tokens),
        "token": 7,
        "confidence": 9.0,
        "n_tokens": 1,
        "seconds": 0.001,
    }
    return GuessMessage(**(right | lies))


@pytest.fixture(scope="module")
def lead_stage(demo_pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    hold = tmp_path_factory.mktemp("hold") / "hold"
    with LeadProcess(demo_pair[0], *OPTIONS, before=HELD, env={"TEST_HOLD": str(hold)}) as lead:
        yield Stage(lead, hold)


@pytest.fixture(scope="module")
def fingerprint(demo_pair: tuple[Path, Path]) -> Fingerprint:
    """The demo draft's."""
    with closing(Model(ModelConfig(demo_pair[1], n_gpu_layers=0))) as model:
        return Fingerprint.of(model)


@pytest.fixture
def stage(lead_stage: Stage) -> Iterator[Stage]:
    yield lead_stage
    lead_stage.clear()


@pytest.fixture
def client(stage: Stage) -> Iterator[Impostor]:
    """Somebody who has said nothing yet."""
    with Impostor(stage.lead.port) as client:
        yield client


@pytest.fixture
def joined(client: Impostor, fingerprint: Fingerprint) -> Impostor:
    """A back that has joined."""
    client.join(fingerprint)
    return client


@pytest.fixture
def begin(stage: Stage, joined: Impostor) -> Begin:
    """What it is asked, while the target is held."""
    stage.begin()
    return joined.begin()


@pytest.fixture
def long_begin(stage: Stage, joined: Impostor) -> Begin:
    """The same for a long text."""
    stage.begin(LONG)
    return joined.begin()


@pytest.fixture(scope="module")
def truth(lead_stage: Stage, fingerprint: Fingerprint) -> dict[int, int]:
    """The long text's tokens by position, as far as a back is told them."""
    with Impostor(lead_stage.lead.port) as listener:
        listener.join(fingerprint)
        lead_stage.begin(LONG)
        begin = listener.begin()
        tokens = list(begin.tokens)
        lead_stage.go_on()
        while not isinstance(message := listener.hear(), End):
            assert isinstance(message, Text)
            assert message.position == len(tokens)
            tokens += message.tokens
    lead_stage.clear()
    assert len(tokens) >= len(begin.tokens) + LONG - 1
    return dict(enumerate(tokens))


# Who is not let in


def _spoilt(blocks: tuple[bytes, ...]) -> tuple[bytes, ...]:
    return (*blocks[:-2], bytes(8), blocks[-1])


STRANGERS: dict[str, tuple[Callable[[Fingerprint], Hello | bytes], str, str]] = {
    "another token": (lambda f: hello(f, token="Secret"), "token", "the token is wrong"),
    "no token": (lambda f: hello(f, token=""), "token", "it wants a token"),
    "a longer token": (lambda f: hello(f, token=TOKEN + "\0"), "token", "the token is wrong"),
    "an older version": (lambda f: hello(f, version=0), "version", "it speaks protocol 0, the lead 1"),
    "a later version": (lambda f: hello(f, version=2**40), "version", "use the same version"),
    "a version that looks otherwise": (lambda _: b"\x93\x01\x02\xc0", "version", "it speaks protocol 2"),
    "a version that says no more": (lambda _: b"\x92\x01\xff", "version", "it speaks protocol -1"),
    "another type": (lambda f: hello(f, vocab_type=99), "vocabulary", "vocab_type is"),
    "another size": (lambda f: hello(f, n_vocab=f.n_vocab + 129), "vocabulary", "the draft's 49281"),
    "no size": (lambda f: hello(f, n_vocab=0), "vocabulary", "the draft's 0"),
    "another BOS": (lambda f: hello(f, bos=5), "vocabulary", "bos is"),
    "another word": (lambda f: hello(f, blocks=_spoilt(f.blocks)), "vocabulary", "tokens 47104 to 48127 differ"),
    "no blocks": (lambda f: hello(f, blocks=()), "vocabulary", "differ"),
    "no tail": (lambda f: hello(f, n_vocab=f.n_vocab + 1, tail=b""), "vocabulary", "differ"),
}


@pytest.mark.parametrize("who", STRANGERS)
def test_a_stranger_is_told_why_it_is_refused(
    stage: Stage, client: Impostor, fingerprint: Fingerprint, who: str
) -> None:
    made, reason, said = STRANGERS[who]
    counted = f'duo:worker_refusals_total{{reason="{reason}"}}'
    before = stage.count(counted)
    client.say(made(fingerprint))
    refused = client.hear()
    assert isinstance(refused, Refused)
    assert said in refused.reason
    assert client.sent_away() == TRY_LATER
    assert re.escape(TOKEN) not in refused.reason
    stage.lead.wait_for(rf"refused a draft at 127.0.0.1:{client.port}: .*{re.escape(said)}")
    assert stage.count(counted) == before + 1
    assert stage.count("duo:workers_connected") == 0
    stage.goes_on()


RUBBISH: dict[str, Callable[[bytes], bytes | str | list[bytes]]] = {
    "nothing": lambda _: b"",
    "text": lambda _: "Hello",
    "a hello in text": lambda hello: hello.decode("latin-1"),
    "garbage": lambda _: b"\xc1\xc1\xc1",
    "zeros": lambda _: bytes(1000),
    "half a hello": lambda hello: hello[: len(hello) // 2],
    "all but the end of a hello": lambda hello: hello[:-1],
    "a hello and more": lambda hello: hello + b"\x00",
    "no hello": lambda _: messages.encode(Alive(1)),
    "what a lead says": lambda _: messages.encode(Welcome(1)),
    "nesting": lambda _: b"\x91" * 60_000,
    "a long token": lambda hello: hello.replace(b"\xa6secret", b"\xda\x01\x01" + b"x" * 257),
}


@pytest.mark.parametrize("what", RUBBISH)
def test_who_does_not_say_hello_is_refused(stage: Stage, client: Impostor, fingerprint: Fingerprint, what: str) -> None:
    before = stage.count('duo:worker_refusals_total{reason="garbage"}')
    client.say(RUBBISH[what](messages.encode(hello(fingerprint))))
    assert client.sent_away() == TRY_LATER
    stage.lead.wait_for(
        rf"refused a draft at 127.0.0.1:{client.port}: (not a message of protocol|it did not say hello)"
    )
    assert stage.count('duo:worker_refusals_total{reason="garbage"}') == before + 1
    stage.goes_on()


@pytest.mark.parametrize("what", [bytes(messages.MAX_FROM_DRAFT + 1), [bytes(40_000)] * 2, [b"\0"] * 70_000])
def test_a_first_message_that_is_too_long_is_not_read_to_its_end(
    stage: Stage, client: Impostor, what: bytes | list[bytes]
) -> None:
    before = stage.total("duo:worker_refusals_total")
    client.say(what)
    assert client.is_cut_off()
    stage.lead.wait_for(rf"refused a draft at 127.0.0.1:{client.port}: ")
    assert stage.total("duo:worker_refusals_total") == before + 1
    stage.goes_on()


def test_who_goes_without_a_word_is_refused(stage: Stage, client: Impostor) -> None:
    before = stage.total("duo:worker_refusals_total")
    client.leave()
    stage.lead.wait_for(rf"refused a draft at 127.0.0.1:{client.port}: it has gone before it said who it is")
    assert stage.total("duo:worker_refusals_total") == before + 1
    stage.goes_on()


@pytest.mark.parametrize("n", [MOST + 4])
def test_only_so_many_may_join(stage: Stage, fingerprint: Fingerprint, n: int) -> None:
    before = stage.count('duo:worker_refusals_total{reason="too many"}')
    with ExitStack() as crowd:
        backs = [crowd.enter_context(Impostor(stage.lead.port)) for _ in range(n)]
        for one in backs[:MOST]:
            one.join(fingerprint)
        for one in backs[MOST:]:
            one.say(hello(fingerprint, model=one.name))
            assert one.sent_away() == TRY_LATER, "it may come again"
            stage.lead.wait_for(f"refused a draft at {one.name} at .*: there are enough drafts")
        assert stage.count('duo:worker_refusals_total{reason="too many"}') == before + n - MOST
        assert stage.count("duo:workers_connected") == MOST
        stage.goes_on()
        backs[0].leave()
        stage.wait_until("duo:workers_connected", MOST - 1)
        crowd.enter_context(late := Impostor(stage.lead.port))
        late.join(fingerprint)


def test_who_goes_in_the_middle_of_a_frame_leaves_nothing_behind(stage: Stage, fingerprint: Fingerprint) -> None:
    data = frame(0x2, messages.encode(hello(fingerprint)))
    for end in (1, 3, 8, len(data) // 2, len(data) - 1):
        connection = raw_connection(stage.lead.port)
        port = connection.getsockname()[1]
        connection.sendall(data[:end])
        connection.close()
        stage.lead.wait_for(rf"refused a draft at 127.0.0.1:{port}: it has gone before it said who it is")
    stage.goes_on()


BAD_FRAMES = {
    "reserved bits": b"\xf2\x80\0\0\0\0",
    "not masked": b"\x82\x01x",
    "an opcode that is none": b"\x83\x80\0\0\0\0",
    "a long ping": b"\x89\xfe\x01\x00\0\0\0\0" + bytes(256),
    "a continuation of nothing": b"\x80\x81\0\0\0\0x",
    "a length of 2**64": b"\x82\xff" + b"\xff" * 8 + bytes(4),
    "a length of 2**63": b"\x82\xff\x80" + bytes(11),
    "text that is none": b"\x81\x82\0\0\0\0\xff\xfe",
}


@pytest.mark.parametrize("what", BAD_FRAMES)
def test_frames_that_are_none_are_refused(stage: Stage, what: str) -> None:
    before, n_lines = stage.total("duo:worker_refusals_total"), len(stage.lead.lines)
    connection = raw_connection(stage.lead.port)
    port = connection.getsockname()[1]
    connection.sendall(BAD_FRAMES[what])
    wait_for_end(connection)
    stage.lead.wait_for(rf"refused a draft at 127.0.0.1:{port}: ")
    assert stage.total("duo:worker_refusals_total") == before + 1
    said = [line for line in stage.lead.lines[n_lines:] if not line.startswith(("duo: ", "prompt: ", "tokens: "))]
    assert said == [], "only what the lead itself has to say"
    stage.goes_on()


# What backs say that have joined


def _with(field: int, value: object) -> Callable[[Begin], bytes]:
    """A guess with something in one of its fields that no Guess can hold."""

    def made(begin: Begin) -> bytes:
        values = msgspec.msgpack.decode(messages.encode(guess(begin)))
        values[field] = value
        return msgspec.msgpack.encode(values)

    return made


EPOCH_AT, N_KNOWN_AT, POSITION_AT, TOKEN_AT, _, N_TOKENS_AT = range(2, 8)

LIES: dict[str, tuple[Callable[[Begin], bytes | str | GuessMessage], str]] = {
    "token -1": (_with(TOKEN_AT, -1), "Expected `int` >= 0"),
    "token 2**31": (_with(TOKEN_AT, 2**31), "Expected `int` <= 2147483647"),
    "token 2**64 - 1": (_with(TOKEN_AT, 2**64 - 1), "Expected `int`"),
    "token n_vocab": (lambda begin: guess(begin, token=begin.n_vocab), "there is no token 49152"),
    "token 2**31 - 1": (lambda begin: guess(begin, token=2**31 - 1), "there is no token 2147483647"),
    "token 7.0": (_with(TOKEN_AT, 7.0), "got `float`"),
    "token '7'": (_with(TOKEN_AT, "7"), "got `str`"),
    "token None": (_with(TOKEN_AT, None), "got `None`"),
    "a list of tokens": (_with(TOKEN_AT, [7] * 8), "got `array`"),
    "a confidence that is none": (lambda begin: guess(begin, confidence=math.nan), "a confidence that is no number"),
    "no end of confidence": (lambda begin: guess(begin, confidence=math.inf), "a confidence that is no number"),
    "a time before the beginning": (lambda begin: guess(begin, seconds=-0.001), "a time out of range"),
    "a time that is none": (lambda begin: guess(begin, seconds=math.nan), "a time out of range"),
    "a day": (lambda begin: guess(begin, seconds=86400.0), "a time out of range"),
    "position -1": (_with(POSITION_AT, -1), "Expected `int` >= 0"),
    "n_known -1": (_with(N_KNOWN_AT, -1), "Expected `int` >= 0"),
    "epoch 2**31": (_with(EPOCH_AT, 2**31), "Expected `int` <="),
    "n_tokens -1": (_with(N_TOKENS_AT, -1), "Expected `int` >= 0"),
    "text": (lambda _: "7", "text instead of bytes"),
    "nothing": (lambda _: b"", "Input data was truncated"),
    "garbage": (lambda _: b"\xc1", "not a message of protocol"),
    "half a guess": (lambda begin: messages.encode(guess(begin))[:9], "Input data was truncated"),
    "what a lead says": (lambda begin: messages.encode(End(begin.serial)), "Invalid value 20"),
    "nesting": (lambda _: b"\x93\x03\x01" + b"\x91" * 60_000, "recursion"),
}


@pytest.mark.parametrize("what", LIES)
def test_who_says_what_cannot_be_is_sent_away(stage: Stage, joined: Impostor, begin: Begin, what: str) -> None:
    made, said = LIES[what]
    before = stage.count('duo:worker_drops_total{reason="garbage"}')
    joined.say(made(begin))
    assert joined.sent_away() == TRY_LATER
    stage.lead.wait_for(rf"warning: draft {joined.name} at 127.0.0.1:{joined.port} is sent away: .*{re.escape(said)}")
    assert stage.count('duo:worker_drops_total{reason="garbage"}') == before + 1
    stage.finish()


def test_who_says_hello_twice_is_sent_away(
    stage: Stage, joined: Impostor, begin: Begin, fingerprint: Fingerprint
) -> None:
    before = stage.count('duo:worker_drops_total{reason="garbage"}')
    joined.say(hello(fingerprint))
    assert joined.sent_away() == TRY_LATER
    stage.lead.wait_for(f"{joined.name} at .* is sent away: it says hello twice")
    assert stage.count('duo:worker_drops_total{reason="garbage"}') == before + 1
    stage.finish()


@pytest.mark.parametrize("n", [10**6, messages.MAX_FROM_DRAFT])
def test_a_million_candidates_in_one_message_are_not_read(stage: Stage, joined: Impostor, begin: Begin, n: int) -> None:
    before = stage.total("duo:worker_drops_total")
    joined.say(_with(TOKEN_AT, [7] * n)(begin))
    assert joined.is_cut_off()
    stage.lead.wait_for(f"{joined.name} at .* has gone")
    assert stage.total("duo:worker_drops_total") == before + 1
    stage.finish()


def test_more_values_than_a_guess_has_are_passed_over(stage: Stage, joined: Impostor, begin: Begin) -> None:
    """A later version may have more to say."""
    stale = stage.count(STALE_GUESSES)
    values = msgspec.msgpack.decode(messages.encode(guess(begin)))
    joined.say(msgspec.msgpack.encode([*values, *[7] * 30_000]), guess(begin, serial=begin.serial + 1))
    stage.wait_until(STALE_GUESSES, stale + 1)
    stage.finish()


STALE: dict[str, Callable[[Begin], dict[str, int]]] = {
    "the text before": lambda begin: {"serial": begin.serial - 1},
    "a text to come": lambda begin: {"serial": begin.serial + 1},
    "an epoch to come": lambda begin: {"epoch": begin.epoch + 1},
    "the last of all epochs": lambda _: {"epoch": 2**31 - 1},
    "no text known": lambda _: {"n_known": 0},
    "more known than there is": lambda begin: {"n_known": len(begin.tokens) + 1, "position": len(begin.tokens) + 1},
    "all known": lambda _: {"n_known": 2**31 - 1, "position": 2**31 - 1},
    "the prompt": lambda _: {"position": 0, "token": 0},
    "the prompt, of which nothing is known": lambda _: {"n_known": 0, "position": 0, "token": 0},
    "the prompt's last token": lambda begin: {"position": len(begin.tokens) - 1, "token": 0},
    "a gap": lambda begin: {"position": len(begin.tokens) + 1},
    "the end of the window": lambda begin: {"position": len(begin.tokens) + begin.n_ahead},
    "far beyond it": lambda begin: {"position": len(begin.tokens) + 10**6},
    "the last of all positions": lambda _: {"position": 2**31 - 1},
}


@pytest.mark.parametrize("what", STALE)
def test_a_guess_that_fits_nowhere_is_counted_and_harmless(
    stage: Stage, joined: Impostor, begin: Begin, what: str
) -> None:
    stale = stage.count(STALE_GUESSES)
    joined.say(guess(begin, **STALE[what](begin)))
    stage.wait_until_heard(joined, begin)
    assert stage.count("duo:workers_connected") == 1
    stage.finish()
    assert stage.count("duo:workers_connected") == 1
    stage.wait_until(STALE_GUESSES, stale + 2)


def test_guesses_beyond_the_window_are_not_kept(stage: Stage, joined: Impostor, begin: Begin) -> None:
    stale, n_more = stage.count(STALE_GUESSES), SPARE // 2
    first = len(begin.tokens)
    joined.say(*(guess(begin, position=first + i) for i in range(begin.n_ahead + n_more)))
    stage.wait_until(STALE_GUESSES, stale + n_more)
    stage.finish()
    assert stage.count(STALE_GUESSES) == stale + n_more


def test_nobody_knows_the_text_before_it_is_written(stage: Stage, joined: Impostor, begin: Begin) -> None:
    stale, n = stage.count(STALE_GUESSES), len(begin.tokens)
    joined.say(guess(begin), guess(begin, n_known=n + 1, position=n + 1))
    stage.wait_until_heard(joined, begin)
    stage.finish()
    stage.wait_until(STALE_GUESSES, stale + 2)


def test_the_same_guess_again_is_of_no_use(stage: Stage, joined: Impostor, begin: Begin) -> None:
    stale = stage.count(STALE_GUESSES)
    joined.say(guess(begin), guess(begin), guess(begin, token=8))
    stage.wait_until_heard(joined, begin)
    stage.finish()
    stage.wait_until(STALE_GUESSES, stale + 3)


def test_guesses_after_the_end_are_of_no_use(stage: Stage, joined: Impostor, begin: Begin) -> None:
    joined.say(Unable(begin.serial))
    stage.finish()
    stale = stage.count(STALE_GUESSES)
    joined.say(guess(begin), Alive(begin.serial), Unable(begin.serial), guess(begin, serial=0))
    stage.wait_until(STALE_GUESSES, stale + 2)
    stage.begin()
    assert joined.begin().serial > begin.serial, "it may help with the next text"
    stage.finish()


# Floods


FLOODS: dict[str, Callable[[Begin], Message]] = {
    "signs of life": lambda begin: Alive(begin.serial),
    "signs of life in another text": lambda _: Alive(0),
    "unable": lambda begin: Unable(begin.serial),
    "old epochs": lambda begin: guess(begin, epoch=0),
    "old texts": lambda begin: guess(begin, serial=0),
    "gaps": lambda begin: guess(begin, position=2**31 - 1),
    "the same again": guess,
    "the prompt, word for word": lambda begin: guess(begin, position=0, token=begin.tokens[0]),
    "the prompt, as if it were new": lambda begin: guess(begin, n_known=0, position=0, token=begin.tokens[0]),
}


@pytest.mark.parametrize("what", FLOODS)
def test_who_says_more_than_it_is_asked_for_is_sent_away(
    stage: Stage, joined: Impostor, begin: Begin, what: str
) -> None:
    before, memory = stage.count('duo:worker_drops_total{reason="flood"}'), stage.memory()
    joined.say(*[FLOODS[what](begin)] * 5000)
    joined.say(b"")  # for this it is sent away in any case
    assert joined.sent_away() == TRY_LATER
    stage.lead.wait_for(f"{joined.name} at .* is sent away: it sends more than it is asked for")
    assert stage.count('duo:worker_drops_total{reason="flood"}') == before + 1
    assert stage.memory() - memory < 64 * MIB
    stage.finish()


def test_late_and_right_again_and_again_is_more_than_is_asked_for(
    stage: Stage, joined: Impostor, truth: dict[int, int], begin: Begin
) -> None:
    """While a text is written, each guess is as right as the one before."""
    before, first = stage.count('duo:worker_drops_total{reason="flood"}'), len(begin.tokens)
    stage.go_on()
    while isinstance(message := joined.hear(), Text) and message.position == first:
        pass
    joined.say(*[guess(begin, n_known=first, position=first, token=truth[first])] * 20_000, b"")
    assert joined.sent_away() == TRY_LATER
    stage.lead.wait_for(f"{joined.name} at .* is sent away: it sends more than it is asked for")
    assert stage.count('duo:worker_drops_total{reason="flood"}') == before + 1
    stage.finish()


def test_a_flood_between_two_texts_is_none_the_better(stage: Stage, joined: Impostor) -> None:
    before = stage.count('duo:worker_drops_total{reason="flood"}')
    joined.say(*[Alive(0)] * 5000)
    assert joined.sent_away() == TRY_LATER
    assert stage.count('duo:worker_drops_total{reason="flood"}') == before + 1
    stage.goes_on()


def test_what_may_be_said_beyond_what_is_asked_for(stage: Stage, joined: Impostor, begin: Begin) -> None:
    stale = stage.count(STALE_GUESSES)
    joined.say(*[Alive(begin.serial)] * (SPARE - 1), guess(begin, serial=0))
    stage.wait_until(STALE_GUESSES, stale + 1)
    assert stage.count("duo:workers_connected") == 1
    stage.finish()


def test_large_messages_do_not_pile_up(stage: Stage, joined: Impostor, begin: Begin) -> None:
    memory = stage.memory()
    values = msgspec.msgpack.decode(messages.encode(guess(begin, epoch=0)))
    large = msgspec.msgpack.encode([*values, bytes(60_000)])
    joined.say(*[large] * 2000)
    joined.sent_away()
    assert stage.memory() - memory < 64 * MIB
    stage.finish()


def test_a_name_cannot_pretend_to_be_what_the_lead_says(
    stage: Stage, client: Impostor, fingerprint: Fingerprint
) -> None:
    client.name = "a\x1b[2J\rb\nduo: error: c\u202ed\u2028"
    client.join(fingerprint)
    stage.lead.wait_for(rf"^duo: draft a\?\[2J\?b\?duo: error: c\?d\? at 127.0.0.1:{client.port} has joined$")


def test_pings_whose_answers_nobody_reads_do_not_pile_up(stage: Stage) -> None:
    memory = stage.memory()
    connection = raw_connection(stage.lead.port)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    some = frame(0x9, bytes(125)) * 8192
    connection.settimeout(1.0)
    with suppress(OSError):  # it does not take more, or has closed the connection
        for _ in range(64 * MIB // len(some)):
            connection.sendall(some)
    grown = stage.memory() - memory
    connection.close()
    assert grown < 32 * MIB
    stage.goes_on()


# Backs that know the text


def test_right_guesses_are_taken(stage: Stage, joined: Impostor, truth: dict[int, int], long_begin: Begin) -> None:
    """Else the following would prove nothing."""
    text = stage.go_on()
    joined.draft(long_begin, truth.get)
    stage.finish()
    timings = text.events[-1]["timings"]
    assert timings["draft_n_accepted"] > 0


@pytest.mark.parametrize("seconds", [0.0, 1e-300, 3600.0])
def test_lies_about_time_change_the_speed_alone(
    stage: Stage, joined: Impostor, truth: dict[int, int], long_begin: Begin, seconds: float
) -> None:
    begin = long_begin
    for n_tokens in (1, 0, 2**31 - 1):
        stage.go_on()
        joined.draft(begin, truth.get, seconds=seconds, n_tokens=n_tokens)
        stage.finish()
        stage.begin(LONG)
        begin = joined.begin()


@pytest.mark.parametrize("confidence", [1e308, -1e308, 0.0])
def test_wrong_guesses_do_nothing_however_sure_they_are(
    stage: Stage, joined: Impostor, truth: dict[int, int], long_begin: Begin, confidence: float
) -> None:
    text = stage.go_on()
    joined.draft(long_begin, lambda position: truth.get(position, 0) ^ 1, confidence=confidence)
    stage.finish()
    assert text.events[-1]["timings"].get("draft_n_accepted", 0) == 0


@pytest.mark.parametrize("every", [2, 3, 7])
def test_guesses_that_are_right_until_they_are_wrong(
    stage: Stage, joined: Impostor, truth: dict[int, int], long_begin: Begin, every: int
) -> None:
    """The worst that a draft can do: what it says is believed."""

    def token(position: int) -> int | None:
        right = truth.get(position)
        return right if right is None or position % every else right ^ 1

    text = stage.go_on()
    joined.draft(long_begin, token, confidence=50.0)
    stage.finish()
    timings = text.events[-1]["timings"]
    assert timings["draft_n"] > timings["draft_n_accepted"] > 0


def test_after_all_that_an_honest_back_helps(stage: Stage, demo_pair: tuple[Path, Path]) -> None:
    accepted = stage.count("spec_decode_num_accepted_tokens_total")
    with BackProcess(demo_pair[1], stage.lead.port, "--token", TOKEN) as honest:
        honest.wait_for("joined the lead")
        for _ in range(20):
            assert stage.lead.write(PROMPT, LONG) == stage.plain[LONG]
            if stage.count("spec_decode_num_accepted_tokens_total") > accepted:
                break
    assert stage.count("spec_decode_num_accepted_tokens_total") > accepted


# Silence


@pytest.fixture(scope="module")
def hasty(demo_pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A lead that waits for nobody for long."""
    with LeadProcess(demo_pair[0], *OPTIONS, before=HASTY) as lead:
        yield Stage(lead, tmp_path_factory.mktemp("hold") / "hold")


def test_who_says_nothing_at_all_is_refused(hasty: Stage) -> None:
    with Impostor(hasty.lead.port) as silent:
        assert silent.sent_away() == TRY_LATER
        hasty.lead.wait_for(rf"refused a draft at 127.0.0.1:{silent.port}: it did not say who it is")
    assert hasty.count('duo:worker_refusals_total{reason="silence"}') == 1


def test_who_falls_silent_is_relieved(hasty: Stage, fingerprint: Fingerprint, demo_pair: tuple[Path, Path]) -> None:
    with Impostor(hasty.lead.port) as silent:
        silent.join(fingerprint)
        with BackProcess(demo_pair[1], hasty.lead.port, "--token", TOKEN) as honest:
            honest.wait_for("joined the lead")
            relieved = f"draft {silent.name} at .* does not answer"
            taken_over = r"draft smollm2-\S+ at .* works"
            accepted = 0.0
            for _ in range(20):
                assert hasty.lead.write(PROMPT, LONG) == hasty.plain[LONG]
                said = "\n".join(hasty.lead.lines)
                accepted = hasty.count("spec_decode_num_accepted_tokens_total")
                if re.search(relieved, said) and re.search(taken_over, said) and accepted:
                    break
            hasty.lead.wait_for(relieved)
            hasty.lead.wait_for(taken_over)
            assert accepted > 0
            assert hasty.count("duo:worker_stalls_total") >= 1
            assert hasty.count("duo:workers_connected") == 2, "it may take over again"


def test_who_is_silent_and_alone_keeps_nobody_from_writing(hasty: Stage, fingerprint: Fingerprint) -> None:
    hasty.wait_until("duo:workers_connected", 0)
    before = hasty.count("duo:worker_stalls_total")
    with Impostor(hasty.lead.port) as silent:
        silent.join(fingerprint)
        for _ in range(20):
            assert hasty.lead.write(PROMPT, LONG) == hasty.plain[LONG]
            if hasty.count("duo:worker_stalls_total") > before:
                break
        assert hasty.count("duo:worker_stalls_total") > before


def test_who_goes_as_soon_as_it_has_said_hello_leaves_nothing_behind(hasty: Stage, fingerprint: Fingerprint) -> None:
    for _ in range(3):
        connection = raw_connection(hasty.lead.port)
        connection.sendall(frame(0x2, messages.encode(hello(fingerprint))) + frame(0x8, struct.pack(">H", 1000)))
        wait_for_end(connection)
    hasty.goes_on()
    hasty.wait_until("duo:workers_connected", 0)


# Bytes on a connection


def raw_connection(port: int) -> socket.socket:
    """A connection that has become a WebSocket."""
    connection = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
    key = base64.b64encode(os.urandom(16)).decode()
    head = [
        f"GET {messages.ROUTE} HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {key}",
        "Sec-WebSocket-Version: 13",
    ]
    connection.sendall("\r\n".join([*head, "", ""]).encode())
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += connection.recv(4096)
    assert answer.startswith(b"HTTP/1.1 101 "), answer
    return connection


def frame(opcode: int, data: bytes) -> bytes:
    """One whole frame, masked with zeros."""
    length = bytes([0x80 | len(data)]) if len(data) < 126 else struct.pack(">BH", 0xFE, len(data))
    return bytes([0x80 | opcode]) + length + bytes(4) + data


def wait_for_end(connection: socket.socket) -> None:
    """Read until the other side has closed it."""
    with connection, suppress(ConnectionError):
        while connection.recv(4096):
            pass
