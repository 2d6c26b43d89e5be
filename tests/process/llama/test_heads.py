"""EAGLE-3 heads and MTP layers: their contexts, and whole texts with them, on tiny models that often agree."""

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from duo import Engine, load
from duo.config import ContextConfig, ModelConfig
from duo.engine.contexts import head_type
from duo.errors import ModelError
from duo.llama import hidden_rows
from duo.llama.context import Context
from duo.llama.gguf_header import GgufHeader, check_not_head
from duo.llama.heads import HeadContext, check_pair
from duo.llama.hidden_rows import N_ROWS
from duo.llama.model import Model, model_size
from duo.speculation.types import Logits
from tests.command import Argument
from tests.gguf_files import tiny_assistant, tiny_eagle3, tiny_gemma4, tiny_glm, tiny_llama, tiny_qwen35, tiny_step35
from tests.serving import LeadProcess

DEPTH = 0.06
TEMPLATE = "{% for message in messages %}{{ message.content }} {% endfor %}"
PROMPT = "the cat sat on the mat and the dog ran "
KINDS = ("eagle3", "eagle3 with its own ends", "glm4moe", "glm4moe in a file of its own", "qwen35")
ASSISTANT = "gemma4-assistant"
CHAIN = "step35"
ALL = (*KINDS, ASSISTANT, CHAIN)
Files = dict[str, tuple[Path, Path | None]]
ALONE: dict[str, Any] = {"profile": False, "n_threads": 1, "draft_n_threads": 1}
SAMPLED = pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 0.8, "seed": 7}], ids=str)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Target and draft; None: the target has an MTP layer."""
    folder = tmp_path_factory.mktemp("heads")
    target = tiny_llama(folder / "target.gguf", n_layer=2, depth=DEPTH)
    return {
        "eagle3": (target, tiny_eagle3(folder / "head.gguf", depth=DEPTH)),
        "eagle3 with its own ends": (target, tiny_eagle3(folder / "own.gguf", layers=(1, 0, 1), own_ends=True)),
        "glm4moe": (tiny_glm(folder / "glm.gguf", depth=DEPTH), None),
        "glm4moe in a file of its own": (tiny_glm(folder / "without.gguf", depth=DEPTH, mtp=False),
                                         tiny_glm(folder / "mtp.gguf", depth=DEPTH, trunk=False)),
        ASSISTANT: (tiny_gemma4(folder / "gemma4.gguf", depth=DEPTH),
                    tiny_assistant(folder / "assistant.gguf", depth=DEPTH)),
        CHAIN: (tiny_step35(folder / "step35.gguf", depth=DEPTH, n_mtp=3), None),
        "qwen35": (tiny_qwen35(folder / "qwen35.gguf", depth=DEPTH, mtp=True), None),
    }  # fmt: skip


Pair = tuple[Context, Callable[[], HeadContext]]


@pytest.fixture(params=KINDS)
def pair(request: pytest.FixtureRequest, files: Files) -> Iterator[Pair]:
    """A target's context, and what makes one of its head."""
    path, draft = files[request.param]
    config = ContextConfig(256, 1, 1, flash_attn="off")
    with closing(Model(ModelConfig(path, heads=True))) as target:
        head = target if draft is None else Model(ModelConfig(draft))
        check_pair(target, head)
        with closing(Context(target, config)) as context:
            yield context, partial(head_type(head), head, config, context)
        head.close()


def some(n: int, seed: int) -> list[int]:
    """Tokens at random."""
    return random.Random(seed).choices(range(3, 270), k=n)


def restart(context: Context, head: HeadContext, text: list[int], n_accepted: int) -> None:
    """The target has decoded `text`, of which so much is accepted, and the head nothing."""
    context.rollback(0)
    head.rollback(0)
    context.decode(text)
    head.follow(n_accepted)


