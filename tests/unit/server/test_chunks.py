"""The chunks of a stream: their parts, what wrote their characters, and their logprobs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duo.config import GenerationConfig
from duo.engine.request import TextRequest
from duo.llama.model import Model
from duo.server.answer_parser import AnswerFormat, AnswerParser
from duo.server.generation_request import GenerationRequest
from duo.server.response_formatter import ResponseFormatter
from duo.spec.types import Source, Step, TokenLogprobs
from tests.scripted import FIRST_BYTE, ScriptedModel

ALL = AnswerFormat(thinks=True, has_tools=True)
F = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


def step(drafted: str, own: str = "", source: Source = Source.DRAFT) -> Step:
    """One token for each character."""
    text = drafted + own
    return Step(tuple(range(len(text))), len(drafted), tuple(c.encode() for c in text), (), source)


def formatter(
    form: AnswerFormat, *, chat: bool = True, sources: bool = False, stop: str = "", n_logprobs: int | None = None
) -> ResponseFormatter:
    config = GenerationConfig(n_logprobs=n_logprobs)
    text = TextRequest([1, 2], config, lambda _: None)
    text.metrics.n_prompt, text.metrics.stop = 2, stop
    wanted = GenerationRequest([1, 2], config, chat, form, streams=True, wants_usage=False, wants_sources=sources)
    return ResponseFormatter(wanted, text, cast("Model", ScriptedModel()), "m")


def chunks_of(steps: Sequence[Step], form: AnswerFormat, *, chat: bool = True, sources: bool = True) -> list[Any]:
    made = formatter(form, chat=chat, sources=sources)
    return [*made.begin(), *(document for step in steps for document in made.push(step)), *made.end()]


def choices(documents: Sequence[Any]) -> list[Any]:
    return [document["choices"][0] for document in documents if document["choices"]]


def test_parts_are_chunks_of_their_own() -> None:
    text = ["Hm", "m.</th", "ink>\n\nLet me see. ", "\n" + F[:20], F[20:] + F + "Do", "ne"]
    found = choices(chunks_of([step(piece) for piece in text], ALL, sources=False))
    calls = [choice["delta"]["tool_calls"][0] for choice in found if "tool_calls" in choice["delta"]]
    assert [call["index"] for call in calls] == [0, 1]
    assert len({call["id"] for call in calls}) == 2
    assert all(call["id"].startswith("call_") and call["type"] == "function" for call in calls)
    assert [call["function"] for call in calls] == [{"name": "f", "arguments": '{"a": 1}'}] * 2
    assert [choice["delta"] for choice in found if "tool_calls" not in choice["delta"]] == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "Hm"},
        {"reasoning_content": "m."},
        {"content": "Let me see."},
        {"content": "Do"},
        {"content": "ne"},
        {},
    ]
    assert [choice["finish_reason"] for choice in found] == [None] * (len(found) - 1) + ["tool_calls"]


PIECES = st.sampled_from(["<think>", "</think>", F, "<tool", "é", " ", "\n", "ab"])
STEPS = st.lists(st.builds(step, PIECES, PIECES, st.sampled_from(Source)), max_size=8)


@given(STEPS, st.sampled_from([AnswerFormat(), ALL, AnswerFormat(thinks=False), AnswerFormat(has_tools=True)]))
def test_runs_cover_exactly_the_text_of_their_chunk(steps: list[Step], form: AnswerFormat) -> None:
    names = [
        [step.source.value] * step.n_accepted + ["target"] * (len(step.tokens) - step.n_accepted) for step in steps
    ]
    origins = [name for found in names for name in found]
    parser = AnswerParser(form)
    parts = [part for step in steps for part in parser.push(step.text)] + parser.end()
    runs = [document["duo"]["sources"] for document in chunks_of(steps, form) if "duo" in document]
    written = [[name for name, n in found for _ in range(n)] for found in runs]
    assert written == [origins[part.start : part.start + len(part.text)] for part in parts]
    assert all(a[0] != b[0] for found in runs for a, b in pairwise(found))


@pytest.mark.parametrize("chat", [True, False])
def test_logprobs_of_what_is_held_back_come_with_the_next_chunk(chat: bool) -> None:
    chunks = formatter(AnswerFormat(thinks=False) if chat else AnswerFormat(), chat=chat, n_logprobs=0)
    found: list[Any] = []
    for text in ("<th", "e", "", "x</"):
        tokens = tuple(FIRST_BYTE + byte for byte in text.encode())
        pieces = tuple(bytes([byte]) for byte in text.encode())
        found += chunks.push(Step(tokens, 0, pieces, logprobs=tuple(TokenLogprobs(t, -1.0, ()) for t in tokens)))
    found += chunks.end()
    names = []
    for choice in choices(found):
        entries = choice["logprobs"] and choice["logprobs"]["content" if chat else "tokens"]
        names.append(entries and "".join(entry["token"] if chat else entry for entry in entries))
    assert names == (["<the", "x</", None] if chat else ["<th", "e", "x</", None])
