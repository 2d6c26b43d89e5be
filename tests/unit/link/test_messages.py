"""Whatever bytes come, they are a message with every value in its range, or they are refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duo.config import SAMPLERS, SamplingConfig
from duo.errors import LinkError
from duo.link import messages
from duo.link.messages import Alive, Begin, End, GuessMessage, Hello, Message, Refused, Text, Unable, Welcome

Parse = Callable[[bytes | str], Message]

MOST = 2**31 - 1
FROM_DRAFT, FROM_LEAD = (Hello, GuessMessage, Alive, Unable), (Welcome, Refused, Begin, Text, End)


# What a message may hold


def is_number(value: object) -> bool:
    return type(value) is int and 0 <= value <= MOST


def is_word(value: object) -> bool:
    return isinstance(value, str) and len(value) <= 256


def is_list_of_numbers(value: object) -> bool:
    return isinstance(value, list) and all(map(is_number, value))


def is_any_int(value: object) -> bool:
    return type(value) is int


def is_time(value: object) -> bool:
    return isinstance(value, float) and 0 <= value <= 3600


def is_finite(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value)


def is_sampling(value: object) -> bool:
    assert isinstance(value, SamplingConfig)
    assert replace(value) == value, "it checks itself when it is made"
    assert set(value.samplers) <= set(SAMPLERS)
    return all(type(token) is int and not math.isnan(bias) for token, bias in value.logit_bias)


def is_blocks(value: object) -> bool:
    return isinstance(value, tuple) and len(value) <= 4096 and all(isinstance(block, bytes) for block in value)


def is_tail(value: object) -> bool:
    return isinstance(value, bytes) and len(value) <= 8192


def is_text(value: object) -> bool:
    return isinstance(value, str)


def is_flag(value: object) -> bool:
    return isinstance(value, bool)


RANGES: dict[type[Message], dict[str, Callable[[object], bool]]] = {
    Hello: {
        "version": is_any_int,
        "token": is_word,
        "model": is_word,
        "vocab_type": is_any_int,
        "n_vocab": is_number,
        "bos": is_any_int,
        "eos": is_any_int,
        "blocks": is_blocks,
        "tail": is_tail,
    },
    GuessMessage: {
        "serial": is_number,
        "epoch": is_number,
        "n_known": is_number,
        "position": is_number,
        "token": is_number,
        "confidence": is_finite,
        "n_tokens": is_number,
        "seconds": is_time,
    },
    Alive: {"serial": is_number},
    Unable: {"serial": is_number},
    Welcome: {"n_ctx": is_number},
    Refused: {"reason": is_text},
    Begin: {
        "serial": is_number,
        "n_vocab": is_number,
        "n_ahead": is_number,
        "sampling": is_sampling,
        "banned": is_list_of_numbers,
        "epoch": is_number,
        "tokens": is_list_of_numbers,
        "may_draft": is_flag,
    },
    Text: {
        "serial": is_number,
        "epoch": is_number,
        "position": is_number,
        "tokens": is_list_of_numbers,
        "may_draft": is_flag,
    },
    End: {"serial": is_number},
}


def understood(parse: Parse, data: bytes) -> Message | None:
    """What is understood, with every value in its range; None if it is refused. Anything else fails the test."""
    try:
        message = parse(data)
    except LinkError:
        return None
    ranges = RANGES[type(message)]
    assert set(ranges) == set(message.__struct_fields__)
    for name, in_range in ranges.items():
        assert in_range(getattr(message, name)), (name, message)
    return message


# Messages that are right

numbers = st.integers(0, MOST)
words = st.text(max_size=256)
ids = st.integers(-(2**31), MOST)
tokens = st.lists(numbers, max_size=20)
some_bytes = st.binary(max_size=40)
finite = st.floats(allow_nan=False, allow_infinity=False)
times = st.floats(0, 3600)
shares = st.floats(0, 1)
serials = (Alive, Unable, End)

samplings = st.builds(
    SamplingConfig,
    temp=st.floats(0, 1e6),
    top_k=st.integers(0, 2**31),
    top_p=shares,
    min_p=shares,
    typical=shares,
    repeat_penalty=st.floats(0.01, 100),
    repeat_last_n=st.integers(0, 2**31),
    presence_penalty=finite,
    frequency_penalty=finite,
    logit_bias=st.lists(st.tuples(numbers, st.floats(allow_nan=False)), max_size=3).map(tuple),
    samplers=st.permutations(SAMPLERS).map(tuple),
    seed=st.integers(0, 2**63 - 1),
)
hellos = st.builds(Hello, ids, words, words, ids, numbers, ids, ids, st.lists(some_bytes).map(tuple), some_bytes)
guesses = st.builds(GuessMessage, numbers, numbers, numbers, numbers, numbers, finite, numbers, times)
begins = st.builds(Begin, numbers, numbers, numbers, samplings, tokens, numbers, tokens, st.booleans())
texts = st.builds(Text, numbers, numbers, numbers, tokens, st.booleans())

of_drafts = st.one_of(hellos, guesses, st.builds(Alive, numbers), st.builds(Unable, numbers))
of_leads = st.one_of(st.builds(Welcome, numbers), st.builds(Refused, st.text()), begins, texts, st.builds(End, numbers))
SIDES = [
    pytest.param(messages.from_draft, of_drafts, id="draft"),
    pytest.param(messages.from_lead, of_leads, id="lead"),
]
either = pytest.mark.parametrize(("parse", "spoken"), SIDES)


@either
@given(data=st.data())
def test_what_was_said_is_what_is_understood(
    parse: Parse, spoken: st.SearchStrategy[Message], data: st.DataObject
) -> None:
    said = data.draw(spoken)
    assert understood(parse, messages.encode(said)) == said


@pytest.mark.parametrize("kind", FROM_DRAFT + FROM_LEAD)
@given(data=st.data())
def test_nobody_is_understood_to_say_what_is_the_other_sides_to_say(kind: type[Message], data: st.DataObject) -> None:
    said = data.draw(of_drafts if kind in FROM_DRAFT else of_leads)
    assert understood(messages.from_lead if kind in FROM_DRAFT else messages.from_draft, messages.encode(said)) is None


# Bytes that are not

ODD_NUMBERS = (-1, -(2**31), -(2**63), 2**31, 2**32, 2**63, 2**64 - 1, 0, 1, MOST)
ODD_FLOATS = (math.nan, math.inf, -math.inf, -0.0, -1.0, 1e308, 5e-324, 3600.0, 3600.1, 1.0)
odd_things = st.one_of(
    st.sampled_from(ODD_NUMBERS),
    st.sampled_from(ODD_FLOATS),
    st.sampled_from([None, True, False, "", "7", "x" * 257, b"", b"x" * 8193, [], {}, [[-1, 1.0]], [[1, math.nan]]]),
    st.sampled_from([{"temp": math.nan}, {"top_p": 2}, {"samplers": ["best"]}, {"logit_bias": [[1, math.nan]]}]),
    st.dictionaries(st.sampled_from(SamplingConfig.__slots__), st.sampled_from([*ODD_NUMBERS, *ODD_FLOATS, "x", []])),
)
nested = st.recursive(
    odd_things,
    lambda inner: st.one_of(st.lists(inner, max_size=12), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=30,
)


@either
@given(data=st.binary(max_size=200))
def test_random_bytes(parse: Parse, spoken: object, data: bytes) -> None:
    understood(parse, data)


@either
@given(tag=st.integers(0, 21), rest=st.binary(max_size=100), n=st.integers(0, 15))
def test_random_bytes_after_a_right_beginning(parse: Parse, spoken: object, tag: int, rest: bytes, n: int) -> None:
    understood(parse, bytes([0x90 + n, tag]) + rest)


@either
@given(data=st.data())
def test_a_message_that_was_cut_off_is_refused(
    parse: Parse, spoken: st.SearchStrategy[Message], data: st.DataObject
) -> None:
    whole = messages.encode(data.draw(spoken))
    assert understood(parse, whole[: data.draw(st.integers(0, len(whole) - 1))]) is None


@either
@given(data=st.data())
def test_a_message_with_spoilt_bytes(parse: Parse, spoken: st.SearchStrategy[Message], data: st.DataObject) -> None:
    spoilt = bytearray(messages.encode(data.draw(spoken)))
    for _ in range(data.draw(st.integers(1, 3))):
        spoilt[data.draw(st.integers(0, len(spoilt) - 1))] = data.draw(st.integers(0, 255))
    at = data.draw(st.integers(0, len(spoilt)))
    spoilt[at:at] = data.draw(st.binary(max_size=3))
    understood(parse, bytes(spoilt))


@either
@given(data=st.data())
def test_a_message_with_an_odd_value(parse: Parse, spoken: st.SearchStrategy[Message], data: st.DataObject) -> None:
    values = msgspec.msgpack.decode(messages.encode(data.draw(spoken)))
    values[data.draw(st.integers(0, len(values) - 1))] = data.draw(st.one_of(odd_things, nested))
    understood(parse, msgspec.msgpack.encode(values))


@either
@given(values=st.one_of(nested, st.tuples(st.sampled_from([1, 2, 3, 4, 16, 17, 18, 19, 20]), nested, nested)))
def test_nested_garbage(parse: Parse, spoken: object, values: Any) -> None:
    understood(parse, msgspec.msgpack.encode(values))


@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa1a", b"\x81\x91", b"\xdc\x00\x01"], ids=bytes.hex)
@pytest.mark.parametrize("parse", [messages.from_draft, messages.from_lead])
def test_nesting_without_end(parse: Parse, opening: bytes) -> None:
    deep = opening * (60_000 // len(opening))
    for data in (
        deep,
        b"\x9a\x02\x01\x01\x01\x01\x01\x01\x01\x01" + deep,
        b"\x93\x03\x01" + deep,
        b"\x93\x14\x01" + deep,
    ):
        assert understood(parse, data) is None


@pytest.mark.parametrize("length", [b"\xdd", b"\xdf", b"\xc6", b"\xdb", b"\xc9"], ids=bytes.hex)
def test_four_billion_values_are_announced_and_do_not_come(length: bytes) -> None:
    for start in (
        b"",
        b"\x9a\x01\x01\xa0\xa0\x01\x02\x03\x04",
        b"\x9a\x01\x01\xa0\xa0\x01\x02\x03\x04\x90",
        b"\x93\x03\x01",
    ):
        assert understood(messages.from_draft, start + length + b"\xff" * 4) is None
    for start in (
        b"",
        b"\x96\x13\x01\x01\x01",
        b"\x92\x11",
        b"\x99\x12\x01\x01\x01\x80\x90\x01",
        b"\x99\x12\x01\x01\x01",
    ):
        assert understood(messages.from_lead, start + length + b"\xff" * 4) is None


@given(sampling=st.dictionaries(st.sampled_from(SamplingConfig.__slots__), odd_things, max_size=3))
def test_a_begin_with_odd_sampling(sampling: dict[str, object]) -> None:
    understood(messages.from_lead, begin_with(sampling))


def test_a_begin_with_a_bias_that_is_no_number_is_refused() -> None:
    assert isinstance(understood(messages.from_lead, begin_with({"logit_bias": [[7, -math.inf]]})), Begin)
    assert understood(messages.from_lead, begin_with({"logit_bias": [[7, math.nan]]})) is None


def begin_with(sampling: dict[str, object]) -> bytes:
    return msgspec.msgpack.encode([18, 1, 2, 3, sampling, [], 4, [5], True])


# One value at a time

HELLO = (1, 1, "secret", "name", 2, 1000, 1, 2, [bytes(8)], bytes(4000))
VERSION, SECRET, MODEL, VOCAB_TYPE, N_VOCAB, BOS, EOS, BLOCKS, TAIL = range(1, 10)

GUESS = (2, 7, 0, 3, 3, 9, 1.0, 1, 0.5)
SERIAL, EPOCH, N_KNOWN, POSITION, TOKEN, CONFIDENCE, N_TOKENS, SECONDS = range(1, 9)


def hello_with(field: int, value: object) -> bytes:
    return msgspec.msgpack.encode([*HELLO[:field], value, *HELLO[field + 1 :]])


def guess_with(field: int, value: object) -> bytes:
    return msgspec.msgpack.encode([*GUESS[:field], value, *GUESS[field + 1 :]])


def test_the_guess_that_the_next_tests_spoil_is_right() -> None:
    assert understood(messages.from_draft, guess_with(TOKEN, 9)) == GuessMessage(*GUESS[1:])


@pytest.mark.parametrize(
    "value", [-1, 2**31, 2**63, 2**64 - 1, 1.0, 0.5, math.nan, "9", b"9", None, True, [9]], ids=repr
)
@pytest.mark.parametrize("field", [SERIAL, EPOCH, N_KNOWN, POSITION, TOKEN, N_TOKENS])
def test_numbers_out_of_range_are_refused(field: int, value: object) -> None:
    assert understood(messages.from_draft, guess_with(field, value)) is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "1", None, True], ids=repr)
@pytest.mark.parametrize("field", [CONFIDENCE, SECONDS])
def test_what_is_no_number_is_refused(field: int, value: object) -> None:
    assert understood(messages.from_draft, guess_with(field, value)) is None


@pytest.mark.parametrize("seconds", [-1e-9, -1, 3600.001, 1e308, 2**64 - 1], ids=repr)
def test_times_out_of_range_are_refused(seconds: float) -> None:
    assert understood(messages.from_draft, guess_with(SECONDS, seconds)) is None


@pytest.mark.parametrize(("said", "used"), [(-1e300, 0.0), (-0.5, 0.0), (0.25, 0.25), (50.5, 50.0), (1e308, 50.0)])
def test_a_confidence_counts_for_no_more_than_one_of_duos_own(said: float, used: float) -> None:
    message = understood(messages.from_draft, guess_with(CONFIDENCE, said))
    assert isinstance(message, GuessMessage)
    assert messages.usable_confidence(message) == used


@pytest.mark.parametrize(
    ("field", "most", "more"),
    [
        (SECRET, "t" * 256, "t" * 257),
        (MODEL, "m" * 256, "m" * 257),
        (BLOCKS, [b""] * 4096, [b""] * 4097),
        (TAIL, bytes(8192), bytes(8193)),
        (N_VOCAB, MOST, MOST + 1),
        (N_VOCAB, 0, -1),
        (MODEL, "ü", b"\xff"),
    ],
)
def test_a_hello_is_as_long_as_it_may_be_and_no_longer(field: int, most: object, more: object) -> None:
    assert isinstance(understood(messages.from_draft, hello_with(field, most)), Hello)
    assert understood(messages.from_draft, hello_with(field, more)) is None


def test_words_that_are_no_unicode_are_refused() -> None:
    right = hello_with(MODEL, "name")
    assert understood(messages.from_draft, right.replace(b"name", b"na\xc3\xa9")) is not None
    assert understood(messages.from_draft, right.replace(b"name", b"na\xed\xa0")) is None


@pytest.mark.parametrize("parse", [messages.from_draft, messages.from_lead])
def test_a_message_of_text_is_refused(parse: Parse) -> None:
    with pytest.raises(LinkError, match="text instead of bytes"):
        parse("Hello")


def test_more_bytes_than_the_limit_are_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    # Fields that are not known are passed over, so that only the length is wrong here.
    longer = partial(_padded, [*GUESS])
    assert understood(messages.from_draft, longer(messages.MAX_FROM_DRAFT)) == GuessMessage(*GUESS[1:])
    with pytest.raises(LinkError, match="bytes at once"):
        messages.from_draft(longer(messages.MAX_FROM_DRAFT + 1))
    monkeypatch.setattr(messages, "MAX_FROM_LEAD", 1000)
    assert understood(messages.from_lead, _padded([20, 7], 1000)) == End(7)
    with pytest.raises(LinkError, match="bytes at once"):
        messages.from_lead(_padded([20, 7], 1001))


def test_the_longest_hello_that_can_be_meant_is_short_enough() -> None:
    """A vocabulary of a million tokens."""
    blocks = tuple(bytes(8) for _ in range(1_000_000 // 1024))
    hello = Hello(1, "t" * 256, "m" * 256, 2, 1_000_000, 1, 2, blocks, bytes(4 * 1152))
    assert understood(messages.from_draft, messages.encode(hello)) == hello


def _padded(values: list[object], n_bytes: int) -> bytes:
    """The values and one more that nobody asked for, in so many bytes."""
    filler = n_bytes - len(msgspec.msgpack.encode([*values, bytes(2**16)])) + 2**16
    if filler < 2**16:  # the length takes fewer bytes then
        filler += 2
    data = msgspec.msgpack.encode([*values, bytes(filler)])
    assert len(data) == n_bytes
    return data


# Hellos of other versions


@given(version=st.integers(-(2**63), 2**64 - 1), rest=st.lists(nested, max_size=12))
def test_a_hello_of_another_version_is_known_by_its_beginning(version: int, rest: list[Any]) -> None:
    found = messages.other_version(msgspec.msgpack.encode([1, version, *rest]))
    assert found == (version if version != messages.VERSION else None)


@given(data=st.one_of(of_drafts.map(messages.encode), of_leads.map(messages.encode)))
def test_nothing_of_this_version_is_of_another(data: bytes) -> None:
    if data[1:2] != b"\x01":  # a Hello may be of any version
        assert messages.other_version(data) is None


@given(data=st.one_of(st.binary(max_size=200), st.binary(max_size=100).map(lambda rest: b"\x93\x01" + rest)))
def test_whether_random_bytes_are_of_another_version(data: bytes) -> None:
    version = messages.other_version(data)
    assert version is None or (is_any_int(version) and version != messages.VERSION)


@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa1a", b"\x81\x91", b"\x81\x80"], ids=bytes.hex)
def test_whether_nesting_without_end_is_of_another_version(opening: bytes) -> None:
    assert messages.other_version(b"\x93\x01\x02" + opening * (60_000 // len(opening))) is None
    assert messages.other_version("Hello") is None


@pytest.mark.parametrize("key", [[], {}, [[]], [{}], {"a": []}, None, math.nan, True, b"x"], ids=repr)
def test_whether_odd_keys_are_of_another_version(key: object) -> None:
    packed = msgspec.msgpack.encode(key)
    assert messages.other_version(b"\x93\x01\x02\x81" + packed + b"\x01") in (None, 2)