def read(context: Context, head: HeadContext, text: list[int], *sizes: int) -> Logits:
    """The head's logits after the text, which it reads in parts of these sizes, and the rest at once."""
    restart(context, head, text, len(text))
    parts = iter(sizes)
    while rest := text[head.n_past :]:
        logits = head.decode(rest[: next(parts, len(rest))])
    return np.array(logits[-1])


def distance(one: Logits, other: Logits) -> float:
    """The largest difference, of the tokens that the head can predict."""
    known = np.isfinite(one)
    return float(np.abs(one[known] - other[known]).max())


def test_a_head_reads_a_text_in_any_parts(pair: Pair) -> None:
    context, make = pair
    text = some(60, seed=1)
    with closing(make()) as head:
        whole = read(context, head, text)
        for sizes in ([1, 1, 1], [2, 30], [1, 5, 40], [50]):
            np.testing.assert_allclose(read(context, head, text, *sizes), whole, atol=1e-3)


@pytest.mark.parametrize("kind", ["eagle3", "glm4moe"])
def test_the_rows_of_a_text_beside_others_are_its_own(kind: str, files: Files) -> None:
    path, draft = files[kind]
    text, other, third = some(40, 1), some(40, 2), some(40, 3)
    with closing(Model(ModelConfig(path, heads=True))) as target, ExitStack() as stack:
        head = target if draft is None else stack.enter_context(closing(Model(ModelConfig(draft))))
        found = []
        for n_texts in (1, 3):
            config = ContextConfig(256, 1, 1, flash_attn="off", n_texts=n_texts, n_outputs_max=16)
            with closing(Context(target, config)) as context:
                reader = stack.enter_context(closing(head_type(head)(head, replace(config, n_texts=1), context)))
                if n_texts == 1:
                    context.decode(text)
                else:
                    context.decode_parts([(2, third[:9], 1), (1, other[:20], 0), (0, text[:30], 1)])
                    context.decode_parts([(1, other[20:], 1), (0, text[30:38], 3), (2, third[9:10], 1)])
                    context.decode_parts([(2, third[10:12], 2)])
                    context.decode_parts([(1, some(2, 4), 2), (0, text[38:], 2)])
                assert reader.rows.first == 0
                found.append(reader.rows.between(1, 41).copy())
    assert np.abs(found[0]).max() > 0.1
    np.testing.assert_allclose(found[1], found[0], atol=1e-4)


def test_a_token_is_read_with_the_row_of_the_position_before_it(pair: Pair) -> None:
    context, make = pair
    text = some(24, seed=4)
    found = []
    with closing(make()) as head:
        for n in (22, 23, 24):  # that the target has decoded
            restart(context, head, text[:n], 24)
            found.append(np.array(head.decode(text)[-1]))
    np.testing.assert_allclose(found[1], found[2], atol=1e-3)  # the row of the last token is not needed
    assert distance(found[0], found[1]) > 1e-3


def test_it_continues_from_its_own_rows_and_then_from_those_of_the_target(pair: Pair) -> None:
    context, make = pair
    text = some(24, seed=2)
    with closing(make()) as head:
        whole = read(context, head, text)
        restart(context, head, text[:20], 20)
        head.decode(text[:20])
        own = [np.array(head.decode([token])[-1]) for token in text[20:]]  # these rows are its own
        assert head.n_past == 24
        assert head.depth == 3  # the first of the four has the row of the last token that the target has decoded
        context.decode(text[20:])
        head.follow(24)
        assert head.n_past == 21  # the row of token 20 is that of position 19, which the target had decoded
        found = np.array(head.decode(text[21:])[-1])
        np.testing.assert_allclose(found, whole, atol=1e-3)
        assert distance(own[-1], whole) > 1e-3


