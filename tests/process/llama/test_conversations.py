"""Several conversations, whose KV caches are kept: what is read again, and that texts are as with one."""

import random
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from duo import Engine, load
from duo.engine.kv_store import Cache
from duo.engine.request import Request, generation_config
from duo.errors import PromptError
from tests import gguf_files as files
from tests.gguf_files import tiny_llama

DEPTH = 0.06


PAIRS: dict[str, tuple[Callable[..., Path], Callable[..., Path] | None]] = {
    "draft": (partial(tiny_llama, n_layer=2), tiny_llama),
    "another vocabulary": (tiny_llama, partial(tiny_llama, words=("▁the", "▁cat", "a", "b", "▁"))),
    "window": (partial(files.tiny_gemma, window=16), tiny_llama),
    "eagle3": (partial(tiny_llama, n_layer=2), files.tiny_eagle3), "mtp": (files.tiny_glm, None),
    "mtp and draft": (files.tiny_glm, tiny_llama), "chain": (files.tiny_step35, None),
    "assistant": (files.tiny_gemma4, files.tiny_assistant), "hybrid": (partial(files.tiny_qwen35, mtp=True), None),
}  # fmt: skip


def make(kind: str, folder: Path) -> tuple[Path, Path | None]:
    """Target and draft that often agree; None: the target has an MTP layer."""
    target, draft = PAIRS[kind]
    return target(folder / "target.gguf", depth=DEPTH), draft and draft(folder / "draft.gguf", depth=DEPTH)


NOT_EXACT = ("window", "chain", "assistant", "hybrid")


def some(dice: random.Random, n: int) -> list[int]:
    return dice.choices(range(3, 270), k=n)


def write(engine: Engine, text: list[int], n_taken: int, **options: Any) -> tuple[list[int], int]:
    """The first `n_taken` tokens, or a few more; and how many of the prompt were in a cache."""
    found = list[int]()
    with closing(engine.stream(text, ignore_eos=True, **options)) as stream:
        for step in stream:
            found += step.tokens
            if len(found) >= n_taken:
                break
    return found, stream.request.n_cached


@pytest.mark.parametrize("schedule", ["sync", "async", "auto"])
@pytest.mark.parametrize("kind", PAIRS)
def test_texts_are_as_if_each_were_read_anew(kind: str, schedule: str, tmp_path: Path) -> None:
    path, draft = make(kind, tmp_path)
    dice = random.Random(f"{kind} {schedule}")
    options: dict[str, Any] = {"n_ctx": 320, "profile": False, "n_threads": 1, "draft_n_threads": 1}
    options["exact"] = kind not in NOT_EXACT
    n_returns, last = 0, None
    with (
        load(path, heads="off", schedule="off", n_slots=1, lookup="off", **options) as alone,
        load(path, draft, schedule=schedule, n_slots=3, **options) as engine,
    ):
        begin, other_dice = engine.slot.saved.begin, random.Random(kind)

        def in_some_slot(caches: Any, prompt: Any, _: int = -1, owner: str = "") -> None:
            begin(caches, prompt, other_dice.choice([-1, -1, -1, 0, 1, 2]), owner)
            assert engine.slot.saved.here not in engine.slot.saved.sizes
            assert len(engine.slot.saved.sizes) <= 2

        engine.slot.saved.begin = in_some_slot  # type: ignore[method-assign, assignment]
        begun = some(dice, 30)  # that several have in common
        texts = [begun + some(dice, 60) for _ in range(4)]
        for i in range(50):
            which = dice.choice([0, 0, 1, 1, 2, 3])
            text = texts[which]
            if dice.random() < 0.2 or len(text) > 250:
                text = text[: dice.randrange(40, 91)]
            text = text + some(dice, dice.randrange(1, 20))
            sampling = dice.choice([{"temperature": 0.0}, {"temperature": 0.9, "seed": i}])
            n, n_taken = dice.choice([1, 5, 30]), dice.choice([1, 1000, 1000])
            found, n_reused = write(engine, text, n_taken, max_tokens=n, **sampling)
            expected, _ = write(alone, text, 1000, max_tokens=n, **sampling)
            assert found == expected[: len(found)]
            assert len(found) == len(expected) or n_taken < 1000
            assert engine.statistics is not None
            assert engine.statistics.draft is None or engine.statistics.draft.error is None
            n_returns += n_reused > len(begun) and which != last
            texts[which], last = text + found, which
    assert n_returns > 0


