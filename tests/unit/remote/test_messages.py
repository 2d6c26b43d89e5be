"""Messages: any bytes are a message with every value in its range, or they are refused."""

import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duo.config import SAMPLERS, SamplingConfig
from duo.errors import LinkError
from duo.llama.fingerprint import Fingerprint
from duo.remote import messages
from duo.remote.messages import (
    Ahead,
    Alive,
    Begin,
    CandidateMessage,
    End,
    Hello,
    Message,
    PreparedToken,
    Refused,
    Text,
    Times,
    Unable,
    Welcome,
)  # fmt: skip

Parse = Callable[[bytes], Message]
Sent = st.SearchStrategy[Message]

MOST = 2**31 - 1


def understood(parse: Parse, data: bytes) -> Message | None:
    """What is understood; None if it is refused. Anything else fails the test."""
    try:
        return parse(data)
    except LinkError:
        return None


# Valid messages

numbers = st.integers(0, MOST)
words = st.text(max_size=256)
ids = st.integers(-(2**31), MOST)
tokens = st.lists(numbers, max_size=20)
finite = st.floats(allow_nan=False, allow_infinity=False)
shares = st.floats(0, 1)
logits = st.floats(-1e6, 1e6)

samplings = st.builds(
    SamplingConfig,
    temp=st.just(0.0) | st.floats(1e-5, 1e6), top_k=numbers, top_p=shares, min_p=shares, typical=shares,
    repeat_penalty=st.floats(0.01, 100), repeat_last_n=numbers, presence_penalty=logits, frequency_penalty=logits,
    logit_bias=st.lists(st.tuples(numbers, logits | st.just(-math.inf)), max_size=3).map(tuple),
    samplers=st.permutations(SAMPLERS).map(tuple), seed=st.integers(0, 2**63 - 1),
)  # fmt: skip
fingerprints = st.builds(Fingerprint, ids, ids, ids, ids, st.lists(st.binary(max_size=40)).map(tuple))
others = st.lists(numbers, max_size=8).map(tuple)
prepared = st.builds(PreparedToken, numbers, numbers, numbers, numbers, finite, others)
n_shares = st.sampled_from([9, 36]).flatmap(lambda n: st.tuples(*n * [shares]))
ranks = st.lists(shares, max_size=8).map(tuple)
aheads = st.none() | st.builds(Ahead, numbers, shares, n_shares, st.integers(0, 8), ranks)
of_drafts = st.one_of(
    st.builds(Hello, ids, words, words, fingerprints),
    st.builds(
        CandidateMessage,
        numbers,
        numbers,
        numbers,
        numbers,
        numbers | st.none(),
        finite,
        numbers,
        st.floats(0, 3600),
        others,
        st.integers(1, 9),
        st.lists(prepared, max_size=8).map(tuple),
        st.floats(0, 3600),
    ),
    st.builds(Times, st.dictionaries(st.integers(1, 9), st.floats(1e-9, 3600)), st.booleans()),
    st.builds(Alive, numbers),
    st.builds(Unable, numbers),
)
of_leads = st.one_of(
    st.builds(Welcome, numbers),
    st.builds(Refused, st.text()),
    st.builds(Begin, numbers, numbers, samplings, tokens, numbers, tokens, st.booleans(), aheads),
    st.builds(Text, numbers, numbers, numbers, tokens, st.booleans(), numbers, aheads),
    st.builds(End, numbers),
)
PARSERS = (messages.from_draft, messages.from_lead)


@pytest.mark.parametrize(("sender", "sent"), [(0, of_drafts), (1, of_leads)], ids=["draft", "lead"])
@given(data=st.data())
def test_a_message_is_understood_by_the_other_side_alone(sender: int, sent: Sent, data: st.DataObject) -> None:
    message = data.draw(sent)
    encoded = messages.encode(message)
    assert understood(PARSERS[sender], encoded) == message
    assert understood(PARSERS[1 - sender], encoded) is None
    cut = encoded[: data.draw(st.integers(0, len(encoded) - 1))]
    assert understood(PARSERS[sender], cut) is None


def test_what_protocol_3_has_got_later_may_be_missing_or_unknown() -> None:
    assert messages.from_draft(msgspec.msgpack.encode([5, {1: 0.5}])) == Times({1: 0.5}, aborts=True)
    known = CandidateMessage(1, 0, 3, 3, 7, 0.5, 1, 0.1)
    fields = msgspec.msgpack.decode(messages.encode(known))
    for others in (fields[:-1], [*fields, "more"]):
        assert messages.from_draft(msgspec.msgpack.encode(others)) == known


# Invalid messages

ODD: tuple[object, ...] = (
    -1, -(2**31), -(2**63), 2**31, 2**32, 2**63, 2**64 - 1, 0, 1, MOST, math.nan, math.inf, -math.inf, -0.0, -1e-9,
    -1.0, 1e308, 5e-324, 3600.0, 3600.1, None, True, "", "7", "x" * 257, b"", b"7", b"x" * 8193, [], {}, [7],
    [b""] * 4097, [[-1, 1.0]], [[1, math.nan]], {"top_p": 2}, {"samplers": ["best"]}, {"logit_bias": [[1, math.nan]]},
    {"vocab_type": 1, "n_vocab": 2, "bos": None, "eos": "x"},
)  # fmt: skip
values = st.sampled_from(ODD) | st.dictionaries(st.sampled_from(SamplingConfig.__slots__), st.sampled_from(ODD))
nested = st.recursive(
    values,
    lambda inner: st.one_of(st.lists(inner, max_size=12), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=30,
)
tags = st.sampled_from([1, 2, 3, 4, 5, 16, 17, 18, 19, 20])


@pytest.mark.parametrize("parse", PARSERS)
@given(
    data=st.one_of(
        st.binary(max_size=200),
        st.builds(lambda n, tag, rest: bytes([0x90 + n, tag]) + rest, st.integers(0, 15), tags, st.binary(max_size=99)),
        st.one_of(nested, st.tuples(tags, nested, nested)).map(msgspec.msgpack.encode),
        values.map(lambda sampling: msgspec.msgpack.encode([18, 1, 2, sampling, [], 4, [5], True])),
    )
)
def test_random_bytes_and_values(parse: Parse, data: bytes) -> None:
    understood(parse, data)


@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa1a", b"\x81\x91", b"\xdc\x00\x01"], ids=bytes.hex)
@pytest.mark.parametrize("parse", PARSERS)
def test_nesting_without_end(parse: Parse, opening: bytes) -> None:
    for of in ("", "93 03 01", "96 13 01 01 01", "99 12 01 01 80 90 01", "95 01 01 a0 a0"):
        assert understood(parse, bytes.fromhex(of) + opening * (60_000 // len(opening))) is None


@given(version=st.integers(-(2**63), 2**64 - 1), rest=st.lists(nested, max_size=12))
def test_a_hello_of_another_version_is_known_by_its_beginning(version: int, rest: list[Any]) -> None:
    found = messages.other_version(msgspec.msgpack.encode([1, version, *rest]))
    assert found == (version if version != messages.VERSION else None)