def test_what_is_left_of_a_chain_keeps_its_depth(pair: Pair) -> None:
    context, make = pair
    text = some(24, seed=6)
    with closing(make()) as head:
        restart(context, head, text[:20], 20)
        head.decode(text[:20])
        depths = []
        for token in text[20:]:
            head.decode([token])
            depths.append(head.depth)
        assert depths == [0, 1, 2, 3]
        context.decode(text[20:22])  # two of the four are accepted
        head.follow(22)
        head.decode(text[head.n_past :])
        assert head.depth == 3, "the last row descends from the old chain"
        context.decode(text[22:])
        head.follow(24)
        head.decode(text[head.n_past :])
        assert head.depth == 0


def test_a_head_forgets_what_was_rejected(pair: Pair) -> None:
    context, make = pair
    text = some(24, seed=3)
    with closing(make()) as head:
        whole = read(context, head, text)
        if context.n_rollback is not None:
            pytest.skip("the target cannot roll back so far")
        read(context, head, text[:18])
        context.decode([7, 8, 9])  # rejected
        context.rollback(18)
        head.decode([7])
        head.decode([8])
        head.rollback(18)
        context.decode(text[18:])
        head.follow(24)
        np.testing.assert_allclose(head.decode(text[head.n_past :])[-1], whole, atol=1e-3)


def test_a_text_that_the_target_restores_has_no_rows_but_those_that_the_head_has_saved(pair: Pair) -> None:
    context, make = pair
    with closing(make()) as head:
        for text, n_read in ((range(3, 27), 24), (range(30, 60), 0)):
            context.rollback(0)
            head.rollback(0)
            context.decode(list(text))
            assert head.rows.first == 0
            head.follow(n_read)
            saved = context.save()
            rows = np.array(head.rows.between(1, 25))
            own = head.save()
            context.rollback(0)
            context.decode([5, 6, 7])
            context.load(saved)
            assert head.rows.first == len(text)
            context.decode([8, 9])
            assert head.rows.first == len(text)
            context.load(saved)
            head.load(own)
            assert head.rows.first == 0
            np.testing.assert_array_equal(head.rows.between(1, 25), rows)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"n_embd": 32}, "hidden rows of 32, target.gguf has 64"),
        ({"layers": (0, 1, 2)}, "reads layers 0, 1, 2: target.gguf has 2"),
        ({"words": ("▁other",)}, "another vocabulary"),
    ],
)
def test_a_head_of_another_model_is_refused(files: Files, tmp_path: Path, other: dict[str, Any], message: str) -> None:
    head = tiny_eagle3(tmp_path / "other.gguf", **other)
    with pytest.raises(ModelError, match=message):
        load(files["eagle3"][0], head)


@pytest.mark.parametrize(
    ("kind", "name"), [("eagle3", "EAGLE-3"), ("glm4moe in a file of its own", "MTP")], ids=["eagle3", "mtp"]
)
def test_a_head_is_no_target_and_needs_one_in_its_process(files: Files, kind: str, name: str) -> None:
    head = files[kind][1]
    assert head is not None
    with pytest.raises(ModelError, match=f"an {name} head: it is a draft"):
        load(head)
    with pytest.raises(ModelError, match=f"an {name} head: it reads"):
        check_not_head(GgufHeader(head))


def test_the_cache_of_a_head_has_the_layers_of_the_head_only(files: Files) -> None:
    for kind, n_cached in (("glm4moe in a file of its own", 1), (ASSISTANT, 0), (CHAIN, 5)):
        path = files[kind][1] or files[kind][0]
        assert sum(k > 0 for k, _ in model_size(ModelConfig(path)).cache_widths) == n_cached


def test_an_mtp_head_of_another_model(files: Files) -> None:
    head = files["glm4moe in a file of its own"][1]
    with pytest.raises(ModelError, match="the MTP head of a glm4moe of 2 layers with hidden rows of 64"):
        load(files["eagle3"][0], head)


