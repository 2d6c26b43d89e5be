"""Configuration as frozen dataclasses that check themselves: each raises UsageError for a value out of range.

A new option is a field of one of these: see `option.py`.
"""

from duo.config.engine_config import AUTO_DRAFT as AUTO_DRAFT
from duo.config.engine_config import LARGE_BATCH as LARGE_BATCH
from duo.config.engine_config import MAX_BRANCHES as MAX_BRANCHES
from duo.config.engine_config import MAX_CANDIDATES as MAX_CANDIDATES
from duo.config.engine_config import MAX_THREADS as MAX_THREADS
from duo.config.engine_config import EngineConfig as EngineConfig
from duo.config.engine_config import split_endpoint as split_endpoint
from duo.config.model_config import ALL_LAYERS as ALL_LAYERS
from duo.config.model_config import DEMO as DEMO
from duo.config.model_config import HUB as HUB
from duo.config.model_config import SPLIT_MODES as SPLIT_MODES
from duo.config.model_config import ContextConfig as ContextConfig
from duo.config.model_config import DraftConfig as DraftConfig
from duo.config.model_config import ModelConfig as ModelConfig
from duo.config.model_config import ThreadConfig as ThreadConfig
from duo.config.text_config import MAX_LOGIT as MAX_LOGIT
from duo.config.text_config import MAX_LOGPROBS as MAX_LOGPROBS
from duo.config.text_config import MAX_SEED as MAX_SEED
from duo.config.text_config import SAMPLERS as SAMPLERS
from duo.config.text_config import GenerationConfig as GenerationConfig
from duo.config.text_config import SamplingConfig as SamplingConfig
from duo.config.text_config import StopConfig as StopConfig
