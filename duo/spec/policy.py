"""Policy: how many candidates to verify, how long to wait for one, how far the draft may run ahead."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Policy:
    """Fixed numbers: verify what is ready up to `n_max`, and wait for one candidate as long as one takes to draft."""

    n_max: int
    n_ahead: int

    def n_verify(self, n_room: int) -> int:
        """Most candidates for the next batch, when the text has room for `n_room` more tokens."""
        # The target adds a token of its own to whatever it accepts.
        return max(0, min(self.n_max, n_room - 1))

    def wait_s(self, draft_s: float) -> float:
        """Longest wait for a first candidate, in seconds, when the draft takes `draft_s` for a token."""
        return draft_s

    def may_draft(self, n_pending: int) -> bool:
        """Whether the draft should guess on when it is `n_pending` tokens ahead."""
        return n_pending < self.n_ahead
