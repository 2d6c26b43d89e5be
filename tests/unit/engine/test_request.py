import pytest
from hypothesis import given
from hypothesis import strategies as st

from duo.config import StopConfig
from duo.engine.request import Ending

SMILE = "🙂".encode()


def shown(pieces: list[bytes], *stops: str) -> tuple[list[bytes], bool]:
    """What each token adds, the rest at the end, and whether a stop string was found."""
    ending = Ending(StopConfig(stop_strings=stops), lambda token: pieces[token], lambda _: False)
    out: list[bytes] = []
    for token in range(len(pieces)):
        out += ending.push([token])
        if ending.reason is not None:
            return out, True
    return [*out, ending.finish()], False


@pytest.mark.parametrize(
    ("pieces", "out"),
    [
        ([b"a", SMILE[:1], SMILE[1:3], SMILE[3:], b"b"], [b"a", b"", b"", SMILE, b"b", b""]),
        ([b"a\xf0\x9f"], [b"a", b"\xf0\x9f"]),  # an unfinished character at the end is not lost
        ([b"\xff", b"a\x80b"], [b"\xff", b"a\x80b", b""]),  # invalid UTF-8
    ],
)
def test_a_character_is_shown_with_its_last_byte(pieces: list[bytes], out: list[bytes]) -> None:
    assert shown(pieces) == (out, False)


@pytest.mark.parametrize(
    ("pieces", "stops", "text", "stopped"),
    [
        ([b"one t", b"w", b"o three"], ["two"], b"one ", True),
        ([b"one tw", b"in"], ["two"], b"one twin", False),
        ([b"abc"], ["c", "b"], b"a", True),
        ([b"aa", b"ab"], ["aab"], b"a", True),
    ],
)
def test_stop_strings(pieces: list[bytes], stops: list[str], text: bytes, stopped: bool) -> None:
    out, found = shown(pieces, *stops)
    assert (b"".join(out), found) == (text, stopped)


@given(st.text(alphabet="abé🙂", max_size=40), st.lists(st.integers(1, 5)), st.lists(st.text("abé", min_size=1)))
def test_the_text_does_not_depend_on_the_boundaries_of_tokens(text: str, cuts: list[int], stops: list[str]) -> None:
    data, pieces = text.encode(), []
    for cut in cuts:
        pieces.append(data[:cut])
        data = data[cut:]
    out, stopped = shown([*pieces, data], *stops)
    written = b"".join(out).decode()
    assert stopped == any(stop in text for stop in stops)
    if stopped:
        assert text.startswith(written)
        assert not any(stop in written for stop in stops)
    else:
        assert written == text
    for part in out[:-1]:
        part.decode()
