"""Twenty prompts of different kinds, raw, as a user might give them."""

from __future__ import annotations

_CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
_PARAGRAPH = (
    "The harbour master kept two clocks. One told the hour of the town and one the hour of the tide, and whoever "
    "asked him for the time was first asked what for. "
)

PROMPTS = {
    "chat": _CHAT.format("Why is the sky red in the evening?"),
    "chat with system": "<|im_start|>system\nAnswer like a pirate.<|im_end|>\n" + _CHAT.format("Where is the butter?"),
    "second turn": _CHAT.format("Name a fruit.") + "Pear.<|im_end|>\n" + _CHAT.format("And another?"),
    "code": "def fibonacci(n):\n    ",
    "c code": "#include <stdio.h>\n\nint main(void) {\n",
    "json": '{"name": "Ada", "born": 1815, "languages": [',
    "html": "<!doctype html>\n<html>\n<head>\n<title>",
    "story": "Once upon a time there was a clock that ran backwards, and",
    "list": "Ten things to pack for a week in the mountains:\n1.",
    "question and answer": "Q: What is the capital of Norway?\nA:",
    "arithmetic": "12 + 30 = 42\n17 + 25 =",
    "german": "Der schnellste Weg von München nach Hamburg ist",
    "japanese": "昔々、ある所に",
    "russian": "Однажды в студёную зимнюю пору",
    "emoji": "🙂🎉🚀 means",
    "accents": "Où est la bibliothèque ? Elle est",
    "one token": "The",
    "a space": " ",
    "repetition": "tick tock tick tock tick tock tick",
    "long": _PARAGRAPH * 58,
}
