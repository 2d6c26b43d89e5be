"""The contexts of a target and its draft: size, creation, and a warm-up for what their first decodes cost once."""

import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from duo.config import ContextConfig, DraftConfig, EngineConfig, ThreadConfig
from duo.config.model_config import ROWS
from duo.engine.decoder import Decoder
from duo.errors import DecodeError, MemoryLimitError, ModelError, PromptError
from duo.llama.block import BlockContext
from duo.llama.block_shape import Block
from duo.llama.build import CPU
from duo.llama.context import Context
from duo.llama.eagle3 import Eagle3Context
from duo.llama.gguf_header import DFLASH, n_mtp
from duo.llama.heads import HeadContext
from duo.llama.limits import available_bytes
from duo.llama.model import Model
from duo.llama.mtp import ChainedHeadContext, MtpContext, SharedHeadContext
from duo.models.fitting import DEVICE_CTX
from duo.speculation.acceptance import N_DEPTHS
from duo.speculation.constants import DEFAULT
from duo.speculation.draft_estimates import DraftEstimates

log = logging.getLogger("duo.engine")

_LONG = 2**20  # characters that are tokenised in about a second
# Quantisations whose kernels give the same bits for two rows or more: see tests/process/llama/test_exact.py.
_EXACT = ("F32", "F16", "Q4_0", "Q4_1", "Q8_0")
_HEAD_BATCH = 128
_ALTERNATIVES = 8
_PAIR = 2  # tokens of the only batch of a warm-up on the CPU, as in llama.cpp
# Seconds of decodes after which no further size is decoded on devices: with layers on the CPU, a batch may take one.
_MAX_S = 2.0
SHARED_CELLS = 4096  # that texts of unknown length have together, if that is not more than `n_ctx` for each
_SHOWN_EVERY_S = 2.0  # the progress of a warm-up that takes longer
N_SEQUENCES = (2, 5, 9)  # for which the time of a draft with branches is measured
_MAX_BRANCHED_S = 0.1  # after which no more sequences are tried


def context_size(model: Model, config: EngineConfig, n_prompt: int, n_predict: int, n_reusable: int) -> int:
    """Tokens of a context for a prompt of `n_prompt` tokens and `n_predict` more (-1: unknown).

    `n_reusable` is the size of a context that was made for a text of unknown length; 0: none. Raises PromptError if the
    prompt exceeds `n_ctx` or, by default, the context that the model was trained for.
    """
    if config.n_ctx:
        n_ctx = config.n_ctx
    elif n_predict >= 0:
        n_ctx = min(model.n_ctx_train, n_prompt + n_predict)
    elif n_reusable and n_prompt <= n_reusable:
        n_ctx = n_reusable
    else:
        n_ctx = _largest(model, config, n_prompt)
    if n_prompt > n_ctx:
        origin = "n_ctx" if config.n_ctx else "what the model was trained for"
        raise PromptError(f"the prompt has {n_prompt} tokens, the context {n_ctx} ({origin})")
    return n_ctx


def check_length(model: Model, config: EngineConfig, text: str) -> None:
    """Raise PromptError for a text that is too long for any context, before it is tokenised, which takes long."""
    if len(text) < _LONG:
        return
    n_ctx, n_bytes = config.n_ctx or model.n_ctx_train, len(text.encode())
    if n_bytes > n_ctx * model.longest_token:
        raise PromptError(f"the prompt has {n_bytes} bytes, too many for a context of {n_ctx} tokens")


