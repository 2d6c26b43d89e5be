"""Pair: a target and a draft, loaded, checked against each other, and given contexts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from types import TracebackType

from duo.config import ContextConfig, ModelConfig
from duo.errors import PromptError, VocabularyError
from duo.llama.context import Context, cache_bytes
from duo.llama.devices import supports_gpu
from duo.llama.memory import available_bytes
from duo.llama.model import Model
from duo.llama.vocabulary import vocabulary_difference

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
        """Whether there is a draft, and both models are of a kind that can take tokens back."""
        return self.draft is not None and self._cannot_roll_back() is None

    def _cannot_roll_back(self) -> Model | None:
        return next((model for model in (self.target, self.draft) if model and not model.can_roll_back), None)

    def can_be_helped(self, context: Context, warn: Warn) -> bool:
        """Whether drafts on other machines can help the target; `warn` is told if not."""
        if self.target.can_roll_back and context.probe_rollback():
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
        if target.exact and not self.target.can_roll_back:
            warn(f"{self.target.path.name} cannot roll back its cache: --exact is off")
            target = replace(target, exact=False)
        context = Context(self.target, target)
        if self.draft is None or draft is None:
            return context, None
        stubborn = self._cannot_roll_back()
        if stubborn is None and not context.probe_rollback():
            stubborn = self.target
        if stubborn is not None:
            warn(f"{stubborn.path.name} cannot roll back its cache: speculation is off")
            return context, None
        return context, Context(self.draft, replace(draft, n_ctx=min(draft.n_ctx, self.draft.n_ctx_train)))


def context_size(model: Model, config: ContextConfig, n_prompt: int, n_predict: int, asked: int | None) -> int:
    """Size of the context in tokens: what was asked for, or what prompt and `n_predict` need.

    At most what the model was trained for, unless asked for more; to the end (-1) it is also limited to half of the
    memory that is there. Raises PromptError if the prompt does not fit.
    """
    if asked:
        n_ctx = asked
    elif n_predict >= 0:
        n_ctx = min(model.n_ctx_train, n_prompt + n_predict)
    else:
        n_ctx = model.n_ctx_train
        available, full = available_bytes(), cache_bytes(model, replace(config, n_ctx=n_ctx))
        if available is not None and full > available // 2:
            n_ctx = max(n_prompt, n_ctx * (available // 2) // full)
    if n_prompt > n_ctx:
        origin = "-c" if asked else "what the model was trained for"
        raise PromptError(f"the prompt has {n_prompt} tokens, the context {n_ctx} ({origin})")
    return n_ctx


def _check_weights(configs: list[ModelConfig], warn: Warn) -> None:
    on_host = [config for config in configs if config.n_gpu_layers == 0 or not supports_gpu()]
    sizes = [part.stat().st_size for config in on_host for part in config.shards]
    available = available_bytes()
    if available is not None and sum(sizes) > available:
        warn(
            f"the weights ({sum(sizes) / 2**30:.1f} GiB) are larger than the available memory "
            f"({available / 2**30:.1f} GiB): they may be read from disk again for every token"
        )
