"""What a chat talks to: a server, or a model in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from duo.spec.types import Source

CLEAR = ": /clear begins a new conversation"  # the end of a message about a full context; has no place in a pipe
Message = dict[str, str]
# Shows a piece of text, of which as many characters were candidates, of the draft or of the lookup. None: the text is
# reasoning, which is not part of the answer.
Show = Callable[[str, int, Source | None], None]


@dataclass(slots=True)
class Answer:
    """An answer so far."""

    text: str = ""
    figures: tuple[int, float, int, int] = (0, 0.0, 0, 0)  # tokens, seconds, verified, accepted; 0: unknown
    found_only: bool = False  # whether all its candidates were of the lookup
    prompt: tuple[int, int] = (0, 0)  # tokens of the conversation, and those of them that were in the KV cache
    remark: str = ""  # why it is empty or incomplete


class Speaker(Protocol):
    """A server or an engine."""

    def greeting(self) -> str:
        """What it is, in words. Raises DuoError if it cannot be reached."""

    def answer(self, messages: list[Message], answer: Answer, show: Show, attempt: int = 0) -> None:
        """Generate an answer, and add it to `answer`, showing each piece.

        `attempt`: how often the same messages were answered before, for another seed. Raises DuoError. After
        KeyboardInterrupt, which ends the answer, `answer` has what was shown, and its figures if they are known.
        """


def count_tokens(n: int) -> str:
    """`n` tokens, in words."""
    return f"{n} token{'' if n == 1 else 's'}"


def limit_remark(n_predict: int) -> str:
    """That -n ended an answer."""
    return f"the answer is not complete: -n allows {count_tokens(n_predict)}"


def describe(*answers: Answer) -> str:
    """The statistics of answers, added up; empty if unknown."""
    n_tokens, seconds, n_verified, n_accepted = map(sum, zip(*(answer.figures for answer in answers), strict=True))
    of_lookup = "of the lookup " if all(answer.found_only for answer in answers if answer.figures[2]) else ""
    words = [
        count_tokens(n_tokens) if n_tokens else "",
        f"{n_tokens / seconds:.1f} tokens/s" if n_tokens and seconds else "",
        f"{n_accepted} of {n_verified} candidates {of_lookup}accepted" if n_verified else "",
    ]
    return ", ".join(filter(None, words))


def describe_prompt(answer: Answer) -> str:
    """The tokens that were processed before an answer; empty if unknown."""
    n_tokens, n_cached = answer.prompt
    return f"{count_tokens(n_tokens)} of conversation, {n_tokens - n_cached} of them new" if n_tokens else ""
