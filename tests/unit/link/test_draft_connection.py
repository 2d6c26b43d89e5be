"""Hostile and faulty backs: each is refused, disconnected or harmless, and the text is the target's own."""

import math
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace

import msgspec
import pytest

from duo.link import messages
from duo.link.draft_connection import SPARE, Admission
from duo.link.messages import TRY_LATER, Alive, Begin, End, Hello, Message, Refused, Unable, Welcome
from duo.link.remote_drafts import MAX_DRAFTS
from tests.fakes import N_VOCAB
from tests.unit.engine.helpers import until
from tests.unit.link.backs import FINGERPRINT, TOKEN, Back, Stage, candidate, hello


@pytest.fixture
def stranger(stage: Stage) -> Iterator[Back]:
    """A client that has said nothing yet."""
    with stage.back() as back:
        yield back


@pytest.fixture
def joined(stranger: Back) -> Back:
    return stranger.join()


@pytest.fixture
def begin(stage: Stage, joined: Back) -> Begin:
    """What a back is asked, while the target is held."""
    stage.begin()
    return joined.begin()


STRANGERS: dict[str, tuple[Hello | bytes, str, str]] = {
    "wrong token": (hello(token="Secret"), "token", "wrong"),
    "no token": (hello(token=""), "token", "missing"),
    "token and NUL": (hello(token=TOKEN + "\0"), "token", "wrong"),
    "older version": (hello(version=0), "version", "protocol 0, the lead 2"),
    "later version": (hello(version=2**40), "version", "the same version"),
    "other fields": (b"\x93\x01\x03\xc0", "version", "protocol 3"),
    "version alone": (b"\x92\x01\xff", "version", "protocol -1"),
    "vocabulary type": (hello(vocabulary=replace(FINGERPRINT, vocab_type=99)), "vocabulary", "type"),
    "vocabulary size": (hello(vocabulary=replace(FINGERPRINT, n_vocab=N_VOCAB + 129)), "vocabulary", "the draft's 146"),
    "no hashes": (hello(vocabulary=replace(FINGERPRINT, hashes=())), "vocabulary", "differ"),
}


