"""Plain greedy decoding in a dozen lines: what `duo` has to come up with."""

from pathlib import Path

from duo.config import ContextConfig, ModelConfig
from duo.llama.context import Context
from duo.llama.model import Model


def greedy_text(path: Path, prompt: str, n_tokens: int) -> bytes:
    """The bytes of `n_tokens` tokens after `prompt`, or fewer if the model ends its text."""
    model = Model(ModelConfig(path))
    try:
        tokens = model.tokenize(prompt)
        config = ContextConfig(len(tokens) + n_tokens + 1, n_threads=1, n_threads_batch=1, exact=True)
        context = Context(model, config)
        text = b""
        for _ in range(n_tokens):
            token = int(context.decode(tokens)[0].argmax())
            if model.is_end(token):
                break
            text += model.piece(token)
            tokens = [token]
        return text
    finally:
        model.close()
