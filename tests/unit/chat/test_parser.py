"""The parts of an answer's text: reasoning, content and calls, however the text is split into pieces."""

import re
from collections.abc import Iterable
from itertools import groupby, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duo.chat.parser import AnswerFormat, AnswerParser, Part
from duo.llama.chat_template import THOUGHTS

ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
TOOLS = AnswerFormat(has_tools=True)
MAY_THINK, THINKS = AnswerFormat(thinks=False), AnswerFormat(thinks=True)
MISTRAL, HARMONY = (AnswerFormat(thinks=False, thought=thought) for thought in THOUGHTS[1:])
SHOWN = AnswerFormat(thinks=False, has_tools=True, shows_tags=True)
ALL = AnswerFormat(thinks=True, has_tools=True)
FORMATS = [AnswerFormat(thinks, has_tools) for thinks in (None, False, True) for has_tools in (False, True)] + [SHOWN]
F = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
CALL = ("f", '{"a": 1}')


def parse(form: AnswerFormat, pieces: Iterable[str]) -> list[Part]:
    parts, found = AnswerParser(form), []
    for piece in pieces:
        found += parts.push(piece)
    return found + parts.end()


def fold(parts: Iterable[Part]) -> list[Any]:
    """The parts with the text of neighbours of the same kind joined, in order: ("?", text), text, and calls."""
    found: list[Any] = []
    for (is_reasoning, call), same in groupby(parts, lambda part: (part.is_reasoning, part.call and part)):
        text = "".join(part.text for part in same)
        found.append(call.call if call else ("?", text) if is_reasoning else text)
    return found


def both(form: AnswerFormat, text: str) -> list[Any]:
    """The fold of the whole text and of its characters, which is the same."""
    whole = fold(parse(form, [text]))
    assert whole == fold(parse(form, text))
    return whole


@pytest.mark.parametrize(
    ("form", "text", "found"),
    [
        (THINKS, "\nWell.\n\n</think>\n\nYes.\n", [("?", "Well."), "Yes.\n"]),
        (THINKS, "Well. </thin", [("?", "Well. </thin")]),
        (THINKS, " <thi", [("?", "<thi")]),
        (THINKS, " \n", []),
        (THINKS, "\n\n</think>\n\nYes.", ["Yes."]),
        (THINKS, "a < b </thinks> <think> </think> </think>", [("?", "a < b </thinks> <think>"), "</think>"]),
        (MAY_THINK, "\n<think>\nWell.\n</think>\n\nYes.", [("?", "Well."), "Yes."]),
        (MAY_THINK, " \nYes <think>no</think>", [" \nYes <think>no</think>"]),
        (MAY_THINK, "<thinking>", ["<thinking>"]),
        (MAY_THINK, F, [F]),
        (AnswerFormat(), f"<think>a</think> {F} ", [f"<think>a</think> {F} "]),
        (MISTRAL, "[THINK]Well.[/THINK]Yes.", [("?", "Well."), "Yes."]),
        (MISTRAL, "[THIN", ["[THIN"]),
        (HARMONY, f"{ANALYSIS}Well.<|end|><|start|>assistant{FINAL}Yes.", [("?", "Well."), "Yes."]),
        (HARMONY, f"{ANALYSIS}Well.<|end|><|start|>user", [("?", "Well."), "<|start|>user"]),
        (HARMONY, f"{FINAL}Yes.", ["Yes."]),
        (HARMONY, "Yes.", ["Yes."]),
        (SHOWN, f"\n<think>\n{F}\n</think>\n\nYes.\n{F}", [f"\n<think>\n{F}\n</think>\n\nYes.", CALL]),
        (ALL, f"{F}</think>{F}", [("?", F), CALL]),
    ],
)
def test_reasoning_is_before_the_content(form: AnswerFormat, text: str, found: list[Any]) -> None:
    assert both(form, text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (F, [CALL]),
        (f"\n{F}\n{F}\n", [CALL, CALL]),
        (f" Let me see.\n\n{F}\n\nSo. \n", [" Let me see.", CALL, "So. \n"]),
        ('<tool_call>{"name":"g"}</tool_call>', [("g", "{}")]),
        ('<tool_call> {"arguments":{"b":[1.50 ,"é"]},"name":"g","id":3} </tool_call>', [("g", '{"b":[1.50 ,"é"]}')]),
        ('<tool_call>{"name": "g", "arguments": "{\\"a\\": 1}"}</tool_call>', [("g", '{"a": 1}')]),
        (
            '<tool_call>{"name": "g", "arguments": {"x": "\\"</tool_call>\\\\"}}</tool_call>',
            [("g", '{"x": "\\"</tool_call>\\\\"}')],
        ),
    ],
)
def test_calls_are_read_and_the_space_around_them_is_not_content(text: str, found: list[Any]) -> None:
    assert both(TOOLS, text) == found
    assert both(ALL, f"Well. </think> {text}") == [("?", "Well."), *both(TOOLS, text.lstrip())]


@pytest.mark.parametrize(
    "text",
    [
        F.removesuffix("\n</tool_call>"),
        "Yes. <tool_call> ",
        "The tag <tool_call> begins a call, </tool_call> ends it.",
        '<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call> Sorry.',
        '<tool_call>{"name": "f", "arguments": {"a: 1}}</tool_call> Sorry.',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "text"}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "\\ud800"}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        "<tool_call>{" + '"a":{' * 20_000 + "}" * 20_001 + "</tool_call>",
    ],
)
def test_what_is_no_call_is_content(text: str) -> None:
    assert both(TOOLS, text) == [text]
    assert both(TOOLS, f"a \n{text}") == [f"a \n{text}"]


def test_text_is_held_back_only_while_it_may_be_a_tag_or_the_space_before_one() -> None:
    parts = AnswerParser(AnswerFormat(thinks=False, has_tools=True))
    pieces = [" ", "<th", "e", "\n", "<", "tool", "box", "<tool_call>", "no", "<tool_call>{", "}"]
    shown = ["", "", " <the", "", "", "", "\n<toolbox", "", "<tool_call>no", "", ""]
    assert ["".join(part.text for part in parts.push(piece)) for piece in pieces] == shown
    assert [part.text for part in parts.end()] == ["<tool_call>{}"]


TAGS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
FRAGMENTS = [*TAGS, F, '{"name":"g"}', "<", "/", ' "', "\\", "\n", " "]
TEXTS = st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=3)), max_size=12).map("".join)


@given(st.sampled_from(FORMATS), TEXTS, st.lists(st.integers(0, 200)))
def test_pieces_give_the_same_parts_as_the_text_and_nothing_is_lost(
    form: AnswerFormat, text: str, cuts: list[int]
) -> None:
    ends = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    parts = parse(form, [text[a:b] for a, b in pairwise(ends)])
    assert fold(parts) == fold(parse(form, [text]))
    at = 0
    for part in parts:
        between = text[at : part.start]
        if part.call is not None:
            between, tag, body = between.partition("<tool_call>")
            assert tag
            assert re.fullmatch(r"\s*\{.*\}\s*</tool_call>", body, re.DOTALL)
        assert re.fullmatch(r"(\s|<think>|</think>)*", between)
        assert text[part.start : part.start + len(part.text)] == part.text
        at = part.start + len(part.text)
    assert re.fullmatch(r"(\s|<think>|</think>)*", text[at:])
    if form == AnswerFormat():
        assert "".join(part.text for part in parts) == text