def n_cached(engine: Engine, text: list[int]) -> int:
    with closing(engine.stream(text, max_tokens=2, ignore_eos=True)) as stream:
        list(stream)
        return stream.request.n_cached


def test_which_conversations_are_kept(tmp_path: Path) -> None:
    dice = random.Random(1)
    path = tiny_llama(tmp_path / "target.gguf")
    with load(path, n_ctx=512, profile=False, n_slots=3, lookup="off") as engine:
        texts = [some(dice, 100) for _ in range(3)]
        for text in texts:
            assert n_cached(engine, text) == 0
        for text in texts:
            assert n_cached(engine, text + some(dice, 10)) >= 100  # the next turn
        assert n_cached(engine, some(dice, 100)) == 0  # a fourth one, for which the one used least recently makes room
        assert n_cached(engine, texts[0]) == 0
        assert n_cached(engine, texts[2] + some(dice, 5)) >= 100
        branch = texts[2][:60] + some(dice, 40)  # of which the beginning is shared: the original stays
        assert n_cached(engine, branch) == 60
        assert n_cached(engine, texts[2] + some(dice, 5)) >= 100
        assert n_cached(engine, some(dice, 8)) == 0  # a short request
        assert n_cached(engine, texts[2] + some(dice, 5)) >= 100
        engine.call(lambda slot: slot.forget())
        assert n_cached(engine, texts[2]) == 0
    with load(path, n_ctx=512, profile=False, n_slots=3, cache_ram=0, lookup="off") as engine:
        assert n_cached(engine, texts[0]) == 0
        assert n_cached(engine, texts[1]) == 0
        assert n_cached(engine, texts[0]) == 0  # there is no memory for it


@pytest.mark.parametrize("schedule", ["sync", "async", "auto"])
@pytest.mark.parametrize("kind", PAIRS)
def test_texts_that_pause_for_others_are_as_if_each_were_alone(kind: str, schedule: str, tmp_path: Path) -> None:
    path, draft = make(kind, tmp_path)
    dice = random.Random(f"pauses {kind} {schedule}")
    options: dict[str, Any] = {"n_ctx": 320, "profile": False, "n_threads": 1, "draft_n_threads": 1}
    options["exact"] = kind not in NOT_EXACT
    with (
        load(path, heads="off", schedule="off", n_slots=1, lookup="off", **options) as alone,
        load(path, draft, schedule=schedule, turn_tokens=dice.choice([1, 3, 8]), **options) as engine,
    ):
        engine.call(lambda slot: slot.reserve(0, -1))
        n_pauses = 0
        for i in range(10):
            asked: list[tuple[list[int], dict[str, Any]]] = []
            for _ in range(dice.randrange(2, 5)):
                text = some(dice, dice.randrange(5, 120))
                sampling: dict[str, Any] = dice.choice([{"temperature": 0.0}, {"temperature": 0.9, "seed": i}])
                asked.append((text, {"max_tokens": dice.choice([1, 20, 40]), "ignore_eos": True, **sampling}))
            streams = engine._start([Request(text, generation_config(**more)) for text, more in asked])
            dropped = dice.choice([None, *range(len(asked))])
            if dropped is not None:
                next(streams[dropped], None)
                engine.scheduler.cancel(streams[dropped].request)
            found = [[token for step in stream for token in step.tokens] for stream in streams]
            n_pauses += sum(stream.request.n_pauses for stream in streams)
            for j, ((text, more), tokens) in enumerate(zip(asked, found, strict=True)):
                expected = write(alone, text, 1000, **{key: more[key] for key in more if key != "ignore_eos"})[0]
                if j != dropped:
                    assert tokens == expected
        assert n_pauses > 8
        assert not engine.scheduler._paused


