"""Block drafts: their contexts, and whole texts with them, on tiny models that often agree."""

import random
import shutil
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from duo import load
from duo.config import ContextConfig, ModelConfig
from duo.diagnose.measure import Meter
from duo.engine.async_draft import CandidateQueue
from duo.engine.block_drafter import BlockDrafter
from duo.engine.decoder import decode_all
from duo.engine.model_pair import LAYER
from duo.engine.recorder import Recorder
from duo.errors import MemoryLimitError, ModelError
from duo.llama import hidden_rows
from duo.llama.block import BlockContext
from duo.llama.block_shape import Block
from duo.llama.context import Context
from duo.llama.gguf_header import GgufHeader, check_text_model
from duo.llama.heads import check_pair
from duo.llama.model import Model
from duo.llama.mtp import MtpContext
from duo.speculation.draft_estimates import DraftEstimates
from duo.speculation.modes import Schedule
from duo.speculation.report import report
from duo.speculation.sampling import Greedy
from duo.speculation.sequence import TokenSequence
from tests.gguf_files import tiny_block, tiny_llama, tiny_qwen35
from tests.process.llama.test_heads import write, write_texts

DEPTH = 0.02
PROMPT = "the cat sat on the mat and the dog ran "
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
ALONE: dict[str, Any] = {"profile": False, "n_threads": 1, "draft_n_threads": 1, "n_ctx": 512}
SAMPLED = pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 0.8, "seed": 7}], ids=str)


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
            block.follow(context.n_past + 1)
            candidates(block, text[min(context.n_past, 59)], 2)
        assert block.n_past == 60
        found.append([token for token, _ in candidates(block, 9, block.block.n_most)])
    assert all(each == found[0] for each in found)
    block.rollback(30)
    block.follow(61)
    assert [token for token, _ in candidates(block, 9, block.block.n_most)] == found[0]
    assert len(found[0]) == block.block.n_most == (SIZE if block.block.from_anchor else SIZE - 1)


def logits_of(block: BlockContext, anchor: int, n: int) -> np.ndarray[Any, Any]:
    """Of `n` candidates."""
    found = list[np.ndarray[Any, Any]]()

    def choose(logits: np.ndarray[Any, Any], _: float | None) -> int:
        found.append(np.where(np.isfinite(logits), logits, 0.0))
        return int(logits.argmax())

    block.draft(anchor, n, choose)
    return np.array(found)


def test_the_row_of_the_last_token_counts(pair: tuple[Context, BlockContext]) -> None:
    context, block = pair
    found = []
    for last in (5, 60, 200):
        context.rollback(0)
        block.rollback(0)
        context.decode([*some(20, seed=8), last])
        block.follow(22)
        found.append(logits_of(block, 9, 3))
    assert np.abs(found[0] - found[1]).max() > 1e-4
    assert np.abs(found[0] - found[2]).max() > 1e-4


def test_a_candidate_depends_on_the_length_of_the_block_unless_attention_is_causal(
    pair: tuple[Context, BlockContext],
) -> None:
    context, block = pair
    context.decode(some(20, seed=9))
    block.follow(21)
    first, other = (logits_of(block, 9, n)[0] for n in (2, block.block.n_most))
    assert (np.abs(first - other).max() < 1e-4) == block.block.is_causal


def test_dflash2_scores_pairs(pair: tuple[Context, BlockContext]) -> None:
    context, block = pair
    context.decode(some(20, seed=6))
    block.follow(21)
    found = []
    for rank in (1, 2):
        rows = list[np.ndarray[Any, Any]]()

        def choose(logits: np.ndarray[Any, Any], _: float | None, rank: int = rank, rows: Any = rows) -> int:
            rows.append(np.array(logits))
            return int(logits.argsort()[-rank if len(rows) == 1 else -1])

        block.draft(9, 3, choose)
        found.append(rows)
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert np.array_equal(found[0][1], found[1][1]) == (not block.block.top_k)
    assert np.isfinite(found[0][1]).sum() == (block.block.top_k or block.n_vocab)


def test_only_accepted_tokens_are_read(pair: tuple[Context, BlockContext]) -> None:
    context, block = pair
    text = some(30, seed=2)
    context.decode(text)
    block.follow(21)
    candidates(block, text[20], 4)
    assert block.n_past == 20


