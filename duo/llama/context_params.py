"""What a context is created with: llama.cpp's parameters, and whether there is memory for it."""

from collections.abc import Mapping
from typing import Any

import llama_cpp

from duo.config import CACHE_TYPES, ContextConfig
from duo.errors import MemoryLimitError
from duo.llama.attention import flash_is_fast
from duo.llama.build import CPU
from duo.llama.limits import available_bytes, of_size, uses_host_memory
from duo.llama.model import BRANCH_CELLS, Model

_FLASH_ATTN = {"auto": -1, "off": 0, "on": 1}
# States of a recurrent layer that are kept for a rollback. llama.cpp aborts the process if its graph has no room for
# them: that of LFM2-8B-A1B has room for 8, others for 12 and more.
_MAX_STATES = 6
_FLOATS = ("f32", "f16", "bf16")  # other types of the V cache need flash attention
_MAX_SCORES = 1 << 30  # bytes
_CELLS = 256  # the numbers of tokens that are suggested are multiples of this, as llama.cpp's numbers of cells


def context_params(model: Model, config: ContextConfig, more: Mapping[str, Any]) -> Any:
    """The llama_context_params of `config`, with `more` of its fields."""
    params = llama_cpp.llama_context_default_params()
    if not model.can_roll_back:
        # Tokens of a batch that may have to be rolled back, each of which needs the memory of one more state: all
        # candidates, or the second row of an exact decode.
        params.n_rs_seq = min(_MAX_STATES, max(config.n_outputs_max - 1, int(config.exact)))
    # llama.cpp aborts the process if the tokens to roll back, the one before them and one more do not fit.
    least = 2 + params.n_rs_seq
    params.n_ctx = max(least, config.n_ctx + config.n_branches * BRANCH_CELLS, config.n_cells)
    params.n_seq_max = config.n_texts + config.n_branches + config.n_alternatives
    params.kv_unified = params.n_seq_max > 1  # otherwise llama.cpp aborts when a part of a sequence is copied
    # One size for both: a call is one batch, which can be aborted, shown and timed.
    params.n_batch = params.n_ubatch = max(least, min(config.n_ubatch, config.n_batch))
    params.n_outputs_max = config.n_reserved
    params.n_threads, params.n_threads_batch = config.n_threads, config.n_threads_batch
    params.flash_attn_type = _FLASH_ATTN[config.flash_attn]
    params.type_k, params.type_v = CACHE_TYPES[config.type_k][0], CACHE_TYPES[config.type_v][0]
    params.swa_full = True  # a windowed cache loses what a rollback needs
    params.no_perf = True
    for name, value in more.items():
        setattr(params, name, value)
    return params


def check_memory(model: Model, config: ContextConfig) -> None:
    """Raise MemoryLimitError if cache and buffers do not fit: the system, or a driver, would kill the process later."""
    caches = model.size.cache_bytes(config)
    n_host = len(caches) - model.n_offloaded
    on_host, on_devices = sum(caches[:n_host]), sum(caches[n_host:])
    logits = config.n_reserved * model.n_vocab * 4
    attention = 2 * min(config.n_ctx, config.n_ubatch, config.n_batch) * config.n_ctx  # the mask, for a batch
    attention += model.size.scores_bytes(config) if config.flash_attn == "off" else 0
    need = f"{model.path.name}: a context of {config.n_ctx} tokens needs"

    needed, available = logits + on_host + (attention if on_host else 0), available_bytes()
    if needed > available:
        raise MemoryLimitError(
            f"{need} {of_size(needed)} for its cache and buffers, and {of_size(available)} are available: "
            "use a smaller n_ctx or n_ubatch, or q8_0 for type_k and type_v"
        )

    free, total = map(sum, zip((0, 0), *(device.memory for device in model.devices), strict=True))
    if not total or uses_host_memory():  # 0: not reported
        return
    needed = logits + on_devices + attention
    if needed > free:
        fits = int(max(0, free - logits) / (needed - logits) * config.n_ctx) // _CELLS * _CELLS
        most = f"at most {fits} tokens fit (n_ctx)" if fits else "no context fits"
        raise MemoryLimitError(
            f"{need} {of_size(needed)} on {', '.join(device.name for device in model.devices)}, and "
            f"{of_size(max(0, free))} are free: {most}; fewer layers there "
            f"({model.config.prefix}n_gpu_layers) leave more room"
        )


def flash_attention(model: Model, config: ContextConfig) -> str:
    """What `flash_attn` is for this context: off if it is auto, on a CPU where it is slow, and the scores fit.

    There eight rows take two to three times as long as by matrix products, with 1,000 tokens in the cache; on other
    CPUs, nearly all takes less time (benchmarks/NOTES.md). `exact` needs it.
    """
    room = available_bytes() - sum(model.size.cache_bytes(config))  # a context that fits with it must not be refused
    fits = model.size.scores_bytes(config) <= min(_MAX_SCORES, room // 2)
    is_off = config.flash_attn == "auto" and model.places == {CPU} and config.type_v in _FLOATS and fits
    is_off = is_off and not flash_is_fast(model.header.head_sizes[0])
    return "on" if config.exact else "off" if is_off else config.flash_attn