def test_a_paused_text_keeps_its_slot(tmp_path: Path) -> None:
    dice = random.Random(3)
    texts = [some(dice, n) for n in (120, 60)]
    path = tiny_llama(tmp_path / "target.gguf")
    with load(path, n_ctx=512, profile=False, turn_tokens=4, lookup="off") as engine:
        engine.slot.n_together = 1
        engine.call(lambda slot: slot.reserve(0, -1))
        for first, other in ((2, -1), (3, 1)):
            ends = threading.Semaphore(0)
            requests = [
                Request(
                    text,
                    generation_config(max_tokens=30, ignore_eos=True),
                    end=partial(lambda ends, _: ends.release(), ends),
                    slot=slot,
                )
                for text, slot in zip(texts, (first, other), strict=True)
            ]
            engine.scheduler.submit(*requests)
            for _ in requests:
                ends.acquire()
            kept = engine.call(lambda slot: slot.kept)
            assert requests[0].n_pauses
            assert kept[first] >= 149
            assert kept[other] >= 89 or other < 0
            assert sorted(kept)[-2] >= 89


class Asked:
    """A text of an owner, who is written beside others if these were submitted at once."""

    def __init__(self, prompt: list[int], owner: str, slot: int = -1, n: int = 8) -> None:
        self._ended, config = threading.Event(), generation_config(max_tokens=n, ignore_eos=True)
        self.request = Request(prompt, config, end=lambda _: self._ended.set(), owner=owner, slot=slot)

    def n_cached(self) -> int:
        assert self._ended.wait(300)
        return self.request.n_cached


def ask(engine: Engine, prompt: list[int], owner: str, slot: int = -1) -> int:
    """Prompt tokens in a cache, of a text that is written alone."""
    asked = Asked(prompt, owner, slot)
    engine.scheduler.submit(asked.request)
    return asked.n_cached()


@pytest.mark.parametrize("n_slots", [1, 4])
def test_no_owner_has_what_is_in_the_cache_of_another(n_slots: int, tmp_path: Path) -> None:
    dice = random.Random(6)
    path, draft = make("draft", tmp_path)
    text = some(dice, 100)
    with load(path, draft, n_ctx=512, profile=False, n_slots=n_slots, lookup="off") as engine:
        engine.call(lambda slot: slot.reserve(0, -1))
        assert ask(engine, text, "a") == 0
        assert ask(engine, text, "b") == 0  # what is in the contexts
        assert ask(engine, text, "c") == 0  # and in memory
        kept = [ask(engine, [*text, 5], owner) for owner in "abc"]
        assert kept == ([100] * 3 if n_slots > 3 else [0] * 3), "each continues its own"


def test_no_owner_has_what_is_in_the_slot_of_another(tmp_path: Path) -> None:
    dice, file = random.Random(7), tmp_path / "text"
    text = some(dice, 100)
    with load(tiny_llama(tmp_path / "target.gguf"), n_ctx=512, profile=False, lookup="off") as engine:
        engine.call(lambda slot: slot.reserve(0, -1))
        assert ask(engine, text, "a", 2) == 0
        with pytest.raises(PromptError, match="holds nothing that can be saved"):
            engine.call(lambda slot: slot.save(2, file, "b"))
        engine.call(lambda slot: slot.save(2, file, "a"))
        assert ask(engine, text, "b", 2) == 0, "of the text that it replaces"
        assert ask(engine, some(dice, 90), "b", 1) == 0
        assert ask(engine, text, "a", 2) == 0, "of the text in memory that it replaces"
        with pytest.raises(PromptError, match="or another key"):
            engine.call(lambda slot: slot.restore(3, file, "b"))
        engine.call(lambda slot: slot.erase(2))
        engine.call(lambda slot: slot.restore(3, file, "a"))
        assert ask(engine, [*text, 5], "b") == 0
        assert ask(engine, [*text, 5], "a") == 100


