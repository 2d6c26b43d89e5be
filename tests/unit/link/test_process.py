"""The context of a draft in another process."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from duo.config import ContextConfig, ModelConfig
from duo.link.process import draft_context
from duo.llama.context import Context
from duo.llama.model import Model
from duo.spec.types import Logits
from tests.gguf_files import tiny_llama


@pytest.mark.parametrize("warmup", [True, False])
def test_the_context_is_warmed_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, warmup: bool) -> None:
    batches, decode = [], Context.decode

    def recorded(context: Context, tokens: Sequence[int], n_rows: int = 1) -> Logits:
        batches.append(len(tokens))
        return decode(context, tokens, n_rows)

    monkeypatch.setattr(Context, "decode", recorded)
    with closing(Model(ModelConfig(tiny_llama(tmp_path / "draft.gguf")))) as model:
        context = draft_context(model, ContextConfig(32, 1, 1), 64, warmup=warmup)
        assert batches == [2] * warmup
        assert (context.n_past, context.n_ctx) == (0, 96)
        context.close()
        with closing(draft_context(model, ContextConfig(32, 1, 1), 64, fixed=40)) as context:
            assert context.n_ctx == 40