def test_a_build_without_the_functions(
    files: Files, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    missing = {"llama_missing": ""}
    monkeypatch.setattr(hidden_rows, "_FUNCTIONS", missing)
    hidden_rows.functions.cache_clear()
    try:
        with pytest.raises(ModelError, match="has no llama_missing"):
            load(*files["eagle3"])
        with load(files["glm4moe"][0]) as engine:  # the head is optional
            assert engine.slot.draft_model is None
        assert "the MTP layer of glm.gguf is not used" in caplog.text
    finally:
        monkeypatch.undo()
        hidden_rows.functions.cache_clear()


def test_a_model_without_its_mtp_tensors(tmp_path: Path) -> None:
    path = tiny_glm(tmp_path / "without.gguf", mtp=False)
    with load(path, profile=False) as engine:
        assert engine.slot.draft_model is None
        assert engine.generate(PROMPT, max_tokens=8).text


@pytest.mark.parametrize("kind", ["eagle3", "glm4moe"])
def test_of_a_long_text_the_last_rows_are_kept(files: Files, kind: str) -> None:
    """Whatever is rolled back, and whatever text comes between."""
    path, draft = files[kind]
    config, dice, known = ContextConfig(256, 1, 1, flash_attn="off", n_batch=16), random.Random(kind), dict[int, Any]()
    with closing(Model(ModelConfig(path, heads=True))) as target, closing(Context(target, config)) as context:
        model = target if draft is None else Model(ModelConfig(draft))
        with closing(head_type(model)(model, config, context)) as head:
            rows, saved = head.rows, (context.save(), head.save(), known)
            rows.n_kept = 12
            for _ in range(400):
                n, before = context.n_past, rows.first
                if n > 200 or (n and dice.random() < 0.2):
                    context.rollback(n := dice.randrange(max(0, n - dice.choice([3, 40, 300])), n))
                    head.rollback(min(head.n_past, n))
                elif dice.random() < 0.1:
                    saved = (context.save(), head.save(), known)
                elif n and dice.random() < 0.1:
                    context.load(saved[0])
                    before = rows.first
                    if dice.random() < 0.5:
                        head.load(saved[1])
                        before = rows.first
                    n, known = context.n_past, dict(saved[2])
                size = dice.randrange(1, 17)
                context.decode(dice.choices(range(3, 270), k=size), 1)
                known = {i: row for i, row in known.items() if i < n}
                known |= dict(enumerate(np.array(rows.between(n + 1, n + 1 + size)), n))
                for i in range(rows.first, n + size):
                    np.testing.assert_array_equal(rows.between(i + 1, i + 2), [known[i]])
                assert rows.first <= max(min(before, n), n - 12)
                assert not rows.between(0, 1).any()
                assert rows.between(0, n + size).shape == (n + size, rows.width)
                assert len(rows._kept[0]) <= max(12 + 12 + 16, N_ROWS)
                assert head.save().more[3].shape[0] <= 12 + 12 + 16
        if model is not target:
            model.close()


@pytest.mark.parametrize("schedule", ["sync", "async", "auto"])
@pytest.mark.parametrize("kind", ["eagle3", "glm4moe", ASSISTANT, CHAIN])
def test_texts_that_are_longer_than_what_is_kept_of_rows(
    files: Files, kind: str, schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hidden_rows, "N_ROWS", 24)
    path, draft = files[kind]
    options: dict[str, Any] = ALONE | {"n_ctx": 256, "exact": True, "n_batch": 32, "n_ubatch": 32, "lookup": "off"}
    with load(path, heads="off", **options) as alone, load(path, draft, schedule=schedule, **options) as engine:
        prompt = some(90, 3)
        for n in (90, 60, 90):  # the whole prompt, less, and more again
            assert write(engine, 100, prompt[:n]) == write(alone, 100, prompt[:n])
            statistics = engine.statistics
            assert statistics is not None
            assert statistics.draft is None or statistics.draft.error is None
            if schedule == "sync":
                assert statistics.draft is not None
                assert statistics.draft.accepted
        assert len(engine.slot._contexts[1].rows._kept[0]) <= 24 + 24 + 32  # type: ignore[attr-defined]
        write_texts(random.Random(kind + schedule), alone, engine)


def write(engine: Engine, n: int = 64, prompt: str | list[int] = PROMPT, **options: Any) -> list[int]:
    return [token for step in engine.stream(prompt, max_tokens=n, ignore_eos=True, **options) for token in step.tokens]


def write_texts(dice: random.Random, alone: Engine, engine: Engine) -> None:
    """Prompts that continue or change earlier ones, texts that are given up, and full contexts: the texts are alike."""
    text = [dice.randrange(3, 270) for _ in range(10)]
    for _ in range(40):
        text = text[: dice.choice([len(text), len(text), dice.randrange(1, len(text) + 1)])]
        text = text[:80] + [dice.randrange(3, 270) for _ in range(dice.randrange(1, 12))]
        n, n_taken = dice.choice([1, 5, 30, 200]), dice.choice([0, 2, 1000, 1000])
        seeded = {"temperature": 0.9, "seed": dice.randrange(100)}
        sampling: dict[str, Any] = dice.choice([{"temperature": 0.0}, seeded])
        found = list[int]()
        with closing(engine.stream(text, max_tokens=n, ignore_eos=True, **sampling)) as stream:
            for step in stream:
                if len(found) >= n_taken:
                    break
                found += step.tokens
        expected = write(alone, n, text, **sampling)
        assert found == expected[: len(found)]
        assert len(found) == len(expected) or n_taken < 1000
        assert engine.statistics is not None
        assert engine.statistics.draft is None or engine.statistics.draft.error is None
        text += found


@SAMPLED
@pytest.mark.parametrize("schedule", ["sync", "auto", "async"])
@pytest.mark.parametrize("kind", ALL)
def test_the_text_is_the_targets_own(files: Files, kind: str, schedule: str, sampling: dict[str, Any]) -> None:
    path, draft = files[kind]
    options: dict[str, Any] = ALONE | {"n_ctx": 256, "exact": kind != "qwen35"}
    with load(path, heads="off", **options) as alone:
        assert alone.slot.draft_model is None
        expected = write(alone, **sampling)
    with load(path, draft, schedule=schedule, **options) as engine:
        assert engine.slot.uses_head
        assert write(engine, **sampling) == expected
        assert write(engine, **sampling) == expected  # with the prompt in the cache
        statistics = engine.statistics
        assert statistics is not None
        if schedule == "sync":
            assert statistics.draft is not None
            assert 0 < statistics.draft.accepted < statistics.draft.verified


@SAMPLED
def test_an_mtp_layer_and_a_draft_and_the_lookup_in_one_text(tmp_path: Path, sampling: dict[str, Any]) -> None:
    """Both drafts are tried, and the text is the same."""
    target = tiny_glm(tmp_path / "glm.gguf", depth=DEPTH)
    draft = tiny_llama(tmp_path / "draft.gguf", depth=DEPTH)
    options: dict[str, Any] = ALONE | {"n_ctx": 512, "exact": True}
    with load(target, heads="off", **options) as alone:
        expected = write(alone, 400, **sampling)
    with load(target, draft, **options) as engine:
        slot = engine.slot
        assert slot.head is not None
        assert not slot.uses_head
        for _ in range(3):
            assert write(engine, 400, **sampling) == expected
        assert [*slot.controller.known] == ["draft", "MTP layer"]
        assert any(estimates.acceptance.n_scored for estimates in slot.controller.known.values())
    with load(target, draft, heads="off", **options) as engine:
        assert engine.slot.head is None


@pytest.mark.parametrize("schedule", ["sync", "async", "auto"])
@pytest.mark.parametrize("kind", ALL)
def test_whatever_happens_between_texts(files: Files, kind: str, schedule: str) -> None:
    """Prompts that continue or change earlier ones, texts that are given up, and full contexts."""
    path, draft = files[kind]
    dice = random.Random(f"{kind} {schedule}")
    options: dict[str, Any] = ALONE | {"n_ctx": 96, "exact": kind != "qwen35"}
    with load(path, heads="off", **options) as alone, load(path, draft, schedule=schedule, **options) as engine:
        write_texts(dice, alone, engine)


@pytest.mark.parametrize("kind", ALL)
def test_a_grammar_and_logprobs(files: Files, kind: str) -> None:
    path, draft = files[kind]
    options: dict[str, Any] = ALONE | {"n_ctx": 256, "exact": kind != "qwen35"}
    asked: dict[str, Any] = {"max_tokens": 40, "temperature": 0.0, "logprobs": 2, "grammar": "root ::= [ a-d]*"}
    with load(path, heads="off", **options) as alone, load(path, draft, schedule="sync", **options) as engine:
        found = [list(one.stream(PROMPT, **asked)) for one in (alone, engine)]
        assert engine.statistics is not None
        assert engine.statistics.draft is not None
        assert engine.statistics.draft.verified > 0
    texts, logprobs = (
        [[each for step in steps for each in getattr(step, name)] for steps in found] for name in ("tokens", "logprobs")
    )
    assert texts[0] == texts[1]
    assert len(texts[0]) == 40
    for one, other in zip(*logprobs, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-3)
        assert [token for token, _ in one.top] == [token for token, _ in other.top]


def test_a_lead_of_several_turns(files: Files, tmp_path: Path) -> None:
    path, draft = tiny_llama(tmp_path / "chat.gguf", n_layer=2, depth=DEPTH, chat_template=TEMPLATE), files["eagle3"][1]
    assert draft is not None
    drafting: list[Argument] = ["-md", draft, "--schedule", "sync"]
    texts = []
    for more in (["--heads", "off"], drafting):
        with LeadProcess(path, "-c", "256", "--exact", "--no-profile", "--lookup", "off", *more) as lead:
            messages = list[dict[str, str]]()
            for said in ("the cat", "a dog ran", "and the mat"):
                messages.append({"role": "user", "content": said})
                answer = lead.post("/v1/chat/completions", messages=messages, max_tokens=24, temperature=0).json()
                messages.append(answer["choices"][0]["message"])
            texts.append([message["content"] for message in messages])
            assert (lead.n_accepted > 0) == (more is drafting)
    assert texts[0] == texts[1]


@pytest.mark.parametrize("schedule", ["sync", "auto"])
@pytest.mark.parametrize("kind", ["eagle3", "glm4moe"])
def test_a_prompt_of_several_batches(files: Files, kind: str, schedule: str) -> None:
    path, draft = files[kind]
    prompt = some(700, seed=5)  # of which the head reads the latest
    options: dict[str, Any] = ALONE | {"n_ctx": 1024, "exact": True, "lookup": "off"}
    sampling: dict[str, Any] = {"temperature": 0.8, "seed": 3}
    for n_ubatch in (64, 512):
        options["n_ubatch"] = n_ubatch
        with load(path, heads="off", **options) as alone, load(path, draft, schedule=schedule, **options) as engine:
            assert write(engine, 100, prompt, **sampling) == write(alone, 100, prompt, **sampling)
            assert engine.statistics is not None
            assert engine.statistics.draft is None or engine.statistics.draft.error is None


def test_a_profile_of_a_head_is_used(files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUO_CONFIG", str(tmp_path))
    path, draft = files["eagle3"]
    with load(path, n_ctx=256, schedule="off") as alone:  # its times are kept for all drafts
        write(alone)
    for _ in range(2):
        with load(path, draft, n_ctx=256, schedule="sync") as engine:
            assert engine.slot.estimates is not None
            learned = engine.slot.estimates.state()["acceptance"]
            write(engine)
    assert learned