def test_the_draft_of_an_owner_reads_all(tmp_path: Path) -> None:
    """What is in its cache would be seen in the time of the first tokens."""
    path, draft = make("draft", tmp_path)
    text = some(random.Random(8), 100)
    with load(path, draft, n_ctx=512, profile=False, n_slots=1, lookup="off", schedule="sync") as engine:
        engine.call(lambda slot: slot.reserve(0, -1))
        found, begin = list[int](), Cache.begin

        def spy(self: Cache, prompt: Any, n_top: int | None = None) -> int:
            n = begin(self, prompt, n_top)
            found.extend([n] if len(engine.slot.caches) > 1 and self is engine.slot.caches[1] else [])
            return n

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Cache, "begin", spy)
            for owner in "aabb":
                ask(engine, text, owner)
    assert [n > 90 for n in found] == [False, True, False, True], found


def test_a_restored_conversation_leaves_the_others(tmp_path: Path) -> None:
    dice = random.Random(4)
    path = tiny_llama(tmp_path / "target.gguf")
    with load(path, n_ctx=512, profile=False, lookup="off") as engine:
        for n in (100, 110, 120, 130):
            assert n_cached(engine, some(dice, n)) == 0
        before, here = engine.slot.kept, engine.slot.saved.here
        assert min(before) >= 100
        for slot in (here, (here + 1) % 4):
            engine.call(lambda one, slot=slot: one.save(slot, tmp_path / "text"))  # type: ignore[misc]
            engine.call(lambda one, slot=slot: one.restore(slot, tmp_path / "text"))  # type: ignore[misc]
            assert engine.slot.kept == before


def test_a_conversation_with_another_kind_of_attention_is_refused_before_it_is_loaded(tmp_path: Path) -> None:
    """Without flash attention, llama.cpp keeps the values of its cells in another order."""
    dice = random.Random(5)
    path = tiny_llama(tmp_path / "target.gguf")
    for flash_attn in ("off", "on"):
        with load(path, n_ctx=512, profile=False, lookup="off", flash_attn=flash_attn) as engine:
            n_cached(engine, some(dice, 100))
            here = engine.slot.saved.here
            if flash_attn == "off":
                engine.call(lambda one, slot=here: one.save(slot, tmp_path / "text"))  # type: ignore[misc]
                continue
            with pytest.raises(PromptError, match="was saved with another model, other options or another key"):
                engine.call(lambda one, slot=here: one.restore(slot, tmp_path / "text"))  # type: ignore[misc]
            assert engine.slot.kept[here] >= 99


def test_what_is_kept_beside_a_paused_text(tmp_path: Path) -> None:
    dice = random.Random(2)
    begun = some(dice, 150)
    path = tiny_llama(tmp_path / "target.gguf")
    with load(path, n_ctx=512, profile=False, turn_tokens=4, lookup="off") as engine:
        engine.slot.n_together = 1
        engine.call(lambda slot: slot.reserve(0, -1))
        texts = ((some(dice, 20), 60), (begun, 4))
        long, short = engine._start(
            [Request(text, generation_config(max_tokens=n, ignore_eos=True)) for text, n in texts]
        )
        text = [*begun, *(token for step in short for token in step.tokens)]
        assert sum(len(step.tokens) for step in long) == 60
        assert long.request.n_pauses
        assert n_cached(engine, [*text, 5]) >= 150  # of the text that was written in between
        streams = [engine.stream([*begun, 5 + i], max_tokens=12, ignore_eos=True) for i in range(4)]
        for stream in streams:
            list(stream)
        assert [stream.request.n_cached for stream in streams] == 4 * [150], "a common beginning is read once"
    with load(path, n_ctx=512, profile=False, turn_tokens=4, cache_ram=0, lookup="off") as engine:
        engine.slot.n_together = 1
        engine.call(lambda slot: slot.reserve(0, -1))
        streams = [engine.stream([*begun, 5 + i], max_tokens=12, ignore_eos=True) for i in range(3)]
        for stream in streams:
            list(stream)
        assert not any(stream.request.n_pauses for stream in streams), "there is no memory for paused texts"
