"""Verification: which candidates are what the target itself would have written."""

from __future__ import annotations

from duo.spec.sampling import Sampler
from duo.spec.types import Acceptance, Candidates, Logits


def verify(target_logits: Logits, candidates: Candidates, sampler: Sampler, position: int) -> Acceptance:
    """Accept the candidates that equal the target's own choice, up to the first that does not.

    target_logits: `[k+1, n_vocab]`; row i predicts the token after `candidates[:i]`, at `position + i`.
    The result's tokens are what the target would have written alone (Leviathan et al. 2023, for a choice that is
    a function of logits and position).
    """
    for i, candidate in enumerate(candidates.tokens):
        token = sampler.sample(target_logits[i], position + i)
        if token != candidate:
            return Acceptance(candidates.tokens[:i], token)
    return Acceptance(candidates.tokens, sampler.sample(target_logits[len(candidates)], position + len(candidates)))
