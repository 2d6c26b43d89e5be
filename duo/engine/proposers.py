"""Proposers: whatever proposes candidates. A draft is one that has a policy."""

from collections.abc import Sequence
from dataclasses import dataclass

from duo.config import SamplingConfig, ThreadConfig
from duo.engine.recorder import Recorder
from duo.engine.request import Ending
from duo.speculation.policy import Policy, StepCost
from duo.speculation.prompt_lookup import PromptLookup
from duo.speculation.sampling import CandidateSampler
from duo.speculation.schedule import Schedule
from duo.speculation.sequence import TokenSequence
from duo.speculation.types import Proposal


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """The text that sources propose candidates for."""

    sequence: TokenSequence
    ending: Ending
    metrics: Recorder
    sampler: CandidateSampler  # the sampler of a local draft
    sampling: SamplingConfig  # from which a remote draft makes its own
    banned: Sequence[int] = ()  # tokens that must not be chosen
    mode: str = ""  # of sampling: see Policy.begin()


class Proposer:
    """Proposes what the target may write next; this one nothing. The target's thread calls it.

    At each step, one policy compares what all sources propose by value, and the target verifies the candidates of one.
    A text may use several drafts, one at a time, and return to an earlier one: each begin() starts from all tokens
    accepted so far.
    """

    def begin(self, request: DraftRequest) -> None:
        """Start proposing for a text."""

    def propose(self) -> Proposal:
        """What there is for the next batch. Never blocks, except for a draft in turns that is scored on the text."""
        return Proposal()

    def verifies(self, n: int) -> None:
        """The target verifies the first `n` of these now."""

    def commit(self, tokens: Sequence[int], cost: StepCost | None) -> None:
        """The target has added `tokens` to the text at this cost; None for a step with prefill.

        Called before the target's next decode, so what this one has left in its context, such as hidden rows of the
        accepted positions, can still be read.
        """

    def end(self) -> None:
        """Stop. A second call does nothing."""


@dataclass(frozen=True, slots=True)
class LookupProposer(Proposer):
    """The text itself: at most `n_most` of what followed earlier occurrences of its last tokens."""

    lookup: PromptLookup
    n_most: int

    def begin(self, request: DraftRequest) -> None:
        self.lookup.begin(request.sequence.accepted)

    def propose(self) -> Proposal:
        return self.lookup.propose(self.n_most)

    def commit(self, tokens: Sequence[int], cost: StepCost | None) -> None:  # noqa: ARG002
        self.lookup.extend(tokens)


class Draft(Proposer):
    """A source with a policy; by itself the target alone. The target's thread calls it, except interrupt()."""

    threads: ThreadConfig  # that may be used now: set before begin(), and whenever the number of free cores changes

    def __init__(self, policy: Policy | None = None) -> None:
        """Without a policy, nothing is verified."""
        self.policy = policy
        self._sequence = TokenSequence((), 0)

    @property
    def schedule(self) -> Schedule:
        """The current schedule."""
        return self.policy.schedule if self.policy is not None else Schedule.OFF

    @property
    def n_target_threads(self) -> int:
        """Threads of the target in the current schedule."""
        return self.threads.target

    def begin(self, request: DraftRequest) -> None:
        self._sequence = request.sequence
        if self.policy is not None:
            self.policy.begin(len(self._sequence.accepted), request.ending.n_room, request.mode)

    def more(self, seconds: float) -> None:
        """Wait up to `seconds` for one more candidate, or make it. If none came, the next proposal expects none."""

    def commit(self, tokens: Sequence[int], cost: StepCost | None) -> None:
        """See Proposer. The tokens are added to the session."""
        self._sequence.commit(tokens)
        if cost is not None and self.policy is not None:
            self.policy.learn_step(len(tokens), cost)

    def interrupt(self) -> None:
        """Abort the current decode, because the text ends. From any thread."""
