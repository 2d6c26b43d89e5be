"""Where the characters and words of a text in UTF-8 begin and end, and how much two texts have in common."""

from __future__ import annotations

_SPACES = b" \t\r\n"


def whole(text: bytes | bytearray, end: int | None = None) -> int:
    """Length of `text[:end]` without an incomplete UTF-8 character at its end."""
    end = len(text) if end is None else end
    for n in range(1, min(3, end) + 1):
        byte = text[end - n]
        if byte >= 0xC0:  # the first byte of a character of two to four
            return end - n if n < 2 + (byte >= 0xE0) + (byte >= 0xF0) and byte < 0xF8 else end
        if byte < 0x80:
            break
    return end


def begins_character(text: bytearray, at: int) -> bool:
    """Whether a character begins, or the text ends, at offset `at`."""
    return at >= len(text) or text[at] & 0xC0 != 0x80


def begins_word(text: bytearray, at: int) -> bool:
    """Whether a space, or a line, begins at offset `at` of a text."""
    if not 0 < at < len(text):
        return at == 0
    return (text[at] in _SPACES) != (text[at - 1] in _SPACES) and (text[at] in _SPACES or text[at - 1] == ord("\n"))


def in_word(text: bytes) -> bool:
    """Whether a text ends with a letter, a digit or a byte that is not ASCII."""
    return bool(text) and (text[-1:].isalnum() or text[-1] >= 0x80)


def common(a: bytearray, b: bytearray, start: int) -> int:
    """Length of the common prefix of two texts, of which `start` bytes are known to agree."""
    end = min(len(a), len(b))
    if a[start:end] == b[start:end]:
        return end
    return next(i for i in range(start, end) if a[i] != b[i])
