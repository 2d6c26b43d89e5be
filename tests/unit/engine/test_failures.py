"""Contexts that llama.cpp rejects, whatever the reason: texts go on, and an engine that cannot write says so."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import pytest

from duo import Engine, load
from duo.engine.request import Request, generation_config
from duo.errors import ModelError
from duo.llama.context import Context
from duo.server.lead_server import Lead
from tests.gguf_files import tiny_llama
from tests.serving import assert_error
from tests.unit.server.conftest import client_of

TEXT = list(range(3, 103))


@pytest.fixture(scope="module", params=["alone", "draft"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf", depth=0.06)
    draft = path if request.param == "draft" else None
    with load(path, draft, n_ctx=512, profile=False, n_threads=1, draft_n_threads=1, lookup="off") as engine:
        engine.call(lambda slot: slot.reserve(0, -1))
        yield engine


def write(engine: Engine, n: int = 20) -> tuple[int, ...]:
    return engine.generate(TEXT, max_tokens=n, ignore_eos=True).tokens


@pytest.fixture
def expected(engine: Engine) -> tuple[int, ...]:
    engine.call(lambda slot: slot.forget())
    return write(engine)


def failing(monkeypatch: pytest.MonkeyPatch, engine: Engine, first: int, n: int) -> None:
    """Let the target's decodes from the `first` on fail, `n` times."""
    decode, counts = llama_cpp.llama_decode, [0]

    def fail(pointer: Any, batch: Any) -> int:
        if not engine.slot._contexts or pointer != engine.slot._contexts[0].pointer:
            return int(decode(pointer, batch))
        counts[0] += 1
        return -3 if first <= counts[0] < first + n else int(decode(pointer, batch))

    monkeypatch.setattr(llama_cpp, "llama_decode", fail)


@pytest.mark.parametrize("first", [1, 2, 9])
def test_a_failure_in_the_middle_of_a_text_is_not_its_end(
    engine: Engine, expected: tuple[int, ...], first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.call(lambda slot: slot.forget())
    failing(monkeypatch, engine, first, 1)
    assert write(engine) == expected
    assert engine.scheduler.fault is None


@pytest.mark.parametrize("first", [1, 3, 5])
def test_a_failure_in_the_middle_of_a_prompt_that_is_scored(
    engine: Engine, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = engine.score(TEXT, 2)
    engine.call(lambda slot: slot.forget())
    failing(monkeypatch, engine, first, 1)
    stream = engine.start(Request(TEXT, generation_config(max_tokens=3, logprobs=2, ignore_eos=True), scored=[]))
    stream.completion()
    assert tuple(stream.request.scored or ()) == expected
    monkeypatch.undo()
    assert engine.score(TEXT, 2) == expected


def test_a_text_whose_numbers_are_none_is_read_again(
    engine: Engine, expected: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a conversation was restored whose cells are not numbers."""
    logits, counts = Context._logits, [0]

    def checked(context: Context, n_rows: int) -> Any:
        counts[0] += context is engine.slot._contexts[0]
        if counts[0] == 1:
            raise ModelError("not a number")
        return logits(context, n_rows)

    monkeypatch.setattr(Context, "_logits", checked)
    assert write(engine) == expected
    assert counts[0] > 1


def test_an_engine_that_cannot_write_says_so_and_tries_new_contexts(
    engine: Engine, expected: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    lead = Lead(engine, port=0)
    client, before, n_ctx = client_of(lead), engine.slot._contexts[0], engine.slot.n_ctx
    with monkeypatch.context() as patch:
        failing(patch, engine, 1, 10**6)
        with pytest.raises(ModelError, match=r"^tiny.gguf: no text can be written: llama.cpp rejected"):
            write(engine)
        assert_error(client.get("/health"), 500, "tiny.gguf: no text can be written: llama.cpp rejected")
    assert write(engine) == expected
    assert engine.slot._contexts[0] is not before
    assert engine.slot.n_ctx == n_ctx
    assert client.get("/health").status_code == 200
    lead.close()


def test_a_text_that_has_paused_ends_with_the_contexts_that_it_was_written_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_llama(tmp_path / "tiny.gguf", depth=0.06)
    decode = llama_cpp.llama_decode
    with load(path, n_ctx=512, profile=False, n_threads=1, lookup="off", turn_tokens=4, exact=True) as engine:
        texts = [Request(TEXT, generation_config(max_tokens=n, ignore_eos=True)) for n in (20, 20)]
        engine.call(lambda slot: slot.reserve(0, -1))

        def fail(pointer: Any, batch: Any) -> int:
            return -3 if engine.scheduler.running() == texts[1:] else int(decode(pointer, batch))

        monkeypatch.setattr(llama_cpp, "llama_decode", fail)
        paused, failed = engine._start(texts)
        with pytest.raises(ModelError, match="no text can be written"):
            failed.completion()
        with pytest.raises(ModelError, match="no text can be written"):
            paused.completion()
        assert texts[0].n_turn == 4
        monkeypatch.undo()
        assert len(write(engine)) == 20
