"""Warm-up: what the first decodes of new contexts cost once, such as reading weights from the disk, costs no text."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence

from duo.engine.decoder import Decoder
from duo.errors import DecodeError
from duo.llama.build import CPU
from duo.llama.model import Model
from duo.spec.policy import Policy

log = logging.getLogger("duo.engine")

_PAIR = 2  # tokens of the only batch on the CPU, as in llama.cpp
N_SEQUENCES = (2, 5, 9)  # for which the time of a draft with branches is measured
_MOST_BRANCHED_S = 0.1  # after which no more sequences are tried
_N_TIMED = 2  # decodes of which the faster counts: the first one with other threads has to start them
# Of decodes, after which no further size is decoded on devices: with layers on the CPU, a batch may take a second.
_MOST_S = 2.0
_SHOWN_EVERY_S = 2.0  # the progress of a warm-up that takes longer


def warm_up(context: Decoder, model: Model, n_most: int, n_rows_most: int = 1) -> None:
    """Decode a batch of two tokens or, with layers on other devices, of each size from 1 to `n_most` (at least 2).

    Devices compile for each size, which may take seconds for the first text that a machine ever writes with a model;
    then the progress is logged. Each batch returns `n_rows_most` rows of logits, or one per token if it has fewer.
    Leaves the cache empty. A decode that fails is not an error: the text's own will fail with the reason.
    """
    most = min(max(_PAIR, n_most), context.n_batch, context.n_ctx)
    if model.places == {CPU}:
        few = min(_PAIR, most)
        _decode(context, _tokens(model, few), min(few, n_rows_most))
        return
    one_s, shown = 0.0, time.perf_counter()
    for n in range(1, most + 1):
        # Measured without compiling: a batch takes at least as long as one token.
        if n > _PAIR and n * one_s > _MOST_S:
            return
        if not _decode(context, _tokens(model, n), min(n, n_rows_most)):
            return
        now = time.perf_counter()
        if now - shown > _SHOWN_EVERY_S:
            shown = now
            log.info("warming up %s: %d of %d batch sizes", model.path.name, n, most)
        if n == 1:
            if not _decode(context, _tokens(model, n)):
                return
            one_s = time.perf_counter() - now


def time_draft(context: Decoder, model: Model, choices: Iterable[int], policy: Policy) -> None:
    """Tell `policy` the time of one token with each number of threads of `choices` for which it knows none.

    The context must be warm. Leaves its cache empty, and the last number of threads set.
    """
    for n_threads in choices:
        if policy.knows_draft(n_threads):
            continue
        context.set_threads(n_threads, n_threads)
        times = []
        for _ in range(_N_TIMED):
            start = time.perf_counter()
            if not _decode(context, _tokens(model, 1)):
                return
            times.append(time.perf_counter() - start)
        policy.learn_warmup(n_threads, min(times))


def time_branches(context: Decoder, model: Model, policy: Policy) -> None:
    """Tell `policy` how much longer one token for each of several sequences takes than one, where it does not know.

    The context must be warm. Leaves its cache empty. Ends early where a decode takes long.
    """
    unknown = [n for n in N_SEQUENCES if n - 1 <= context.n_branches and not policy.knows_draft(1, n)]
    if not unknown or not (one_s := _time_each(context, model, 1)):
        return
    for n in unknown:
        if not (seconds := _time_each(context, model, n)):
            return
        policy.learn_branches(n, seconds / one_s)
        if seconds > _MOST_BRANCHED_S:
            return


def _time_each(context: Decoder, model: Model, n: int) -> float:
    """Seconds for one token in each of `n` sequences: the faster of two decodes; 0 if one failed."""
    token, times = _tokens(model, 1)[0], []
    for _ in range(_N_TIMED):
        start = time.perf_counter()
        if not _decode_each(context, token, n):
            return 0.0
        times.append(time.perf_counter() - start)
    return min(times)


def _decode_each(context: Decoder, token: int, n: int) -> bool:
    """Decode one token for each of `n` sequences in an empty cache, and empty it. False if that failed."""
    for sequence in range(1, n):
        context.branch(sequence, 0)
    try:
        context.decode_each([(sequence, token) for sequence in range(n)])
    except DecodeError as error:
        log.debug("the warm-up ended: %s", error)
        return False
    finally:
        for sequence in range(1, n):
            context.drop(sequence)
        context.rollback(0)
    return True


def _tokens(model: Model, n: int) -> list[int]:
    """BOS and EOS, as far as the vocabulary has them, as often as needed."""
    some = [token for token in (model.bos, model.eos) if token >= 0] or [0]
    return (n * some)[:n]


def _decode(context: Decoder, tokens: Sequence[int], n_rows: int = 1) -> bool:
    """Decode in an empty cache, and empty it. False if that failed or was aborted."""
    try:
        context.decode(tokens, n_rows)
    except DecodeError as error:
        log.debug("the warm-up ended: %s", error)
        return False
    finally:
        context.rollback(0)
    return True
