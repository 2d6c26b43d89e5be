"""The target's loop: decode, verify, commit. Without a draft it is plain autoregressive decoding."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from duo.engine.decoder import Decoder
from duo.engine.drafting import Drafting
from duo.engine.metrics import Metrics
from duo.engine.queue import CandidateQueue
from duo.engine.text import CONTEXT_FULL, LIMIT, Ending
from duo.spec.policy import StepCost
from duo.spec.schedule import Schedule
from duo.spec.types import Candidates, Step
from duo.spec.verify import Verifier


def generate(
    target: Decoder,
    queue: CandidateQueue,
    drafting: Drafting,
    verifier: Verifier,
    ending: Ending,
    metrics: Metrics,
    on_prompt: Callable[[int], None] = lambda _: None,
) -> Iterator[Step]:
    """Generate from the queue's accepted tokens, of which the first `target.n_past` are in the cache already.

    Between two steps the cache holds all accepted tokens but the last, which is decoded with the next candidates.
    `on_prompt` is told how many tokens of the prompt have been decoded. Raises whatever the decode raises.
    """
    _prefill(target, queue, metrics, on_prompt)
    while ending.reason is None:
        tokens = queue.accepted_from(target.n_past)
        n_context = target.n_ctx - target.n_past - len(tokens)
        if n_context < 0 or ending.n_room == 0:
            ending.reason = CONTEXT_FULL if n_context < 0 else LIMIT
            break
        n_room = min(n_context + 1, target.n_batch - len(tokens) + 1, ending.n_room or target.n_batch)
        if target.n_rollback is not None:
            n_room = min(n_room, target.n_rollback + 1)
        began = time.perf_counter()
        # While the prompt is read, with all threads, the draft does not work beside it.
        candidates = drafting.candidates(n_room) if len(tokens) == 1 else Candidates()
        start = time.perf_counter()
        logits = target.decode([*tokens, *candidates.tokens], len(candidates) + 1)
        end = time.perf_counter()
        position = target.n_past - len(candidates)
        if drafting.schedule is Schedule.ASYNC:  # in turns, it is the draft's time
            metrics.waited(began, start)
        metrics.decoded(start, end, len(tokens) + len(candidates))

        recent = queue.accepted_from(max(0, position - verifier.n_recent)) if verifier.n_recent else ()
        acceptance = verifier.verify(logits, candidates, position, recent)
        n_accepted = len(acceptance.accepted)
        verified = metrics.detail("target", "verify", end, len(candidates))
        target.rollback(position + n_accepted)
        n_wrong = len(candidates) - n_accepted
        judged = metrics.detail("target", "rollback", verified, n_wrong) if n_wrong else verified
        text = ending.push(acceptance.tokens)
        written = acceptance.tokens[: len(text)]
        n_accepted = min(n_accepted, len(written))
        # The first step may hold a prompt, which says nothing about later ones.
        cost = StepCost(len(candidates), end - start, time.perf_counter() - began) if len(tokens) == 1 else None
        queue.commit(written, cost)
        metrics.stepped(judged, len(candidates), n_accepted, len(written), drafting.schedule)
        yield Step(written, n_accepted, text, candidates.tokens[len(acceptance.accepted) :])


def _prefill(target: Decoder, queue: CandidateQueue, metrics: Metrics, on_prompt: Callable[[int], None]) -> None:
    """Decode the prompt up to its last batch, which belongs to the first step."""
    prompt = queue.accepted_from(0)
    metrics.n_prompt = len(prompt)
    while len(prompt) - target.n_past > target.n_batch:
        start = time.perf_counter()
        batch = prompt[target.n_past : target.n_past + target.n_batch]
        target.decode(batch, n_rows=0)
        metrics.decoded(start, time.perf_counter(), len(batch))
        on_prompt(target.n_past)
