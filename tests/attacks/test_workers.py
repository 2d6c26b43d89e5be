"""Forty hostile hellos and forty hostile workers: each is refused, disconnected or harmless.

After each, a worker that nothing is wrong with may join, and the text is the target's own.
"""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from duo.remote import messages
from duo.remote.connection import SPARE
from duo.remote.messages import (
    TRY_LATER,
    Alive,
    Begin,
    CandidateMessage,
    End,
    Hello,
    Message,
    Refused,
    Text,
    Unable,
    Welcome,
)
from tests.fakes import N_VOCAB
from tests.unit.engine.helpers import until
from tests.unit.remote.workers import FINGERPRINT, TOKEN, ScriptedWorker, Stage, candidate, hello, prepared


def packed(*values: Any) -> bytes:
    return msgspec.msgpack.encode(values)


def assert_unharmed(stage: Stage) -> None:
    """Another worker may join, and take part; `stage` compares the text."""
    until(lambda: not stage.drafts.connected)
    stage.finish()
    n_joined = stage.count("joined")
    with stage.worker() as worker:
        worker.join()
        assert stage.count("joined") == n_joined + 1
        stage.begin()
        asked = worker.begin()
        worker.say(candidate(asked))
        stage.finish()


# Hellos

STRANGERS: dict[str, tuple[Hello | bytes, str, str]] = {
    "wrong token": (hello(token="Secret"), "token", "wrong"),
    "no token": (hello(token=""), "token", "missing"),
    "token and NUL": (hello(token=TOKEN + "\0"), "token", "wrong"),
    "token and more": (hello(token=TOKEN + " "), "token", "wrong"),
    "token of 256": (hello(token="x" * 256), "token", "wrong"),
    "token not ASCII": (hello(token="sécret"), "token", "wrong"),
    "older version": (
        hello(version=0),
        "version",
        "protocol 0, the lead 3: update duo on the machine of the draft worker",
    ),
    "last version": (
        hello(version=2),
        "version",
        "protocol 2, the lead 3: update duo on the machine of the draft worker",
    ),
    "later version": (hello(version=2**40), "version", "update duo on the machine of the lead"),
    "negative version": (hello(version=-1), "version", "protocol -1"),
    "largest version": (hello(version=2**63 - 1), "version", "machine of the lead"),
    "other fields": (b"\x93\x01\x04\xc0", "version", "protocol 4"),
    "version alone": (b"\x92\x01\xff", "version", "protocol -1"),
    "vocabulary type": (hello(vocabulary=replace(FINGERPRINT, vocab_type=99)), "vocabulary", "type"),
    "vocabulary size": (hello(vocabulary=replace(FINGERPRINT, n_vocab=N_VOCAB + 129)), "vocabulary", "the draft's 146"),
    "no vocabulary": (hello(vocabulary=replace(FINGERPRINT, n_vocab=0)), "vocabulary", "differ"),
    "no hashes": (hello(vocabulary=replace(FINGERPRINT, hashes=())), "vocabulary", "differ"),
    "other hashes": (hello(vocabulary=replace(FINGERPRINT, hashes=(b"x",))), "vocabulary", "differ"),
    "other beginning": (hello(vocabulary=replace(FINGERPRINT, bos=3)), "vocabulary", "BOS"),
}
NONE = packed(1, messages.VERSION)
GARBAGE: dict[str, bytes] = {
    "nothing": b"",
    "no MessagePack": b"\xc1\xc1\xc1",
    "Alive": messages.encode(Alive(1)),
    "Welcome": messages.encode(Welcome(1)),
    "Refused": messages.encode(Refused("x")),
    "a candidate": messages.encode(CandidateMessage(1, 1, 1, 1, 1, 1.0, 1, 0.1)),
    "an order": messages.encode(Text(1, 1, 1, [], True)),
    "a number": packed(1)[1:],
    "a text": msgspec.msgpack.encode("hello"),
    "a map": msgspec.msgpack.encode({"version": messages.VERSION}),
    "no tag": packed(),
    "tag of nothing": packed(99, messages.VERSION),
    "tag as text": packed("1", messages.VERSION),
    "half of one": messages.encode(hello())[:-3],
    "one and more": messages.encode(hello()) + b"\0",
    "no fields": NONE,
    "token of bytes": packed(1, messages.VERSION, TOKEN.encode(), "m", None),
    "token of 257": packed(1, messages.VERSION, "x" * 257, "m", None),
    "no text": packed(1, messages.VERSION)[:2] + b"\xa2\xff\xfe\xa1m\xc0",
    "a name of 1 MB": packed(1, messages.VERSION, TOKEN, "m" * 60_000, None),
    "no fingerprint": packed(1, messages.VERSION, TOKEN, "m", None),
    "a fingerprint of numbers": packed(1, messages.VERSION, TOKEN, "m", 5 * [2**40]),
    "deep": b"\x91" * 60_000,
    "a list of 2**32": b"\xdd\xff\xff\xff\xff",
    "an extension": b"\xc7\x01\x05\x00",
}  # fmt: skip


