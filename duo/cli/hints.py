"""Lines that say what may be unintended in a run: an unusual draft, a raw prompt, an empty answer."""

from __future__ import annotations

from duo.engine import text
from duo.engine.slot import Slot
from duo.llama.model import Model

_HEAD = 4096  # characters of a prompt, in which its first special token is


def draft_hint(slot: Slot) -> str:
    """That the draft is not smaller than the target, and so useless; empty otherwise."""
    target, draft = slot.target, slot.draft_model
    if draft is None or draft.n_bytes < target.n_bytes:
        return ""
    sizes = f"{draft.n_bytes / 1e6:.0f} MB, the target {target.n_bytes / 1e6:.0f} MB"
    return f"the draft is not smaller than the target (it has {sizes}): are -m and -md exchanged?"


def branches_hint(slot: Slot, branches: int | None, schedule: str, *, is_rejection: bool) -> str:
    """That there are no `branches`, if some were asked for; empty otherwise."""
    fits = slot.draft_model is not None and slot.can_speculate and slot.translation is None
    if not branches or (fits and schedule in ("auto", "async") and not is_rejection):
        return ""
    needed = "the schedule async and a draft in this process that can roll back and has the target's vocabulary"
    return f"--branches {branches} has no effect: it needs {needed}, and not --verify rejection"


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
