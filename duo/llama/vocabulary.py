"""Whether one model can guess the tokens of another."""

from __future__ import annotations

from duo.llama.model import Model

MAX_SIZE_DIFFERENCE = 128
FIRST_TOKEN_COMPARED = 5


def vocabulary_difference(target: Model, draft: Model) -> str | None:
    """The first thing that keeps `draft` from guessing `target`'s tokens; None if nothing does.

    The rule of llama.cpp (common/speculative.cpp): type, BOS and EOS agree, the sizes differ by at most 128,
    and the texts are the same from id 5 on. Padded vocabularies are common, so the sizes may differ.
    """
    if target.vocab_type != draft.vocab_type:
        return f"the target's vocabulary is of type {target.vocab_type}, the draft's of type {draft.vocab_type}"
    for name in ("BOS", "EOS"):
        ours, theirs = _added(target, name), _added(draft, name)
        if ours != theirs:
            return f"the target's {name} is {ours}, the draft's {theirs}"
    if abs(target.n_vocab - draft.n_vocab) > MAX_SIZE_DIFFERENCE:
        return f"the target's vocabulary has {target.n_vocab} tokens, the draft's {draft.n_vocab}"
    n = min(target.n_vocab, draft.n_vocab)
    texts = zip(target.token_texts(n), draft.token_texts(n), strict=True)
    for token, (text, draft_text) in enumerate(texts):
        if token >= FIRST_TOKEN_COMPARED and text != draft_text:
            return f"token {token} is {_show(text)} to the target and {_show(draft_text)} to the draft"
    return None


def _added(model: Model, name: str) -> str:
    """The token that the vocabulary puts around a text, in words."""
    adds, token = (model.adds_bos, model.bos) if name == "BOS" else (model.adds_eos, model.eos)
    return f"token {token}" if adds else "not added"


def _show(text: bytes) -> str:
    return repr(text.decode("utf-8", "replace"))
