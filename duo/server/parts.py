"""Parts: the reasoning, the content and the tool calls in the text of a chat's answer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """What the text of an answer may have besides content."""

    thinks: bool | None = None  # whether the prompt ends inside <think>; None: reasoning is left in the content
    has_tools: bool = False  # whether there may be calls of tools


PLAIN = AnswerFormat()
