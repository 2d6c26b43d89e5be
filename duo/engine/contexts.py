"""Size and creation of the contexts of a target and its draft."""

from __future__ import annotations

import logging
from dataclasses import replace

from duo.config import ContextConfig, EngineConfig, ThreadConfig
from duo.errors import PromptError
from duo.llama.build import CPU
from duo.llama.context import Context
from duo.llama.memory import available_bytes
from duo.llama.model import Model
from duo.models.fitting import DEVICE_CTX
from duo.spec.constants import DEFAULT

log = logging.getLogger("duo.engine")

# Quantisations whose kernels give the same bits for two rows or more: see tests/process/llama/test_exact.py.
_LONG = 2**20  # characters that are tokenised in about a second
_EXACT = ("F32", "F16", "Q4_0", "Q4_1", "Q8_0")


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
    n_ctx, longest = config.n_ctx or model.n_ctx_train, max(len(model.piece(token)) for token in range(model.n_vocab))
    if (n_bytes := len(text.encode())) > n_ctx * longest:
        raise PromptError(f"the prompt has {n_bytes} bytes, too many for a context of {n_ctx} tokens")


def _largest(model: Model, config: EngineConfig, n_prompt: int) -> int:
    """The context for a text of unknown length: what the model was trained for, within half of the available memory.

    With layers on devices, where the KV cache competes with them for memory, at most DEVICE_CTX.
    """
    n_ctx = model.n_ctx_train if model.places == {CPU} else max(n_prompt, min(DEVICE_CTX, model.n_ctx_train))
    available, full = available_bytes(), sum(model.size.cache_bytes(config.context(n_ctx, 1, 1, 0)))
    if available is not None and full > available // 2:
        n_ctx = max(n_prompt, n_ctx * (available // 2) // full)
    return n_ctx


def target_context(model: Model, config: EngineConfig, threads: ThreadConfig, n_ctx: int, n_max: int) -> Context:
    """The target's context, for at most `n_max` candidates. Raises MemoryLimitError, ModelError or UsageError."""
    if config.exact and model.quantisation not in _EXACT:
        log.warning("%s is not bit-equal from five rows on: near-ties may still differ", model.quantisation)
    wanted = config.context(n_ctx, threads.target, threads.target_batch, n_max)
    context = Context(model, wanted)
    if config.exact and context.n_rollback == 0:
        log.warning("%s cannot roll back its cache: its decodes are not exact", model.path.name)
        context.close()
        context = Context(model, replace(wanted, exact=False))
    return context


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
    model: Model, config: EngineConfig, threads: ThreadConfig, n_ctx: int, n_branches: int = 0
) -> Context | None:
    """The draft's context; None, with a warning, if it cannot roll back. Raises as target_context() does."""
    if not model.can_roll_back:
        log.warning("%s cannot roll back its cache: speculation is off", model.path.name)
        return None
    n_ctx = min(n_ctx + config.drafting().n_ahead, model.n_ctx_train)
    batches = (config.n_batch, config.n_ubatch)
    n_outputs = DEFAULT.probe_tokens
    return Context(
        model, ContextConfig(n_ctx, 1, threads.target, *batches, n_outputs_max=n_outputs, n_branches=n_branches)
    )