@pytest.mark.parametrize("name", STRANGERS)
def test_a_back_that_cannot_take_part_is_told_why(
    stage: Stage, stranger: Back, caplog: pytest.LogCaptureFixture, name: str
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


@pytest.mark.parametrize(
    ("admission", "said"), [(Admission(None), "token"), (Admission(), None), (Admission("ü" * 256), "token")]
)
def test_which_tokens_are_needed(admission: Admission, said: str | None) -> None:
    with Stage(admission) as stage, stage.back() as back:
        back.say(hello())
        message = back.hear()
    assert isinstance(message, Welcome) if said is None else isinstance(message, Refused) and said in message.reason


@pytest.mark.parametrize(
    "said", [b"", b"\xc1\xc1\xc1", messages.encode(Alive(1)), messages.encode(Welcome(1))], ids=bytes.hex
)
def test_a_first_message_that_is_no_hello_is_refused(stage: Stage, stranger: Back, said: bytes) -> None:
    stranger.say(said)
    assert stranger.close_code() == TRY_LATER
    assert stage.drafts.counts == {"refused: garbage": 1}


def test_a_back_that_says_nothing_is_refused() -> None:
    with Stage(Admission(TOKEN, hello_s=0.01)) as stage, stage.back() as silent, stage.back() as leaving:
        leaving.leave()
        assert silent.close_code() == TRY_LATER
        stage.wait_for("refused: silence", 2)


def test_the_number_of_backs_is_limited(stage: Stage) -> None:
    with ExitStack() as stack:
        for _ in range(MAX_DRAFTS):
            stack.enter_context(stage.back()).join()
        for _ in range(2):
            late = stack.enter_context(stage.back())
            late.say(hello())
            assert late.close_code() == TRY_LATER
        assert stage.count("refused: too many") == 2
        assert len(stage.drafts.connected) == MAX_DRAFTS
    until(lambda: not stage.drafts.connected)
    assert stage.count("dropped: left") == MAX_DRAFTS


def test_a_name_cannot_imitate_the_log(stage: Stage, stranger: Back, caplog: pytest.LogCaptureFixture) -> None:
    stranger.say(hello(model="a\x1b[2J\rb\nduo: error: c\u202ed\u2028"))
    until(lambda: "draft a?[2J?b?duo: error: c?d? at 127.0.0.1:" in caplog.text)


LIES: dict[str, tuple[Callable[[Begin], bytes | Message], str]] = {
    "token -1": (lambda begin: msgspec.msgpack.encode([2, 1, 0, 3, 3, -1, 9.0, 1, 0.001]), "Expected `int` >= 0"),
    "token n_vocab": (lambda begin: candidate(begin, token=begin.n_vocab), f"token {N_VOCAB} is not in the target"),
    "token 2**31 - 1": (lambda begin: candidate(begin, token=2**31 - 1), "token 2147483647 is not in the target"),
    "NaN confidence": (lambda begin: candidate(begin, confidence=math.nan), "Expected `float` >= -1.79"),
    "a day": (lambda begin: candidate(begin, seconds=86400.0), "Expected `float` <= 3600"),
    "empty": (lambda _: b"", "Input data was truncated"),
    "message of a lead": (lambda begin: messages.encode(End(begin.serial)), "Invalid value 20"),
    "second hello": (lambda _: hello(), "a second Hello"),
}


@pytest.mark.parametrize("name", LIES)
def test_an_invalid_message_ends_the_connection(
    stage: Stage, joined: Back, begin: Begin, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    made, said = LIES[name]
    joined.say(made(begin))
    assert joined.close_code() == TRY_LATER
    assert stage.count("dropped: garbage") == 1
    assert re.search(rf"draft back at {joined.peer}: .*{re.escape(said)}", caplog.text)
    assert not stage.drafts.connected


FLOODS: dict[str, Callable[[Begin], Message]] = {
    "Alive of another text": lambda _: Alive(0),
    "Unable": lambda begin: Unable(begin.serial),
    "gap": lambda begin: candidate(begin, position=2**31 - 1),
    "same candidate": candidate,
}


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_ends_the_connection(stage: Stage, joined: Back, begin: Begin, name: str) -> None:
    joined.say(*[FLOODS[name](begin)] * (4 * SPARE))  # each of a few orders grants that many and n_ahead more
    assert joined.close_code() == TRY_LATER
    assert stage.count("dropped: flood") == 1


def test_a_fault_of_the_lead_is_logged_and_ends_only_the_connection(
    stage: Stage, joined: Back, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr("duo.link.draft_connection.Begin")
    stage.begin()
    assert joined.close_code() == TRY_LATER
    assert "internal error while serving the remote draft 127.0.0.1:" in caplog.text
    assert "NameError" in caplog.text
    assert not stage.drafts.connected


def test_candidates_that_do_not_fit_are_stale(stage: Stage, joined: Back, begin: Begin) -> None:
    n = len(begin.tokens)
    of_other_texts = [{"serial": begin.serial - 1}, {"serial": begin.serial + 1}, {"epoch": begin.epoch + 1}]
    of_other_places = [{"position": 0, "token": 0}, {"position": n + 1}, {"position": 2**31 - 1}]
    of_others = [*of_other_texts, *of_other_places, {"n_known": 0}]
    for stale in of_others:
        joined.say(candidate(begin, **stale))
    stage.wait_for("stale", len(of_others))
    stage.finish()
    assert stage.n_accepted == 0
    assert len(stage.drafts.connected) == 1


def test_a_candidate_builds_on_accepted_tokens_only(stage: Stage, joined: Back, begin: Begin) -> None:
    n = len(begin.tokens)
    joined.say(candidate(begin), candidate(begin, n_known=n + 1, position=n + 1))
    stage.wait_for("stale", 1)
    stage.finish()


def test_a_back_that_is_unable_may_draft_in_the_next_text(stage: Stage, joined: Back, begin: Begin) -> None:
    joined.say(Unable(begin.serial))
    until(lambda: stage.drafts.choose(has_other=False) is None)
    stage.finish()
    joined.say(candidate(begin), Alive(begin.serial), Unable(begin.serial), candidate(begin, serial=0))
    stage.wait_for("stale", 2)
    stage.begin()
    assert joined.begin().serial > begin.serial
