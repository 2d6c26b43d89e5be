"""Block drafts: their contexts, and whole texts with them, on tiny models that often agree."""

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from duo import load
from duo.config import ContextConfig, ModelConfig
from duo.errors import ModelError
from duo.llama.block import BlockContext
from duo.llama.block_shape import Block
from duo.llama.context import Context
from duo.llama.gguf_header import GgufHeader, check_text_model
from duo.llama.heads import check_pair
from duo.llama.model import Model
from tests.gguf_files import tiny_block, tiny_llama

DEPTH = 0.02
SIZE = 8
VARIANTS: dict[str, dict[str, Any]] = {
    "DFlash": {},
    "DFlash, causal": {"causal": True, "layers": (2,)},
    "DFlash with the target's ends": {"own_ends": False, "layers": (0, 2)},
    "DSpark": {"markov": True},
    "DSpark with a bonus anchor": {"markov": True, "from_anchor": False, "layers": (1,)},
    "DSpark, causal, without confidence": {"markov": True, "confidence": False, "causal": True},
    "DFlash2": {"top_k": 6},
    "DFlash2, causal": {"top_k": 4, "causal": True, "layers": (0, 1)},
}
Files = dict[str, Path]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("blocks")
    made = {
        name: tiny_block(folder / f"{i}.gguf", depth=DEPTH, **how) for i, (name, how) in enumerate(VARIANTS.items())
    }
    return made | {"target": tiny_llama(folder / "target.gguf", n_layer=3, depth=DEPTH)}


@pytest.fixture(params=VARIANTS)
def pair(request: pytest.FixtureRequest, files: Files) -> Iterator[tuple[Context, BlockContext]]:
    config = ContextConfig(256, 1, 1, flash_attn="off")
    with (
        closing(Model(ModelConfig(files["target"], heads=True))) as target,
        closing(Context(target, config)) as context,
        closing(Model(ModelConfig(files[request.param]))) as draft,
    ):
        check_pair(target, draft)
        with closing(BlockContext(draft, config, context)) as block:
            yield context, block


def some(n: int, seed: int) -> list[int]:
    """Tokens at random."""
    return random.Random(seed).choices(range(3, 270), k=n)


def candidates(block: BlockContext, anchor: int, n: int) -> list[tuple[int, float | None]]:
    """Greedy, with what is said of their confidence."""
    found = list[tuple[int, float | None]]()

    def choose(logits: np.ndarray[Any, Any], confidence: float | None) -> int:
        found.append((int(logits.argmax()), confidence))
        return found[-1][0]

    block.draft(anchor, n, choose)
    return found


def test_a_block_depends_on_the_text_and_not_on_how_it_was_read(pair: tuple[Context, BlockContext]) -> None:
    context, block = pair
    text = some(60, seed=1)
    found = []
    for sizes in ([60], [1, 1, 58], [20, 0, 39, 1], [59, 1]):
        context.rollback(0)
        block.rollback(0)
        for n in sizes:
            context.decode(text[context.n_past : context.n_past + n] or [7])
            if not n:  # rejected
                candidates(block, 7, 3)
                context.rollback(context.n_past - 1)
                continue
            block.follow(context.n_past)
            candidates(block, text[min(context.n_past, 59)], 2)
        assert block.n_past == 60
        found.append([token for token, _ in candidates(block, 9, block.block.n_most)])
    assert all(each == found[0] for each in found)
    block.rollback(30)
    block.follow(60)
    assert [token for token, _ in candidates(block, 9, block.block.n_most)] == found[0]
    assert len(found[0]) == block.block.n_most == (SIZE if block.block.from_anchor else SIZE - 1)


def test_only_accepted_tokens_are_read(pair: tuple[Context, BlockContext]) -> None:
    context, block = pair
    text = some(30, seed=2)
    context.decode(text)
    block.follow(20)
    candidates(block, text[20], 4)
    assert block.n_past == 20


def test_confidence_is_of_a_confidence_head(pair: tuple[Context, BlockContext]) -> None:
    context, block = pair
    context.decode(some(20, seed=3))
    block.follow(20)
    gaps = [gap for _, gap in candidates(block, 5, 4)]
    assert all((gap is not None) == block.block.has_confidence for gap in gaps)
    assert not block.block.has_confidence or len(set(gaps)) > 1


def test_what_was_saved_drafts_alike(pair: tuple[Context, BlockContext]) -> None:
    context, block = pair
    context.decode(some(20, seed=4))
    block.follow(20)
    before = candidates(block, 5, 4)
    saved = block.save()
    block.rollback(0)
    context.rollback(0)
    context.decode(some(10, seed=5))
    block.follow(10)
    candidates(block, 5, 4)
    block.load(saved)
    block.follow(20)
    assert candidates(block, 5, 4) == before


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"flow_steps": 4}, "unknown variant: dflash.flow_steps"),
        ({"mask": None}, "DFlash draft without a valid tokenizer.ggml.mask_token_id"),
        ({"mask": 99999, "own_ends": False}, "without a valid tokenizer.ggml.mask_token_id"),
        ({"size": 1, "markov": True}, "DSpark draft without a valid dflash.block_size"),
        ({"layers": (0, 7)}, "reads layers 0, 7: target.gguf has 3"),
    ],
)
def test_what_is_refused(files: Files, tmp_path: Path, how: dict[str, Any], message: str) -> None:
    draft = tiny_block(tmp_path / "other.gguf", **how)
    with pytest.raises(ModelError, match=message):
        load(files["target"], draft)


def test_a_block_draft_is_no_target(files: Files) -> None:
    with pytest.raises(ModelError, match="a DSpark draft: it is a draft"):
        load(files["DSpark"])
    check_text_model(GgufHeader(files["DFlash, causal"]))  # though it says whether its attention is causal


def test_the_shape_of_a_block(files: Files) -> None:
    shapes = {name: Block.of(GgufHeader(files[name])) for name in VARIANTS}
    assert [shape.n_most for shape in shapes.values()] == [7, 7, 7, 8, 7, 8, 7, 7]
    assert [shape.is_causal for shape in shapes.values()] == ["causal" in name for name in VARIANTS]
    assert [shape.top_k for shape in shapes.values()][-2:] == [6, 4]
