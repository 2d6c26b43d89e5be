"""Changes to `duo` in a process that a test starts: `before` of `tests.command` imports and calls them."""

import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakSet

from duo.config import ModelConfig
from duo.engine import model_pair
from duo.engine.contexts import draft_context
from duo.llama.context import Context
from duo.llama.model import Model, Progress
from duo.speculation.types import Logits

Patch = Callable[[Any, str, Any], None]  # setattr, or that of pytest's monkeypatch


def slow_target(seconds: float = 0.05, patch: Patch = setattr) -> None:
    """Each decode of the target takes this much longer, as with a large model: drafts pay, also on a busy machine.

    The sleep simulates a decode: the policy measures its duration, which an event does not have.
    """
    _before_target_decodes(lambda: time.sleep(seconds), patch)


def gated_target(gate: str, n: int = 4) -> None:
    """The target's decode number `n`, from 0, waits until the file `gate` exists."""
    numbers = iter(range(n + 1))

    def wait() -> None:
        if next(numbers, 0) == n:
            while not Path(gate).exists():
                time.sleep(0.01)

    _before_target_decodes(wait)


def endless_loading() -> None:
    """Loading a model takes until it is interrupted; a line on stderr says that it begins."""
    load = Model.__init__

    def wait_and_load(self: Model, config: ModelConfig, progress: Progress) -> None:
        sys.stderr.write("loading begins\n")
        while progress(0.0):
            time.sleep(0.01)
        load(self, config, progress)

    Model.__init__ = wait_and_load  # type: ignore[method-assign, assignment]


def _before_target_decodes(act: Callable[[], None], patch: Patch = setattr) -> None:
    decode, decode_parts = Context.decode, Context.decode_parts
    drafts = WeakSet[Context]()  # a sequential draft decodes on the target's thread, too

    def make(*arguments: Any) -> Context | None:
        if (context := draft_context(*arguments)) is not None:
            drafts.add(context)
        return context

    def decode_later(self: Context, tokens: Sequence[int], n_rows: int = 1) -> Logits:
        if threading.current_thread().name == "duo-target" and self not in drafts:
            act()
        return decode(self, tokens, n_rows)

    def decode_parts_later(self: Context, parts: Any) -> Any:
        act()
        return decode_parts(self, parts)

    patch(model_pair, "draft_context", make)
    patch(Context, "decode", decode_later)
    patch(Context, "decode_parts", decode_parts_later)
