"""Lines that say what may be unintended in a run: an unusual draft, a raw prompt, an empty answer."""

from __future__ import annotations

import os

from duo.engine import text
from duo.engine.slot import Slot
from duo.llama.model import Model

_HEAD = 4096  # characters of a prompt, in which its first special token is


def draft_hint(slot: Slot) -> str:
    """What makes the draft useless, if it is not smaller than the target; empty otherwise."""
    target, draft = slot.target, slot.draft_model
    if draft is None:
        return ""
    if os.path.realpath(target.path) == os.path.realpath(draft.path):
        return "the draft is the same file as the target, so it cannot make it faster: use a smaller model (duo tune)"
    if draft.n_bytes >= target.n_bytes:
        sizes = f"{draft.n_bytes / 1e6:.0f} MB, the target {target.n_bytes / 1e6:.0f} MB"
        return f"the draft is not smaller than the target (it has {sizes}): are -m and -md exchanged?"
    return ""


def branches_hint(slot: Slot, branches: int | None, schedule: str, *, is_rejection: bool) -> str:
    """Why there are no `branches`, if some were asked for; empty otherwise."""
    if not branches:
        return ""
    reasons = (
        (slot.draft_model is None, "there is no draft in this process"),
        (not slot.can_speculate, "one of these models cannot roll back its cache"),
        (slot.translation is not None, "the draft has another vocabulary"),
        (schedule in ("sync", "off"), f"there are none with --schedule {schedule}"),
        (is_rejection, "there are none with --verify rejection"),
    )
    why = next((reason for applies, reason in reasons if applies), "")
    return f"--branches {branches} has no effect: {why}" if why else ""


def prompt_hint(model: Model, prompt: str) -> str:
    """That a raw `prompt` is not in the model's chat template, if it has one; empty otherwise."""
    if not model.metadata("tokenizer.chat_template") or _has_special(model, prompt[:_HEAD]):
        return ""
    return "this model has a chat template: --chat uses it"


def empty_hint(stop: str, n_tokens: int, n_predict: int) -> str:
    """Why an answer of `n_tokens` tokens, at most `n_predict`, has no text; `stop`: why it ended."""
    reasons = {
        text.LIMIT: _without_text(n_tokens) if n_predict else "-n 0 only processes the prompt",
        text.END_OF_TEXT: "the model ended the text at once (--ignore-eos continues)",
        text.STOP_STRING: "it began with a stop string (-r)",
        text.CONTEXT_FULL: "the prompt fills the context (-c)",
        text.GRAMMAR_END: "the grammar allows no text",
    }
    return f"the answer is empty: {reasons[stop]}" if stop in reasons else ""


def _without_text(n_tokens: int) -> str:
    return "its only token has no text" if n_tokens == 1 else f"its {n_tokens} tokens have no text"


def _has_special(model: Model, prompt: str) -> bool:
    """Whether special tokens are written out in `prompt`, not counting the BOS that is added."""
    return any(not model.piece(token) for token in model.tokenize(prompt, add_bos=False))
