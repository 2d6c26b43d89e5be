"""Texts on a device: written with a draft and without, and compared with those of the CPU."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from duo.cli.commands import check
from duo.cli.commands.check import Comparison
from duo.config import GenerationConfig
from duo.engine.engine import Engine
from duo.engine.generation import Proposers
from duo.engine.model_pair import ModelPair
from duo.engine.request import Request, choosing, generation_config
from duo.loading import load
from duo.speculation.draft_estimates import DraftEstimates
from duo.speculation.types import Logits, Plan, Planned, Proposal, common_prefix
from tests.fakes import EagerController, Preparing

Layers = int | str

N = 16  # tokens of each text
N_MAX = 7  # candidates: with the token before them as many rows as Vulkan's kernels for few rows take
SEED = 5
_WAIT_S = 0.5  # for the draft; nothing is asserted about less

PROMPT = "the cat sat on the mat and the dog ran"
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 0.8},
    "filtered": {"temperature": 1.2, "top_k": 20, "top_p": 0.9, "repeat_penalty": 1.2},
}


class Patient(EagerController):
    """Waits until the draft has two candidates, so that some are certainly verified."""

    _n_seen = -1  # candidates before the last wait, which is repeated only if one came

    def plan(self, texts: Sequence[Planned], proposals: Sequence[Proposal]) -> Plan:
        if self._n_seen < len(proposals[0].candidates) < min(2, texts[0].n_room - 1):
            self._n_seen = len(proposals[0].candidates)
            return Plan(proposer=0, wait_s=_WAIT_S)
        self._n_seen = -1
        return super().plan(texts, proposals)


def patient(n_branches: int = 0) -> DraftEstimates:
    return Preparing(N_MAX, 2 * N_MAX, n_branches)


def opened(
    pair: tuple[Path, Path], layers: Layers = 0, draft_layers: Layers = 0, *, n_max: int = N_MAX, exact: bool = True
) -> Engine:
    """An engine with contexts, and these numbers of layers on the device."""
    engine = load(
        *pair,
        n_gpu_layers=layers,
        draft_n_gpu_layers=draft_layers,
        draft_n_max=n_max,
        exact=exact,
        n_ctx=256,
        n_threads=1,
        draft_n_threads=1,
        profile=False,
        warmup=False,
    )
    engine.call(lambda slot: slot.reserve(1, -1))
    return engine


def let_branches_grow(engine: Engine, patch: pytest.MonkeyPatch) -> None:
    """From now on, a verification waits until the draft has decoded its branches, however slow the device is."""
    slot, decoded = engine.slot, threading.Event()
    assert slot.target_cache is not None
    assert slot.draft_cache is not None
    target, draft = slot.target_cache.context, slot.draft_cache.context
    decode, decode_each = target.decode, draft.decode_each

    def decode_later(tokens: Sequence[int], n_rows: int = 1) -> Logits:
        if len(tokens) > 1:
            decoded.clear()
            decoded.wait(_WAIT_S)
        return decode(tokens, n_rows)

    def tell(tokens: Sequence[tuple[int, int]]) -> Logits:
        logits = decode_each(tokens)
        decoded.set()
        return logits

    patch.setattr(target, "decode", decode_later)
    patch.setattr(draft, "decode_each", tell)


def config_of(kind: str, n: int = N) -> GenerationConfig:
    return generation_config(max_tokens=n, ignore_eos=True, seed=SEED, **KINDS[kind])


def write(
    engine: Engine, prompt: Sequence[int], config: GenerationConfig, sources: Proposers | None = None
) -> list[int]:
    """The tokens of the text; without `sources`, the target writes alone."""
    with engine.start(Request(prompt, config, proposers=sources or Proposers())) as stream:
        tokens = [token for step in stream for token in step.tokens]
    assert stream.request.metrics.draft_error is None
    return tokens


def compare(
    engine: Engine, estimates: DraftEstimates, kind: str = "greedy", prompt: str = PROMPT, n: int = N
) -> Comparison:
    """The text with the engine's draft, and without."""
    controller = (Patient if isinstance(estimates, Preparing) else EagerController)(estimates.target)
    proposers = Proposers(controller, [engine.slot.new_draft(estimates)])
    return check.compare(engine, engine.tokenize(prompt), config_of(kind, n), proposers)


def assert_as_alone(engine: Engine, found: Comparison) -> None:
    """Assert that the draft changes nothing, or that the device's kernels for so many rows explain the difference."""
    if found.difference is not None:
        assert not engine.call(has_equal_rows), found
        assert found.difference.is_near_tie, found


def assert_as_on_cpu(
    cpu: Engine, device: Engine, kind: str, prompt: str = PROMPT, n: int = N, sources: Proposers | None = None
) -> None:
    """Assert that both targets write the same text, or that their logits explain the difference."""
    config, tokens = config_of(kind, n), cpu.tokenize(prompt)
    texts = [write(cpu, tokens, config), write(device, tokens, config, sources)]
    n_same = common_prefix(*texts)
    if n_same == len(texts[0]) == len(texts[1]):
        return
    assert n_same < min(map(len, texts)), (texts, "one text ends before the other")
    text = [*tokens, *texts[0][:n_same]]
    rows = [engine.call(lambda slot: _row(slot, len(tokens), text)) for engine in (cpu, device)]
    assert np.abs(rows[0] - rows[1]).max() <= 0.05 * rows[0].std(), (texts, n_same)
    _, sampler = choosing(cpu.slot.target, config)
    recent = text[-sampler.n_recent :] if sampler.n_recent else ()
    chosen = [sampler.judge(row.copy(), len(text), recent).token for row in rows]
    assert chosen == [found[n_same] for found in texts], (texts, n_same, "they do not choose as their logits say")


def has_equal_rows(slot: ModelPair) -> bool:
    """Whether the target's logits are bit-equal in batches of 2 to N_MAX + 1 tokens."""
    text = slot.target.tokenize(PROMPT)
    first, *others = (_rows(slot, text, n) for n in range(2, N_MAX + 2))
    return all(np.array_equal(first, rows) for rows in others)


def _rows(slot: ModelPair, text: Sequence[int], n: int) -> Logits:
    """The logits after each token of `text`, decoded in batches of `n`."""
    assert slot.target_cache is not None
    target = slot.target_cache.context
    target.rollback(0)
    batches = [text[i : i + n] for i in range(0, len(text), n)]
    rows = np.concatenate([target.decode(batch, len(batch)).copy() for batch in batches])
    target.rollback(0)
    return rows


def _row(slot: ModelPair, n_prompt: int, text: Sequence[int]) -> Logits:
    """The logits after `text`, decoded as when the target wrote it alone."""
    assert slot.target_cache is not None
    target = slot.target_cache.context
    target.rollback(0)
    target.decode(text[: n_prompt - 1], n_rows=0)
    for token in text[n_prompt - 1 :]:
        row = target.decode([token])
    copy: Logits = row[0].copy()
    target.rollback(0)
    return copy
