"""The context of a draft in another process."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from duo.config import ContextConfig, ModelConfig
from duo.link import process
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


def test_an_emulated_draft_that_is_too_slow_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    said, statuses = list[object](), list[int]()
    monkeypatch.setattr(process, "_write", said.append)
    monkeypatch.setattr("duo.link.process.os._exit", statuses.append)
    account = process._Strict(2.0)
    for _ in range(process._N_JUDGED - 1):
        account.add(0.03, 0.02)
    assert said == statuses == []
    account.add(0.03, 0.02)
    assert statuses == [1]
    assert isinstance(said[0], process.Failed)
    assert said[0].message.endswith("by a factor of 3 or more, not 2")
    for _ in range(2 * process._N_JUDGED):
        account.add(0.01, 0.02)
    assert len(said) == 1
