"""Frozen dataclasses that raise UsageError for a value out of range. An option is a field of one: see `option.py`."""

from duo.config.engine_config import (
    AUTO_DRAFT,
    LARGE_BATCH,
    MAX_BRANCHES,
    MAX_CANDIDATES,
    MAX_THREADS,
    SCHEDULE_NAMES,
    SCHEDULES,
    DraftConfig,
    EngineConfig,
    split_endpoint,
)
from duo.config.generation_config import (
    MAX_LOGPROBS,
    MAX_SEED,
    SAMPLERS,
    GenerationConfig,
    SamplingConfig,
    StopConfig,
)
from duo.config.model_config import (
    ALL_LAYERS,
    CACHE_TYPES,
    DEMO,
    EXPERTS,
    HUB,
    SPLIT_MODES,
    ContextConfig,
    ModelConfig,
    ThreadConfig,
)
