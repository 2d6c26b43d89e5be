from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duo.engine.text import TextStream


def stream(pieces: list[bytes], *stops: str) -> TextStream:
    return TextStream(lambda token: pieces[token], stops)


def shown(pieces: list[bytes], *stops: str) -> tuple[list[bytes], bool]:
    """What each token shows, the rest at the end, and whether a stop string was found."""
    text = stream(pieces, *stops)
    out = []
    for token in range(len(pieces)):
        out.append(text.push(token))
        if text.stopped:
            return out, True
    return [*out, text.finish()], False


def test_a_character_that_spans_tokens_comes_whole() -> None:
    smile = "🙂".encode()
    out, _ = shown([b"a", smile[:1], smile[1:3], smile[3:], b"b"])
    assert out == [b"a", b"", b"", smile, b"b", b""]


def test_bytes_that_are_no_utf8_pass_as_they_are() -> None:
    out, _ = shown([b"\xff", b"a\x80b"])
    assert b"".join(out) == b"\xffa\x80b"


def test_an_unfinished_character_at_the_end_is_not_lost() -> None:
    out, _ = shown([b"a\xf0\x9f"])
    assert out == [b"a", b"\xf0\x9f"]


@pytest.mark.parametrize(
    ("pieces", "stops", "text", "stopped"),
    [
        ([b"one two three"], ["two"], b"one ", True),
        ([b"one t", b"w", b"o three"], ["two"], b"one ", True),
        ([b"one tw", b"in"], ["two"], b"one twin", False),
        ([b"abc"], ["c", "b"], b"a", True),
        ([b"aa", b"ab"], ["aab"], b"a", True),
        ([b"tw"], ["two"], b"tw", False),
    ],
)
def test_stop_strings(pieces: list[bytes], stops: list[str], text: bytes, stopped: bool) -> None:
    out, found = shown(pieces, *stops)
    assert b"".join(out) == text
    assert found == stopped


@given(st.text(alphabet="abé🙂", max_size=40), st.lists(st.integers(1, 5)), st.lists(st.text("abé", min_size=1)))
def test_however_it_is_cut_the_text_is_the_same(text: str, cuts: list[int], stops: list[str]) -> None:
    data, pieces = text.encode(), []
    for cut in cuts:
        pieces.append(data[:cut])
        data = data[cut:]
    out, stopped = shown([*pieces, data], *stops)
    # Several stop strings may overlap; the one that is complete first ends the text.
    ends = [(text.index(stop) + len(stop), text.index(stop)) for stop in stops if stop in text]
    if not ends:
        assert b"".join(out).decode() == text
        assert not stopped
    else:
        assert stopped
        assert text.startswith(b"".join(out).decode())
        assert not any(stop in b"".join(out).decode() for stop in stops)
    for part in out[:-1]:
        part.decode()
