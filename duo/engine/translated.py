"""A draft with another vocabulary: see duo/speculation/translation.py."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from duo.engine.drafter import DraftUpdate, TargetSide
from duo.engine.recorder import Recorder
from duo.errors import PromptError
from duo.llama.model import Model
from duo.speculation.chat_markers import convert, find_markers
from duo.speculation.sampling import Greedy
from duo.speculation.translation import SURE, Translator
from duo.speculation.types import Candidate, Logits, whole

MORE_TOKENS = 1.5  # room in the draft's context for a token of the target's: more than most texts need

_MAX_LIKELY = 16  # tokens among which a longer one is looked for


class Translation:
    """What is needed to translate any text of a target for a draft with another vocabulary."""

    def __init__(self, target: Model, draft: Model) -> None:
        self._target = target
        self._draft = draft
        # BOS is not part of Model.prompt_text(), and Model.tokenize() does not add it twice.
        bos = target.spelling([target.bos]).decode("utf-8", "replace") if target.bos >= 0 else ""
        ours = find_markers(target.apply_chat_template, bos)
        theirs = find_markers(draft.apply_chat_template, "") if ours is not None else None
        self._markers = (ours, theirs) if ours is not None and theirs is not None else None

    def begin(self, text: Sequence[int]) -> tuple[list[int], Translator]:
        """The target's prompt `text` in the draft's tokens, at least one, and the translator of what follows."""
        data = self._target.prompt_text(text)
        n_whole = whole(data)
        prompt = data[:n_whole].decode("utf-8", "replace")
        if self._markers is not None:
            prompt = convert(prompt, *self._markers)
        try:
            tokens = self._draft.tokenize(prompt)
        except PromptError:  # the draft's vocabulary lacks a character
            tokens = self._draft.fragment(prompt.encode())
        tokens = tokens or [max(self._draft.bos, self._draft.eos, 0)]
        return tokens, Translator(self._target, self._draft, len(text), tokens, data[n_whole:])

    def sampler(self, *, ends: bool) -> Greedy:
        """Greedy, whatever the target's sampler: accepted as often or more. `ends`: whether it may end a text."""
        return Greedy(() if ends else self._draft.end_tokens)


@dataclass(slots=True)
class TranslatedTarget:
    """Stands between a Drafter, which has tokens and positions of its own, and the side of its target."""

    target: TargetSide
    translator: Translator
    metrics: Recorder
    local: bool = True  # whether a candidate may be replaced by a later one
    tentative: Callable[[], bool] = lambda: False  # whether to offer tokens that may change with the next drafted one
    _epoch: int = 0
    _replaces: bool = False  # whether the next candidate replaces the last token told: see DraftUpdate.longer

    def begin(self) -> DraftUpdate:
        """See TargetSide. What is left of the drafted text after a rejection is offered again."""
        while True:
            accepted = self.target.begin()
            self.translator.accept(accepted.tokens, is_new_chain=accepted.epoch != self._epoch)
            self._epoch = accepted.epoch
            if not self._offer(0, 0.0):
                break
        n_replaced, told, is_open = self.translator.tell()
        self._replaces = False
        return DraftUpdate(self.translator.n_retold, told, n_replaced, self._longer if is_open else None)

    def _longer(self, logits: Logits, token: int) -> Candidate | None:
        """See DraftUpdate. Where the target's tokens split a word, the draft's may be longer."""
        piece, n = self.translator.piece(token), min(_MAX_LIKELY, len(logits))
        likely = {token, *logits.argpartition(-n)[-n:].tolist()}
        found = [(float(logits[one]), one) for one in likely if self.translator.piece(one).startswith(piece)]
        best, *others = sorted(found, reverse=True)
        if best[1] == token:
            return None
        self._replaces = True
        return Candidate(best[1], min(SURE, best[0] - others[0][0]))

    def publish(self, epoch: int, position: int, candidate: Candidate, n_tokens: int, seconds: float) -> bool:  # noqa: ARG002
        """See TargetSide. True: where the target contradicts the text, begin() says so."""
        self.translator.draft(candidate.token, candidate.confidence, replaces=self._replaces)
        self._replaces = False
        self._offer(n_tokens, seconds * self.translator.ratio)
        return True

    def _offer(self, n_tokens: int, seconds: float) -> bool:
        """Offer what can be offered now; `seconds` per token, for the first of which `n_tokens` were decoded."""
        offers = self.translator.offers(tentative=self.tentative(), replace=self.local)
        self.metrics.lost_to_translation = self.translator.n_lost
        for position, (_, token, confidence) in offers:
            self.target.publish(self._epoch, position, Candidate(token, confidence), n_tokens, seconds)
            n_tokens = 0
        return bool(offers)
