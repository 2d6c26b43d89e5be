"""Records how a draft predicts its target's texts, for replays: benchmarks/machines/traces/PAIR.json.

python -m benchmarks.traces PAIR... [-n TOKENS]

After each prompt the target writes greedily up to its end of text, and the draft predicts each token from the target's
own ones. A trace is a string with a letter per token: its place in the alphabet is the bin of the prediction's
confidence (Acceptance.EDGES), and it is a capital letter if the prediction is right. Loops are easy to predict: a text
that loops is cut to its first half until it does not.
"""

from __future__ import annotations

import json
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks import argument_parser
from benchmarks.models import PAIRS, opened, prompt_files
from benchmarks.samples import FOLDER, LETTERS
from duo.bench.rounds import loops
from duo.config import ContextConfig
from duo.engine.decoder import Decoder, decode_all
from duo.engine.model_pair import ModelPair
from duo.llama.fingerprint import vocabulary_difference
from duo.llama.model import Model
from duo.speculation.acceptance import Acceptance
from duo.speculation.constants import DEFAULT
from duo.speculation.sampling import Greedy
from duo.speculation.types import Candidate

N_RANKS = len(DEFAULT.ranks)
_ROWS = DEFAULT.some  # of logits that the draft's context has room for


def traces(pair: str, n_tokens: int) -> dict[str, str]:
    """The trace of each prompt of a pair."""
    target_path, draft_path, prompts = PAIRS[pair]
    config, found = ContextConfig(2048, 1, 1, n_outputs_max=_ROWS), {}
    with opened((target_path(), draft_path()), config) as ((model, draft_model), (target, draft)):
        if difference := vocabulary_difference(model, draft_model):
            raise SystemExit(f"{pair}: traces need a draft with the target's vocabulary: {difference}")
        for path in prompt_files(prompts):
            text = path.read_text(encoding="utf-8")
            prompt = model.tokenize(text)
            tokens = written(target, prompt, n_tokens, Greedy(), model.is_end)
            tokens = without_loops(model, tokens, text)
            candidates = predictions(draft, prompt, tokens, Greedy(), model.n_vocab)
            found[path.stem] = "".join(letter(*each) for each in candidates)
            right = sum(each.isupper() for each in found[path.stem])
            print(f"{pair} {path.stem}: {len(tokens)} tokens, {right / len(tokens):.2f}", file=sys.stderr, flush=True)
    return found


def written(
    target: Decoder, prompt: Sequence[int], n_tokens: int, sampler: Greedy, is_end: Callable[[int], bool]
) -> list[int]:
    """The target's tokens after `prompt`, up to the end of its text."""
    target.rollback(0)
    tokens = list[int]()
    while not tokens or (len(tokens) < n_tokens and not is_end(tokens[-1])):
        tokens.append(sampler.sample(decode_all(target, tokens[-1:] or prompt)[-1], len(tokens)))
    return tokens


def predictions(
    draft: Decoder, prompt: Sequence[int], tokens: Sequence[int], sampler: Greedy, n_vocab: int
) -> Iterator[tuple[Candidate, int]]:
    """The draft's guess at each token of the target's text, and this token."""
    draft.rollback(0)
    decode_all(draft, prompt[:-1])
    given = [prompt[-1], *tokens[:-1]]
    for start in range(0, len(tokens), _ROWS):
        batch = given[start : start + _ROWS]
        for row, token in zip(draft.decode(batch, len(batch)), tokens[start:], strict=False):
            yield sampler.candidate(row[:n_vocab], 0), token


@dataclass(frozen=True, slots=True)
class Trace:
    scores: Sequence[tuple[float, bool]]  # confidence, and whether the prediction is right
    ranks: Sequence[int]  # of the target's token among the alternatives of each wrong one; -1: none of them

    def expected(self, k: int) -> float:
        """Mean tokens per verification if each has k candidates."""
        right, i, n_steps = [is_right for _, is_right in self.scores], 0, 0
        while i + k < len(right):
            i += next((n for n, is_right in enumerate(right[i : i + k]) if not is_right), k) + 1
            n_steps += 1
        return i / max(1, n_steps)


def traced(slot: ModelPair, prompt: Sequence[int], n_tokens: int) -> Trace:
    """A text by the target alone, and what the draft predicts. On the engine's thread. Raises DecodeError."""
    assert slot.target_cache is not None
    assert slot.draft_cache is not None
    target, draft = slot.target_cache.context, slot.draft_cache.context
    banned = slot.target.end_tokens
    tokens = written(target, prompt, n_tokens, Greedy(banned), lambda _: False)
    found = list(predictions(draft, prompt, tokens, Greedy(banned, N_RANKS), target.n_vocab))
    slot.forget()
    wrong = [(candidate.alternatives, token) for candidate, token in found if candidate.token != token]
    return Trace(
        [(candidate.confidence, candidate.token == token) for candidate, token in found],
        [others.index(token) if token in others else -1 for others, token in wrong],
    )


def without_loops(model: Model, tokens: list[int], prompt: str) -> list[int]:
    """The part of a text that does not loop."""
    while loops(b"".join(map(model.piece, tokens)).decode(errors="replace"), prompt):
        tokens = tokens[: len(tokens) // 2]
    return tokens


def letter(candidate: Candidate, token: int) -> str:
    found = LETTERS[bisect_right(Acceptance.EDGES, candidate.confidence)]
    return found.upper() if candidate.token == token else found


def main() -> None:
    found = argument_parser("traces", __doc__)
    found.add_argument("pairs", nargs="+", choices=PAIRS, metavar="PAIR", help=f"one of {', '.join(PAIRS)}")
    found.add_argument("-n", "--n-tokens", type=int, default=512, metavar="N", help="of a text, at most (default: 512)")
    options = found.parse_args()
    for pair in options.pairs:
        text = json.dumps(traces(pair, options.n_tokens), indent=1) + "\n"
        (FOLDER / "traces" / f"{pair}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
