"""Records how a draft predicts its target's texts, for replays: benchmarks/machines/traces/PAIR.json.

python -m benchmarks.traces PAIR... [-n TOKENS]

After each prompt the target writes greedily up to its end of text, and the draft predicts each token from the target's
own ones. A trace is a string with a letter per token: its place in the alphabet is the bin of the prediction's
confidence (Calibration.EDGES), and it is a capital letter if the prediction is right. Loops are easy to predict: a text
that loops is cut to its first half until it does not.
"""

from __future__ import annotations

import argparse
import json
import sys
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import ExitStack, closing

from benchmarks import regret
from benchmarks.models import PAIRS, prompt_files
from duo.bench.texts import loops
from duo.config import ContextConfig, ModelConfig
from duo.engine.decoder import Decoder, decode_all
from duo.llama.context import Context
from duo.llama.fingerprint import vocabulary_difference
from duo.llama.model import Model
from duo.spec.calibration import Calibration
from duo.spec.sampling import Greedy

FOLDER = regret.FOLDER / "traces"
_ROWS = 32


def traces(pair: str, n_tokens: int) -> dict[str, str]:
    """The trace of each prompt of a pair."""
    target_path, draft_path, prompts = PAIRS[pair]
    with ExitStack() as stack:
        models = [stack.enter_context(closing(Model(ModelConfig(path())))) for path in (target_path, draft_path)]
        if difference := vocabulary_difference(*models):
            raise SystemExit(f"{pair}: traces need a draft with the target's vocabulary: {difference}")
        config = ContextConfig(2048, 1, 1, n_outputs_max=_ROWS)
        target, draft = (stack.enter_context(closing(Context(model, config))) for model in models)
        found = {}
        for path in prompt_files(prompts):
            text = path.read_text(encoding="utf-8")
            prompt = models[0].tokenize(text)
            tokens = without_loops(models[0], written(models[0], target, prompt, n_tokens), text)
            found[path.stem] = predicted(draft, prompt, tokens)
            right = sum(letter.isupper() for letter in found[path.stem])
            print(f"{pair} {path.stem}: {len(tokens)} tokens, {right / len(tokens):.2f}", file=sys.stderr, flush=True)
        return found


def written(model: Model, target: Decoder, prompt: Sequence[int], n_tokens: int) -> list[int]:
    """The target's tokens after `prompt`, up to the end of its text."""
    target.rollback(0)
    logits, tokens = decode_all(target, prompt), list[int]()
    while len(tokens) < n_tokens:
        tokens.append(Greedy().sample(logits[0], len(tokens)))
        if model.is_end(tokens[-1]):
            break
        logits = target.decode(tokens[-1:])
    return tokens


def without_loops(model: Model, tokens: list[int], prompt: str) -> list[int]:
    """The part of a text that does not loop."""
    while loops(b"".join(map(model.piece, tokens)).decode(errors="replace"), prompt):
        tokens = tokens[: len(tokens) // 2]
    return tokens


def predicted(draft: Decoder, prompt: Sequence[int], tokens: Sequence[int]) -> str:
    """The trace of a text."""
    draft.rollback(0)
    decode_all(draft, prompt[:-1])
    given, found = [prompt[-1], *tokens], ""
    for start in range(0, len(tokens), _ROWS):
        batch = given[start : min(start + _ROWS, len(tokens))]
        for row, token in zip(draft.decode(batch, len(batch)), tokens[start:], strict=False):
            guess = Greedy().guess(row, 0)
            letter = regret.LETTERS[bisect_right(Calibration.EDGES, guess.confidence)]
            found += letter.upper() if guess.token == token else letter
    return found


def main() -> None:
    """Record the pairs named on the command line."""
    found = argparse.ArgumentParser(prog="python -m benchmarks.traces", description=(__doc__ or "").splitlines()[0])
    found.add_argument("pairs", nargs="+", choices=PAIRS, metavar="PAIR", help=f"one of {', '.join(PAIRS)}")
    found.add_argument("-n", "--n-tokens", type=int, default=512, metavar="N", help="of a text, at most (default: 512)")
    options = found.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    for pair in options.pairs:
        text = json.dumps(traces(pair, options.n_tokens), indent=1) + "\n"
        (FOLDER / f"{pair}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