def test_that_there_are_forty() -> None:
    assert len(STRANGERS) + len(GARBAGE) >= 40
    assert len(LIES) + len(FLOODS) + len(STALE) >= 40


@pytest.mark.parametrize("name", STRANGERS)
def test_a_worker_that_cannot_take_part_is_told_why(
    stage: Stage, stranger: ScriptedWorker, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    said, reason, why = STRANGERS[name]
    stranger.say(said)
    refused = stranger.hear()
    assert isinstance(refused, Refused)
    assert why in refused.reason
    assert TOKEN not in refused.reason
    assert stranger.close_code() == TRY_LATER
    assert stage.drafts.counts == {f"refused: {reason}": 1}
    assert re.search(rf"{stranger.peer}: .*{re.escape(why)}", caplog.text)
    assert_unharmed(stage)


@pytest.mark.parametrize("name", GARBAGE)
def test_a_first_message_that_is_no_hello_is_refused(stage: Stage, stranger: ScriptedWorker, name: str) -> None:
    stranger.say(GARBAGE[name])
    assert stranger.close_code() == TRY_LATER
    assert stage.drafts.counts == {"refused: garbage": 1}
    assert_unharmed(stage)


# Workers that have joined

MOST = 2**31 - 1
LIES: dict[str, tuple[Callable[[Begin], bytes | Message], str]] = {
    "token -1": (lambda begin: packed(2, 1, 0, 3, 3, -1, 9.0, 1, 0.001), "Expected `int` >= 0"),
    "token n_vocab": (lambda begin: candidate(begin, token=begin.n_vocab), f"token {N_VOCAB} is not in the target"),
    "token 2**31 - 1": (lambda begin: candidate(begin, token=MOST), f"token {MOST} is not in the target"),
    "token 2**31": (lambda begin: candidate(begin, token=MOST + 1), "Expected `int` <"),
    "token 2**64": (lambda begin: packed(2, 1, 0, 3, 3, 2**64 - 1, 9.0, 1, 0.1), "Expected `int`"),
    "token 7.5": (lambda begin: packed(2, begin.serial, begin.epoch, 3, 3, 7.5, 9.0, 1, 0.1), "Expected `int |"),
    "token as text": (lambda begin: packed(2, begin.serial, begin.epoch, 3, 3, "7", 9.0, 1, 0.1), "Expected `int |"),
    "prepared n_vocab": (lambda begin: prepared(begin, token=begin.n_vocab), f"token {N_VOCAB} is not in the target"),
    "prepared -1": (lambda begin: prepared(begin, right=-1), "Expected `int` >= 0"),
    "nine prepared": (lambda begin: candidate(begin, prepared=9 * prepared(begin).prepared), "length <= 8"),
    "ten sequences": (lambda begin: candidate(begin, n_sequences=10), "Expected `int` <= 9"),
    "nine alternatives": (lambda begin: candidate(begin, alternatives=tuple(range(9))), "length <= 8"),
    "times of none": (lambda _: packed(5, {0: 0.1}), "Expected `int` >= 1"),
    "times of 0": (lambda _: packed(5, {1: 0.0}), "Expected `float` > 0"),
    "NaN confidence": (lambda begin: candidate(begin, confidence=math.nan), "Expected `float` >= -1.79"),
    "infinite confidence": (lambda begin: candidate(begin, confidence=math.inf), "Expected `float` <="),
    "a day": (lambda begin: candidate(begin, seconds=86400.0), "Expected `float` <= 3600"),
    "time back": (lambda begin: candidate(begin, seconds=-1.0), "Expected `float` >= 0"),
    "NaN seconds": (lambda begin: candidate(begin, seconds=math.nan), "Expected `float`"),
    "position -1": (lambda begin: candidate(begin, position=-1), "Expected `int` >= 0"),
    "epoch -1": (lambda begin: candidate(begin, epoch=-1), "Expected `int` >= 0"),
    "serial 2**40": (lambda begin: candidate(begin, serial=2**40), "Expected `int` <"),
    "fewer fields": (lambda begin: packed(2, begin.serial, begin.epoch), "length"),
    "empty": (lambda _: b"", "Input data was truncated"),
    "no MessagePack": (lambda _: b"\xc1", "not a message"),
    "one and more": (lambda begin: messages.encode(candidate(begin)) + b"\0", "trailing"),
    "deep": (lambda _: b"\x91" * 60_000, "not a message"),
    "message of a lead": (lambda begin: messages.encode(End(begin.serial)), "Invalid value 20"),
    "order of a lead": (lambda begin: messages.encode(Text(begin.serial, 0, 0, [], True)), "Invalid value 19"),
    "second hello": (lambda _: hello(), "a second Hello"),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_an_invalid_message_ends_the_connection(
    stage: Stage, joined: ScriptedWorker, begin: Begin, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    made, said = LIES[name]
    joined.say(made(begin))
    assert joined.close_code() == TRY_LATER
    assert stage.count("dropped: garbage") == 1
    assert re.search(rf"draft back at {joined.peer}: .*{re.escape(said)}", caplog.text)
    assert_unharmed(stage)


FLOODS: dict[str, Callable[[Begin], Message]] = {
    "Alive of another text": lambda _: Alive(0),
    "Alive of a later text": lambda _: Alive(MOST),
    "Alive": lambda begin: Alive(begin.serial),
    "Unable": lambda begin: Unable(begin.serial),
    "Unable of another text": lambda begin: Unable(begin.serial + 1),
    "gap": lambda begin: candidate(begin, position=MOST),
    "same candidate": candidate,
    "candidate of another text": lambda begin: candidate(begin, serial=0),
}


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_ends_the_connection(stage: Stage, joined: ScriptedWorker, begin: Begin, name: str) -> None:
    joined.say(*[FLOODS[name](begin)] * (4 * SPARE))  # each of a few orders grants that many and n_ahead more
    assert joined.close_code() == TRY_LATER
    assert stage.count("dropped: flood") == 1
    assert_unharmed(stage)


STALE: dict[str, Callable[[Begin], Message]] = {
    "an earlier text": lambda begin: candidate(begin, serial=begin.serial - 1),
    "a later text": lambda begin: candidate(begin, serial=MOST),
    "a later epoch": lambda begin: candidate(begin, epoch=begin.epoch + 1),
    "the last epoch": lambda begin: candidate(begin, epoch=MOST),
    "the first position": lambda begin: candidate(begin, position=0, token=0),
    "a later position": lambda begin: candidate(begin, position=len(begin.tokens) + 1),
    "the last position": lambda begin: candidate(begin, position=MOST),
    "nothing known": lambda begin: candidate(begin, n_known=0),
    "more known": lambda begin: candidate(begin, n_known=MOST),
}


@pytest.mark.parametrize("name", STALE)
def test_a_candidate_that_does_not_fit_is_dropped(
    stage: Stage, joined: ScriptedWorker, begin: Begin, name: str
) -> None:
    joined.say(STALE[name](begin))
    stage.wait_for("stale", 1)
    stage.finish()
    assert stage.n_accepted == 0
    assert len(stage.drafts.connected) == 1
    joined.leave()
    assert_unharmed(stage)
