"""Pair: a target and a draft, loaded, checked against each other, and given contexts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from types import TracebackType

from duo.config import ContextConfig, ModelConfig
from duo.errors import PromptError, VocabularyError
from duo.llama.context import Context, cache_bytes
from duo.llama.devices import CPU
from duo.llama.memory import available_bytes
from duo.llama.model import Model
from duo.llama.offload import devices_for
from duo.llama.vocabulary import vocabulary_difference

DEVICE_CTX = 8192  # tokens: nobody says how long a text will be, and layers compete with its cache for the memory

Warn = Callable[[str], None]
LoadProgress = Callable[[str, float], bool]  # a model's name and the share loaded; False stops


@dataclass(slots=True)
class Pair:
    """The two models of a run. Leaving `with` frees contexts first, then models."""

    target: Model
    draft: Model | None = None
    _stack: ExitStack = field(default_factory=ExitStack)

    @classmethod
    def load(
        cls,
        target: ModelConfig,
        draft: ModelConfig | None = None,
        progress: LoadProgress = lambda _name, _share: True,
        warn: Warn = lambda _: None,
    ) -> Pair:
        """Load both models, one after the other. Raises ModelError or VocabularyError.

        `warn` is told of what is unwise but possible: weights that do not fit the memory are read again and again.
        """
        configs = [config for config in (target, draft) if config is not None]
        _check_weights(configs, warn)
        with ExitStack() as stack:
            models = []
            for config in configs:
                name = config.path.name
                model = Model(config, lambda share, name=name: progress(name, share))  # type: ignore[misc]
                stack.callback(model.close)
                models.append(model)
            pair = cls(models[0], models[1] if len(models) > 1 else None)
            if pair.draft is not None and (difference := vocabulary_difference(pair.target, pair.draft)):
                raise VocabularyError(f"{pair.draft.path.name} cannot draft for {pair.target.path.name}: {difference}")
            pair._stack = stack.pop_all()
        return pair

    def __enter__(self) -> Pair:
        """The pair itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Free the models, and their contexts before them."""
        self._stack.close()

    @property
    def can_speculate(self) -> bool:
        """Whether there is a draft, and both models are of a kind that can take back as much as they have to.

        A target takes back what it has just verified, a draft whatever it guessed since the text went another way.
        """
        return self.draft is not None and self.draft.can_roll_back and not self.target.is_recurrent

    def can_be_helped(self, context: Context, warn: Warn) -> bool:
        """Whether drafts on other machines can help the target; `warn` is told if not."""
        if context.probe_rollback():
            return True
        warn(f"{self.target.path.name} cannot roll back its cache: speculation is off")
        return False

    def contexts(
        self, target: ContextConfig, draft: ContextConfig | None, warn: Warn = lambda _: None
    ) -> tuple[Context, Context | None]:
        """A context for the target and, if there is a draft that can be used, one for the draft.

        `warn` is told when a model cannot take tokens back, so that nothing can be verified ahead. Raises
        MemoryLimitError, ModelError or UsageError.
        """
        context = Context(self.target, target)
        if target.exact and context.n_rollback == 0:
            warn(f"{self.target.path.name} cannot roll back its cache: --exact is off")
            context.close()
            context = Context(self.target, replace(target, exact=False))
        if self.draft is None or draft is None or not self.can_be_helped(context, warn):
            return context, None
        if not self.draft.can_roll_back:
            warn(f"{self.draft.path.name} cannot roll back its cache: speculation is off")
            return context, None
        return context, Context(self.draft, replace(draft, n_ctx=min(draft.n_ctx, self.draft.n_ctx_train)))


def context_size(model: Model, config: ContextConfig, n_prompt: int, n_predict: int, asked: int | None) -> int:
    """Size of the context in tokens: what was asked for, or what prompt and `n_predict` need.

    At most what the model was trained for, unless asked for more; to the end (-1) it is also limited to half of the
    memory that is there, and to DEVICE_CTX where a device has some of it. Raises PromptError if the prompt does not
    fit.
    """
    if asked:
        n_ctx = asked
    elif n_predict >= 0:
        n_ctx = min(model.n_ctx_train, n_prompt + n_predict)
    else:
        n_ctx = model.n_ctx_train if model.places == {CPU} else max(n_prompt, min(DEVICE_CTX, model.n_ctx_train))
        available, full = available_bytes(), cache_bytes(model, replace(config, n_ctx=n_ctx))
        if available is not None and full > available // 2:
            n_ctx = max(n_prompt, n_ctx * (available // 2) // full)
    if n_prompt > n_ctx:
        origin = "-c" if asked else "what the model was trained for"
        raise PromptError(f"the prompt has {n_prompt} tokens, the context {n_ctx} ({origin})")
    return n_ctx


def _check_weights(configs: list[ModelConfig], warn: Warn) -> None:
    on_host = [config for config in configs if not devices_for(config)]
    sizes = [part.stat().st_size for config in on_host for part in config.shards]
    available = available_bytes()
    if available is not None and sum(sizes) > available:
        warn(
            f"the weights ({sum(sizes) / 2**30:.1f} GiB) are larger than the available memory "
            f"({available / 2**30:.1f} GiB): they may be read from disk again for every token"
        )
