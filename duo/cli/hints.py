"""Lines that say what may be unintended in a text: a raw prompt, an empty answer."""

from __future__ import annotations

from duo.engine import text
from duo.llama.model import Model

_HEAD = 4096  # characters of a prompt, in which its first special token is


def prompt_hint(model: Model, prompt: str) -> str:
    """That a raw `prompt` is not in the model's chat template, if it has one; empty otherwise."""
    # Special tokens that are written out have no text; the BOS that is added does not count.
    is_raw = all(model.piece(token) for token in model.tokenize(prompt[:_HEAD], add_bos=False))
    has_template = bool(model.metadata("tokenizer.chat_template"))
    return "this model has a chat template: --chat uses it" if has_template and is_raw else ""


def empty_hint(stop: str, n_predict: int) -> str:
    """Why an answer of at most `n_predict` tokens has no text; `stop`: why it ended."""
    reasons = {
        text.LIMIT: "its tokens have no text" if n_predict else "-n 0 only processes the prompt",
        text.END_OF_TEXT: "the model ended the text at once (--ignore-eos continues)",
        text.STOP_STRING: "it began with a stop string (-r)",
        text.CONTEXT_FULL: "the prompt fills the context (-c)",
        text.GRAMMAR_END: "the grammar allows no text",
    }
    return f"the answer is empty: {reasons[stop]}" if stop in reasons else ""
