"""Proposers: whatever proposes candidates for the texts that are being written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from duo.config.model_config import ROWS
from duo.speculation.types import Candidate, Origin, Proposal

if TYPE_CHECKING:
    import threading

    from duo.config import DraftConfig, SamplingConfig
    from duo.engine.async_draft import AsyncDraft
    from duo.engine.memories import ShadowMemory
    from duo.engine.recorder import Recorder
    from duo.engine.request import Ending
    from duo.llama.context import Context
    from duo.llama.model import Model
    from duo.speculation.memory import Memory
    from duo.speculation.prompt_lookup import PromptLookup
    from duo.speculation.sampling import CandidateSampler
    from duo.speculation.target_costs import TargetCosts
    from duo.speculation.verify import Verifier


@dataclass(slots=True, eq=False)
class RunningText:
    """A text that is being written."""

    tokens: list[int]  # the prompt and everything that the target has added
    ending: Ending
    recorder: Recorder
    verifier: Verifier
    sampler: CandidateSampler  # of a local draft
    sampling: SamplingConfig  # from which a remote draft makes its own sampler
    n_vocab: int
    banned: Sequence[int] = ()  # tokens that must not be chosen
    mode: str = ""  # of sampling: see Controller.begin()
    judges_all: bool = True  # whether candidates that were not verified are scored, by comparison with the target's
    n_most: int = ROWS  # candidates in a batch, of whatever proposer
    n_prompt: int = field(init=False)
    n_fresh: int = 1  # tokens that the next step decodes besides candidates; several: the end of the prompt
    n_room: int = 0  # tokens that the next step may add

    def __post_init__(self) -> None:
        self.n_prompt = len(self.tokens)


class Result(NamedTuple):
    """What a step adds to one text."""

    tokens: tuple[int, ...]  # up to the end of the text
    pieces: tuple[bytes, ...] = ()  # the bytes of each
    n_right: int = 0  # candidates that were accepted
    n_candidates: int = 0  # that were verified
    origin: Origin = Origin.DRAFT  # of the candidates; DRAFT if there were none
    draft: str = ""  # the draft that proposed them, or might have; empty: none
    is_usual: bool = True  # whether the step decoded no part of the prompt, and compiled nothing
    judged: float = 0.0  # when its tokens were verified
    has_alternative: bool = False  # whether the last one that was accepted is an alternative to a candidate

    @property
    def is_looked_up(self) -> bool:
        """Whether the lookup found all but the last token.

        A draft predicts such tokens more often than others, on which alone it can gain: it is not judged by them.
        """
        return self.is_usual and self.origin is Origin.LOOKUP and len(self.tokens) > 1


class Proposer:
    """Proposes what the target may write next; this one nothing. The target's thread calls it, except interrupt().

    At each step, the controller compares what all proposers have by value. What a proposer's candidates cost, and how
    likely they are, is data: see Proposal and DraftEstimates. Each begin() starts from all tokens accepted so far.
    """

    def begin(self, text: RunningText) -> None:
        """Start proposing for a text."""

    def propose(self, texts: Sequence[RunningText]) -> Proposal:  # noqa: ARG002
        """What there is for the next batch. Never blocks, except for a draft in turns that is scored on the text."""
        return Proposal()

    def wait(self, seconds: float, expected: Sequence[Candidate] = ()) -> None:
        """Wait up to `seconds` for one more candidate, or make it. If none came, the next proposal expects none.

        `expected`: what the next candidates may be. A draft in turns can then make several at once.
        """

    def verifies(self, n: int) -> None:
        """The target verifies the first `n` of its candidates now."""

    def commit(self, results: Sequence[Result]) -> None:
        """The target has added tokens to the texts.

        Called before the target's next decode, so what this one has left in its context, such as hidden rows of the
        accepted positions, can still be read.
        """

    def end(self) -> None:
        """Stop. A second call does nothing."""

    def interrupt(self) -> None:
        """Abort the current decode, because the text ends. From any thread."""


class LookupProposer(Proposer):
    """The text itself, and a memory of earlier ones: what followed earlier occurrences of the last tokens."""

    def __init__(
        self, lookup: PromptLookup, n_most: int, memory: Memory | None = None, owner: str = "",
        shadow: ShadowMemory | None = None,
    ) -> None:  # fmt: skip
        """`n_most`: candidates in a batch. `memory` and `shadow`: learn each text that ends. `owner`: of the text."""
        self._lookup, self._n_most, self._memory, self._owner, self._shadow = lookup, n_most, memory, owner, shadow
        self._text: RunningText | None = None
        self._found: Proposal | None = None  # for the next step

    def begin(self, text: RunningText) -> None:
        self._lookup.begin(text.tokens, self._owner)
        if self._memory is not None:
            self._memory.begin(text.tokens[text.n_prompt :])
        self._text, self._found = text, None

    def propose(self, texts: Sequence[RunningText]) -> Proposal:
        if texts[0].n_fresh > 1:
            return Proposal()
        if self._found is None:
            self._found = self._lookup.propose(self._n_most, self._memory)
        return self._found

    def commit(self, results: Sequence[Result]) -> None:
        self._lookup.extend(results[0].tokens)
        if self._memory is not None:
            self._memory.extend(results[0].tokens)
        self._found = None

    def end(self) -> None:
        text, self._text = self._text, None
        if text is not None:
            if self._shadow is not None and text.ending.reason is not None:
                self._shadow.compare(text.tokens, text.n_prompt, self._lookup)
            self.learn(text)

    def learn(self, text: RunningText) -> None:
        """The memories learn a text, if it has ended."""
        for memory in (self._memory, self._shadow):
            if memory is not None and text.ending.reason is not None:
                memory.learn(text.tokens[text.n_prompt :])


class ConnectedDrafts(Protocol):
    """Remote drafts, which connect and disconnect. Called on the target's thread."""

    drafting: DraftConfig  # its limits, and
    costs: TargetCosts  # those of the target: set before ready()

    def ready(self, target: Model, context: Context, stop: threading.Event | None) -> None:
        """Announce the target. Waits a while for a draft that is starting, until `stop` is set."""

    def begin(self) -> None:
        """A text begins: whatever a draft has shown in earlier ones, it may be used, unless it is in use."""

    def choose(self) -> AsyncDraft | None:
        """The draft to use now, if any."""

    def choose_all(self) -> Sequence[AsyncDraft]:
        """The drafts that can be used now, each for another text."""