def test_confidence_is_of_a_confidence_head(pair: tuple[Context, BlockContext]) -> None:
    context, block = pair
    context.decode(some(20, seed=3))
    block.follow(21)
    gaps = [gap for _, gap in candidates(block, 5, 4)]
    assert all((gap is not None) == block.block.has_confidence for gap in gaps)
    assert not block.block.has_confidence or len(set(gaps)) > 1


def test_what_was_saved_drafts_alike(pair: tuple[Context, BlockContext]) -> None:
    context, block = pair
    context.decode(some(20, seed=4))
    block.follow(21)
    before = candidates(block, 5, 4)
    saved = block.save()
    block.rollback(0)
    context.rollback(0)
    context.decode(some(10, seed=5))
    block.follow(11)
    candidates(block, 5, 4)
    block.load(saved)
    block.follow(21)
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


@SAMPLED
@pytest.mark.parametrize("schedule", ["sync", "auto"])
@pytest.mark.parametrize("kind", VARIANTS)
def test_the_text_is_the_targets_own(files: Files, kind: str, schedule: str, sampling: dict[str, Any]) -> None:
    options = ALONE | {"exact": True}
    with load(files["target"], **options) as alone:
        expected = write(alone, **sampling)
    with load(files["target"], files[kind], schedule=schedule, **options) as engine:
        assert engine.slot.uses_head
        assert write(engine, **sampling) == expected
        assert write(engine, **sampling) == expected  # with the prompt in the cache
        statistics = engine.statistics
        assert statistics is not None
        assert statistics.draft is None or statistics.draft.error is None
        if schedule == "sync":
            assert statistics.draft is not None
            assert 0 < statistics.draft.accepted < statistics.draft.verified


