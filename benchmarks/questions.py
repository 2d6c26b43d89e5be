"""The questions of Spec-Bench (Xia et al. 2024), and of SPEED-Bench, whose JSON lines have the same fields."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from duo.errors import UsageError


@dataclass(frozen=True, slots=True)
class Question:
    """What a user asks in one or several turns of a chat."""

    key: str
    category: str
    turns: Sequence[str]


def read_questions(file: Path) -> list[Question]:
    """The questions of a file, one JSON object per line. Raises UsageError, which names the line."""
    found = []
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--questions: cannot read {file}: {getattr(error, 'strerror', None) or error}") from None
    for i, line in enumerate(lines, 1):
        if line.strip():
            try:
                fields = json.loads(line)
                turns = [str(turn) for turn in fields["turns"]]
                found.append(Question(str(fields["question_id"]), str(fields["category"]), turns))
            except (ValueError, KeyError, TypeError):
                need = "an object with question_id, category and turns"
                raise UsageError(f"--questions: line {i} of {file} is not {need}") from None
    if not found:
        raise UsageError(f"--questions: {file} has no questions")
    return found


def interleaved(questions: Sequence[Question], per_category: int | None) -> Iterator[Question]:
    """The first `per_category` questions of each category (None: all), one category after the other in turn."""
    kinds: dict[str, list[Question]] = {}
    for question in questions:
        kinds.setdefault(question.category, []).append(question)
    most = max(map(len, kinds.values()))
    for i in range(most if per_category is None else min(per_category, most)):
        yield from (each[i] for each in kinds.values() if i < len(each))
