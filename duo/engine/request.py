"""A request for a text, and the drafts that it may use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from duo.config import GenerationConfig, ThreadConfig
from duo.engine.draft import Draft
from duo.engine.generation import DraftChooser
from duo.engine.metrics import Metrics
from duo.spec.policy import Policy
from duo.spec.types import Step


@dataclass(slots=True, eq=False)
class TextRequest:
    """A request for a text, and its result."""

    prompt: Sequence[int]
    config: GenerationConfig
    put: Callable[[Step], None]  # called with every step, on the engine's thread
    on_prompt: Callable[[int], None] = lambda _: None  # called with the number of prompt tokens decoded so far
    metrics: Metrics = field(default_factory=Metrics)
    n_cached: int = 0  # prompt tokens found in the KV cache
    policy: Policy | None = None  # of the last draft that was used
    cancelled: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True)
class Drafts:
    """The drafts for one request, and the threads to use (None: the slot's)."""

    local: Draft | None = None
    remote: DraftChooser | None = None
    threads: ThreadConfig | None = None
    lookup: bool = False  # whether the text itself is a draft, too
