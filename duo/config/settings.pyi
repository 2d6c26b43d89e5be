"""The types of keyword arguments. Generated from the configs by `make docs`: change these instead."""

from collections.abc import Mapping, Sequence
from typing import TypedDict

class Settings(TypedDict, total=False):
    """Settings of duo.load(): see EngineConfig."""

    draft_n_max: int | None
    back_port: int | None
    back_host: str
    back_token: str | None
    offline: bool
    use_mlock: bool
    use_mmap: bool
    chat_template: str | None
    chat_template_kwargs: Mapping[str, object] | None
    reasoning: str
    draft_n_ahead: int | None
    schedule: str
    branches: int | None
    lookup: str
    memory: str | None
    heads: str
    profile: bool
    exact: bool
    n_threads: int | None
    draft_n_threads: int | None
    n_threads_batch: int | None
    cpu_range: str | None
    draft_cpu_range: str | None
    n_gpu_layers: int | str
    draft_n_gpu_layers: int | str
    devices: Sequence[str] | None
    draft_devices: Sequence[str] | None
    split_mode: str
    tensor_split: Sequence[float]
    main_gpu: int
    override_tensor: list[str] | None
    cpu_moe: bool
    n_cpu_moe: int
    draft_override_tensor: list[str] | None
    draft_cpu_moe: bool
    draft_n_cpu_moe: int
    rpc_servers: Sequence[str]
    draft_rpc_servers: Sequence[str] | None
    rpc_timeout_s: float
    n_ctx: int
    n_batch: int
    n_ubatch: int
    flash_attn: str
    type_k: str
    type_v: str
    n_slots: int
    cache_ram: int
    turn_tokens: int
    warmup: bool
    n_predict: int

class TextOptions(TypedDict, total=False):
    """Options of Engine.stream(), generate() and others: see GenerationConfig."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repeat_penalty: float
    repeat_last_n: int
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float] | None
    samplers: Sequence[str]
    seed: int | None
    max_tokens: int | None
    stop: str | Sequence[str]
    ignore_eos: bool
    grammar: str | None
    verify: str
    logprobs: int | None
    json_schema: str | Mapping[str, object] | None  # instead of a grammar