@pytest.mark.parametrize("kind", ["DFlash", "DSpark", "DFlash2"])
def test_one_decode_makes_as_many_candidates_as_are_wanted(
    files: Files, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, decode = list[int](), BlockContext.decode

    def seen(self: BlockContext, tokens: list[int], n_rows: int = 1) -> Any:
        sizes.append(n_rows)
        return decode(self, tokens, n_rows)

    with load(files["target"], files[kind], schedule="sync", lookup="off", **ALONE) as engine:
        engine.generate(PROMPT, max_tokens=8)
        assert engine.slot.estimates is not None
        assert engine.slot.estimates.block == engine.slot.estimates.n_max == (SIZE if kind == "DSpark" else SIZE - 1)
        monkeypatch.setattr(BlockContext, "decode", seen)
        monkeypatch.setattr(DraftEstimates, "n_block", 5)
        write(engine, 100, temperature=0.0)
        statistics = engine.statistics
        assert statistics is not None
        assert statistics.draft is not None
        assert set(sizes) == {5}
        assert statistics.draft.drafted == 5 * len(sizes)


def test_rows_of_a_prompt_are_not_taken_for_a_block(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = tiny_block(tmp_path / "long.gguf", depth=DEPTH, size=18)
    monkeypatch.setattr(DraftEstimates, "n_block", 3)
    with load(files["target"], draft, schedule="sync", lookup="off", **ALONE) as engine:
        assert engine.slot.estimates is not None
        assert engine.slot.estimates.block == 16
        engine.generate(some(16, 1), max_tokens=8)
        assert engine.slot.estimates.costs.alone.by_sequences.keys() == {3}
        assert engine.slot.estimates.n_unread < 16


@pytest.mark.parametrize("kind", ["DFlash", "DSpark", "DFlash2"])
def test_whatever_happens_between_texts(files: Files, kind: str) -> None:
    """Prompts that continue or change earlier ones, texts that are given up, and full contexts."""
    dice = random.Random(kind)
    options = ALONE | {"n_ctx": 96, "exact": True}
    with load(files["target"], **options) as alone, load(files["target"], files[kind], **options) as engine:
        write_texts(dice, alone, engine)


@pytest.mark.parametrize("kind", ["DFlash", "DSpark", "DFlash2"])
def test_texts_that_are_longer_than_what_is_kept_of_rows(
    files: Files, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hidden_rows, "N_ROWS", 24)
    options = ALONE | {"n_ctx": 256, "exact": True, "n_batch": 32, "n_ubatch": 32, "lookup": "off"}
    for schedule in ("sync", "auto"):
        with (
            load(files["target"], **options) as alone,
            load(files["target"], files[kind], schedule=schedule, **options) as engine,
        ):
            write_texts(random.Random(kind + schedule), alone, engine)
            assert len(engine.slot._contexts[1].rows._kept[0]) <= 24 + 24 + 32  # type: ignore[attr-defined]


def test_the_block_draft_beside_a_model_drafts(files: Files, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = Path(shutil.copy(files["target"], tmp_path / "tiny-Q8_0.gguf"))
    draft = Path(shutil.copy(files["DSpark"], tmp_path / "dspark-tiny.gguf"))
    with load(path, **ALONE) as engine:
        assert engine.slot.draft_name == "dspark-tiny.gguf"
        assert write(engine, 16)
    caplog.clear()
    for how in ({"heads": "off"}, {"schedule": "off"}, {"draft_n_max": 0}):
        with load(path, **ALONE | how) as engine:
            assert engine.slot.draft_model is None
    with load(path, files["DFlash"], **ALONE) as engine:
        assert engine.slot.draft_name == files["DFlash"].name
        assert engine.slot.head is None
    tiny_block(draft, layers=(9,))
    with load(path, **ALONE) as engine:
        assert engine.slot.draft_model is None
    assert "reads layers 9" in caplog.text
    tiny_block(draft, flow_steps=2)
    with load(path, **ALONE) as engine:
        assert engine.slot.draft_model is None
    assert "an unknown variant: dflash.flow_steps" in caplog.text
    assert "drafts for" not in caplog.text, "what is not used"
    shutil.copy(files["DSpark"], draft)
    draft.write_bytes(draft.read_bytes()[:-1000])  # a download that was stopped
    caplog.clear()
    with load(path, **ALONE) as engine:
        assert engine.slot.draft_model is None
    (said,) = [one for one in caplog.messages if "dspark-tiny.gguf" in one]
    assert said.count("dspark-tiny.gguf") == 1, said


def test_a_block_draft_beside_a_model_that_was_made_for_it_is_found_among_others(files: Files, tmp_path: Path) -> None:
    path = Path(shutil.copy(files["target"], tmp_path / "tiny-8B-Q8_0.gguf"))
    (tmp_path / "dflash-tiny-8B.gguf").write_bytes(files["DFlash"].read_bytes()[:100])
    shutil.copy(files["DSpark"], tmp_path / "dspark-other.gguf")
    with load(path, **ALONE) as engine:
        assert engine.slot.draft_name == "dspark-other.gguf"


def test_nobody_misses_a_block_draft_whose_context_does_not_fit(
    files: Files, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise MemoryLimitError("too little memory")

    path = Path(shutil.copy(files["target"], tmp_path / "tiny-Q8_0.gguf"))
    beside = Path(shutil.copy(files["DFlash"], tmp_path / "dflash-tiny.gguf"))
    monkeypatch.setattr(BlockContext, "__init__", refuse)
    draft = tiny_llama(tmp_path / "draft.gguf", depth=DEPTH)
    for drafts in ((), (draft,)):
        caplog.clear()
        with load(path, *drafts, **ALONE) as engine:
            assert write(engine, 4)
            known = engine.slot.controller.known
            assert known.keys() == {one.stem for one in drafts}, "it cannot be said not to pay"
            assert report(engine.slot.controller).has_draft == bool(drafts)
        assert "dflash-tiny.gguf is not used: too little memory" in caplog.text
    with load(path, beside, **ALONE) as engine, pytest.raises(MemoryLimitError):
        write(engine, 4)


@pytest.mark.parametrize("has_layer", [True, False])
def test_the_mtp_layer_drafts_where_a_block_draft_does_not_fit(
    has_layer: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_qwen35(tmp_path / "tiny-Q8_0.gguf", mtp=True)
    with load(path, heads="off", **ALONE) as engine:
        expected = write(engine, 40, temperature=0.0)
    tiny_block(tmp_path / "dflash-tiny.gguf")
    for kind in (BlockContext, *([] if has_layer else [MtpContext])):

        def refuse(*_: object) -> None:
            raise MemoryLimitError("too little memory")

        monkeypatch.setattr(kind, "__init__", refuse)
    monkeypatch.setenv("DUO_CONFIG", str(tmp_path / "config"))
    with load(path, **ALONE | {"profile": True}) as engine:
        assert write(engine, 40, temperature=0.0) == expected
        slot = engine.slot
        assert slot.draft_name == ("its MTP layer" if has_layer else "dflash-tiny.gguf")
        assert slot.controller.known.keys() == ({LAYER} if has_layer else set())
        assert (slot.draft is not None) == has_layer


def test_beside_an_unusable_block_draft_an_mtp_layer_drafts(tmp_path: Path) -> None:
    path = tiny_qwen35(tmp_path / "tiny-Q8_0.gguf", mtp=True)
    unknown: dict[str, Any] = {"flow_steps": 2}
    for how, drafts in ((unknown, path.name), ({}, "dflash-tiny.gguf")):
        tiny_block(tmp_path / "dflash-tiny.gguf", **how)
        with load(path, **ALONE) as engine:
            assert engine.slot.draft_model is not None
            assert engine.slot.draft_model.path.name == drafts
            assert engine.slot.head is None


@SAMPLED
@pytest.mark.parametrize("kind", ["DFlash", "DSpark", "DFlash2"])
def test_a_draft_model_a_block_draft_and_the_lookup_in_one_text(
    files: Files, tmp_path: Path, kind: str, sampling: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """All are tried, each is right sometimes, and the text is the same."""
    path = Path(shutil.copy(files["target"], tmp_path / "tiny-Q8_0.gguf"))
    block = Path(shutil.copy(files[kind], tmp_path / "dspark-tiny.gguf"))
    draft = tiny_llama(tmp_path / "draft.gguf", depth=DEPTH)
    options = ALONE | {"exact": True}
    with load(path, heads="off", **options) as alone:
        expected = write(alone, 400, **sampling)
    with load(path, draft, **options) as engine:
        assert not engine.slot.uses_head
        known = engine.slot.controller.known
        for first, second in (("draft", "dspark-tiny"), ("dspark-tiny", "draft")):
            known[first].schedules, known[second].schedules = (Schedule.SYNC,), (Schedule.OFF,)
            assert write(engine, 400, **sampling) == expected
            statistics = engine.statistics
            assert statistics is not None
            assert statistics.draft is not None
            assert statistics.draft.accepted
            assert statistics.draft.error is None
        for estimates in known.values():  # whichever of the two pays
            estimates.schedules = (Schedule.SYNC, Schedule.OFF)
        assert write(engine, 400, **sampling) == expected
    for how in ({"heads": "off"}, {"schedule": "async"}, {"schedule": "sync"}):  # forced on the draft
        with load(path, draft, **options | how) as engine:
            assert engine.slot.head is None
    tiny_block(block, layers=(9,))
    with load(path, draft, **options) as engine:
        assert engine.slot.head is None
        assert write(engine, 50, **sampling) == expected[:50]
    assert "reads layers 9" in caplog.text
    whole = block.read_bytes()
    for n in (10, len(whole) // 2, len(whole) - 1000):  # a download that was stopped
        block.write_bytes(whole[:n])
        caplog.clear()
        with load(path, draft, **options) as engine:
            assert engine.slot.head is None
        assert "dspark-tiny.gguf is not used" in caplog.text


def test_tune_scores_places_of_blocks(pair: tuple[Context, BlockContext]) -> None:
    context, block = pair
    prompt = some(20, seed=7)
    context.decode(prompt)
    text = list[int]()
    for _ in range(30):  # what the target writes
        text.append(int(context.decode([text[-1]] if text else [5])[-1].argmax()))
    meter = Meter(context, block, lambda *_: None, threading.Event(), lambda _: None)
    scores, per_token = meter.score([*prompt, 5], text, 1)
    assert (len(scores), per_token) == (30, 1.0)
    places = {int(confidence // 100) for confidence, _ in scores}
    assert 0 in places
    assert places > {0} or not any(right for _, right in scores)
    assert any(right for _, right in scores)


def test_a_probe_reads_no_rows_from_before_a_text_was_restored(
    pair: tuple[Context, BlockContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may be those of another text."""
    target, block = pair
    text, places, rollback = some(40, 1), list[int](), block.rollback
    decode_all(target, text)
    block.follow(block.n_ctx)
    block.rows.first = 30
    metrics, sequence = Recorder(), TokenSequence(text, target.n_vocab)
    drafter = BlockDrafter(block, CandidateQueue(sequence, metrics), Greedy(), target.n_vocab, metrics)

    def noted(n: int) -> None:
        places.append(n)
        rollback(n)

    monkeypatch.setattr(block, "rollback", noted)
    assert drafter.probe(24, 1).scores
    assert min(filter(None, places)) >= 30, "0: nothing is there yet"