def _largest(model: Model, config: EngineConfig, n_prompt: int) -> int:
    """The context for a text of unknown length: within half of the memory, and DEVICE_CTX if layers are on devices."""
    n_ctx = model.n_ctx_train if model.places == {CPU} else max(n_prompt, min(DEVICE_CTX, model.n_ctx_train))
    available, full = available_bytes(), sum(model.size.cache_bytes(config.context(n_ctx, 1, 1, 0)))
    if available is not None and full > available // 2:
        n_ctx = max(n_prompt, n_ctx * (available // 2) // full)
    return n_ctx


def n_shared(target: Model, draft: Model | None, config: EngineConfig) -> int:
    """Texts that may be written together; 1: their logits would be others, or their caches cannot be shared."""
    is_windowed = target.header.number("attention.sliding_window") > 0
    can_share = target.can_roll_back and not config.exact and not is_windowed
    n_rows = min(config.n_batch, config.n_ubatch, ROWS)
    return min(config.n_slots, n_rows) if can_share and not (draft is not None and draft.shares_cache) else 1


def target_context(
    model: Model,
    config: EngineConfig,
    threads: ThreadConfig,
    n_ctx: int,
    n_max: int,
    n_texts: int = 1,
    n_cells: int = 0,
    *,
    has_head: bool = False,
) -> Context:
    """The target's context, for at most `n_max` candidates. Raises MemoryLimitError, ModelError or UsageError.

    For `n_texts` with `n_cells` in all, or n_ctx if there is no memory for more. With alternatives to candidates, where
    they may change the last bits, and no head reads the rows of accepted tokens where those of candidates are.
    """
    can_have = model.can_roll_back and not model.header.number("attention.sliding_window") > 0
    n_alternatives = _ALTERNATIVES if can_have and not config.exact and not has_head else 0
    if config.exact and model.quantisation not in _EXACT:
        log.warning("%s is not bit-equal from five rows on: near-ties may still differ", model.quantisation)
    wanted = config.context(n_ctx, threads.target, threads.target_batch, n_max + n_alternatives)
    wanted = replace(wanted, n_texts=n_texts, n_alternatives=n_alternatives)
    context = _shared_context(model, wanted, n_cells)
    if config.exact and context.n_rollback == 0:
        log.warning("%s cannot roll back its cache: its decodes are not exact", model.path.name)
        context.close()
        context = Context(model, replace(wanted, exact=False))
    return context


def _shared_context(model: Model, wanted: ContextConfig, n_cells: int) -> Context:
    try:
        return Context(model, replace(wanted, n_cells=n_cells))
    except MemoryLimitError:
        if n_cells <= wanted.n_ctx:
            raise
        return Context(model, wanted)


def can_verify(model: Model, context: Context, config: EngineConfig, n_max: int) -> bool:
    """Whether the target can roll back rejected candidates; warns if not, or if fewer than were asked for."""
    if not context.probe_rollback():
        log.warning("%s cannot roll back its cache: speculation is off", model.path.name)
        return False
    most, asked = context.n_rollback, config.draft_n_max
    if most and asked is not None and most < n_max:
        log.warning("draft_n_max %d: %s can roll back %d tokens, so no more are verified", asked, model.path.name, most)
    return True


def draft_context(
    model: Model, config: EngineConfig, threads: ThreadConfig, n_ctx: int, n_branches: int = 0, n_texts: int = 1,
    n_cells: int = 0,
) -> Context | None:  # fmt: skip
    """The draft's context; None, with a warning, if it cannot roll back. Otherwise as target_context()."""
    if not model.can_roll_back:
        log.warning("%s cannot roll back its cache: speculation is off", model.path.name)
        return None
    sizes = (config.n_batch, config.n_ubatch, DEFAULT.probe_tokens)
    n_ctx = min(n_ctx + config.drafting().n_ahead, model.n_ctx_train)
    wanted = ContextConfig(n_ctx, 1, threads.target, *sizes, n_branches=n_branches, n_texts=n_texts)
    return _shared_context(model, wanted, n_cells)


def warm_up(context: Decoder, model: Model, n_most: int, n_rows_most: int = 1) -> float:
    """Decode a batch of two tokens or, with layers on other devices, of each size from 1 to `n_most` (at least 2).

    Devices compile for each size, which may take seconds for the first text that a machine ever writes with a model;
    then the progress is logged. Each batch returns `n_rows_most` rows of logits, or one per token if it has fewer.
    Leaves the cache empty. A decode that fails is not an error: the text's own will fail with the reason. Returns the
    seconds of the fastest one; infinity if none could be decoded.
    """
    most = min(max(_PAIR, n_most), context.n_batch, context.n_ctx)
    sizes = [min(_PAIR, most)] if model.places == {CPU} else [1, *range(1, most + 1)]
    some = [token for token in (model.bos, model.eos) if token >= 0] or [0]
    one_s, least_s, start = 0.0, math.inf, time.perf_counter()
    shown = start
    with _trying():
        for n in sizes:
            # Measured without compiling: a batch takes at least as long as one token.
            if n > _PAIR and n * one_s > _MAX_S:
                break
            seconds = _time(context, (n * some)[:n], min(n, n_rows_most))
            least_s = min(least_s, seconds)
            one_s = one_s if n > 1 else seconds
            if time.perf_counter() - shown > _SHOWN_EVERY_S:
                shown = time.perf_counter()
                log.info("warming up %s: %d of %d batch sizes", model.path.name, n, sizes[-1])
    if shown > start:
        log.info("warmed up %s in %.0f s", model.path.name, time.perf_counter() - start)
    return least_s


def time_draft(context: Decoder, model: Model, threads: ThreadConfig, estimates: DraftEstimates) -> None:
    """Measure what is not known of a warm draft: the time of a token by threads, and in several sequences."""
    with _trying():
        for n_threads in threads.draft:
            if not estimates.costs.knows(n_threads):
                context.set_threads(n_threads, n_threads)
                estimates.learn_warmup(n_threads, _time_token(context, model))
        context.set_threads(threads.concurrent[1], threads.concurrent[1])
        unknown = [n for n in N_SEQUENCES if not estimates.costs.knows(1, n)]
        times = time_sequences(context, model, unknown)
        for n in unknown:
            if n in times:
                estimates.learn_branches(n, times[n] / times[1])


def time_sequences(context: Decoder, model: Model, numbers: Sequence[int] = N_SEQUENCES) -> dict[int, float]:
    """Seconds for a token in each of so many sequences, and of one, as far as there are branches and time for it."""
    found, several = dict[int, float](), [n for n in numbers if n - 1 <= context.n_branches]
    with _trying():
        for n in [1, *several] if several else ():
            found[n] = _time_token(context, model, n)
            if n > 1 and found[n] > _MAX_BRANCHED_S:
                break
    return found


def head_context(model: Model, config: EngineConfig, threads: ThreadConfig, target: Context) -> HeadContext | None:
    """The context of a head, for all that the target's holds. Raises as target_context() does.

    If nobody has asked for it (a layer of the target, a file beside it), None, with a warning, where that fails; or in
    place of a file that of the layer.
    """
    try:
        return _head_context(model, config, threads, target)
    except (ModelError, MemoryLimitError) as error:
        if model is not target.model and not model.was_found:
            raise
        is_layer = model is target.model
        log.warning("%s is not used: %s", "the MTP layer" if is_layer else model.path.name, error)
        return head_context(target.model, config, threads, target) if target.model.has_mtp and not is_layer else None


def _head_context(model: Model, config: EngineConfig, threads: ThreadConfig, target: Context) -> HeadContext:
    # llama.cpp reserves logits for all tokens of a batch of a head.
    n_block = _n_block(model) + 1  # tokens
    sizes = (config.n_batch, max(min(config.n_ubatch, _HEAD_BATCH), n_block), max(DEFAULT.probe_tokens, n_block))
    n_more = max(config.drafting().n_ahead, n_block) + 1
    wanted = ContextConfig(target.n_ctx + n_more, 1, threads.target, *sizes)
    if model.shares_cache:
        own = replace(wanted, flash_attn=target.flash_attn, type_k=config.type_k, type_v=config.type_v)
        return SharedHeadContext(model, own, target)
    return head_type(model)(model, wanted, target)


def head_type(model: Model) -> type[Eagle3Context | MtpContext | BlockContext]:
    """The context of a head with a cache."""
    if not model.has_mtp:
        return BlockContext if model.header.architecture == DFLASH else Eagle3Context
    return ChainedHeadContext if n_mtp(model.header) > 1 else MtpContext


def takes_turns(head: Model, target: Model) -> bool:
    """Whether a head never computes beside its target: it shares its device or cache, or needs its latest rows."""
    return head is target or head.shares_cache or n_mtp(head.header) > 1 or head.header.architecture == DFLASH


def head_limits(head: Model, drafting: DraftConfig) -> tuple[DraftConfig, dict[str, int]]:
    """The limits of a head, and what its DraftEstimates must know."""
    block, depth = _n_block(head), n_mtp(head.header)
    n_max = min(drafting.n_max, block or (depth if depth > 1 else drafting.n_max))
    return replace(drafting, n_max=n_max), {"n_depths": N_DEPTHS, "block": min(block, n_max)}


def _n_block(model: Model) -> int:
    """The most candidates of a block; 0: it drafts one by one."""
    return Block.of(model.header).n_most if model.header.architecture == DFLASH else 0


@contextmanager
def _trying() -> Iterator[None]:
    try:
        yield
    except (DecodeError, ModelError) as error:
        log.debug("the warm-up ended: %s", error)


def _time_token(context: Decoder, model: Model, n_sequences: int = 1) -> float:
    """For a token in each sequence: of some decodes the fastest, as the first has to start threads."""
    n = 2 if model.places == {CPU} else 4  # CUDA records a graph of the second or third like it (ggml-cuda.cu)
    return min(_time(context, [max(model.bos, model.eos, 0)], 1, n_sequences) for _ in range(n))


def _time(context: Decoder, tokens: list[int], n_rows: int, n_sequences: int = 1) -> float:
    """Seconds for `tokens`, or the first of them in each sequence, in an empty cache, which is emptied again."""
    branches = range(1, n_sequences)
    for sequence in branches:
        context.branch(sequence, 0)
    start = time.perf_counter()
    try:
        if branches:
            context.decode_each([(sequence, tokens[0]) for sequence in range(n_sequences)])
        else:
            context.decode(tokens, n_rows)
        return time.perf_counter() - start
    finally:
        for sequence in branches:
            context.drop(sequence)
        context.rollback(0)
