"""Grammars in their process: what they allow, what is refused, and that no grammar harms this process."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import duo
from duo.config import ModelConfig
from duo.errors import BusyError, ClosedError, ModelError, UsageError
from duo.llama.grammar import Grammar
from duo.llama.model import Model
from tests.gguf_files import tiny_llama


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="module")
def model(tiny: Path) -> Iterator[Model]:
    with closing(Model(ModelConfig(tiny))) as loaded:
        yield loaded


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """The processes that are started."""
    found = []
    start = subprocess.Popen

    def record(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        found.append(start(*arguments, **options))
        return found[-1]

    monkeypatch.setattr(subprocess, "Popen", record)
    return found


def allowed(grammar: Grammar, model: Model) -> set[bytes]:
    """The spellings of the tokens that the text may continue with."""
    logits = np.zeros(model.n_vocab, np.float32)
    return {model.piece(int(token)) for token in np.flatnonzero(np.isfinite(grammar.mask(logits)))}


def token(model: Model, text: str) -> int:
    return next(i for i in range(259, model.n_vocab) if model.piece(i) == text.encode())


def test_what_a_grammar_allows(model: Model) -> None:
    grammar = Grammar(model, 'root ::= "a" [bc] | " the"')
    assert allowed(grammar, model) == {b"a", b" ", b" the"}
    assert grammar.allows(token(model, "a"))
    assert not grammar.allows(token(model, "b"))
    grammar.accept(token(model, "a"))
    assert allowed(grammar, model) == {b"b", b"c"}
    grammar.accept(token(model, "c"))
    assert grammar.allows(model.eos)
    assert allowed(grammar, model) == {b""}, "the end"


INVALID = {
    " ": "it is empty",
    'root ::= "a\0"': "a NUL",
    'root ::= "\ud800"': "surrogates not allowed",
    "root": "expecting ::= at",
    "root ::= nothing": "Undefined rule identifier 'nothing'",
    'line ::= "a"': "does not contain a 'root' symbol",
    'root ::= root "a" | "b"': "left recursion",
    'root ::= ((("a"{1000}){1000}){1000}){1000}': "exceeds sane defaults",
    "nonsense " * 20_000: "expecting ::=",
    "#" * (2**18 + 1): "more than 262144 bytes",
}


@pytest.mark.parametrize("text", INVALID, ids=range(len(INVALID)))
def test_an_invalid_grammar_is_refused_with_the_reason(
    model: Model, text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match=INVALID[text]) as refused:
        Grammar(model, text)
    assert len(str(refused.value)) < 400
    assert "\n" not in str(refused.value)
    assert capfd.readouterr() == ("", "")


# Grammars that llama.cpp cannot parse or apply with limited time, memory and stack: unlimited, each of them ends or
# blocks the process that it is in.
OPTIONAL = '("a"? ){1000} ("a"? ){1000}'
HOSTILE = {
    "optional parts": f'root ::= {OPTIONAL}',
    "empty 2^20 times": "root ::= r0\nr20 ::= [ab]*" + "".join(f"\nr{i} ::= r{i + 1} r{i + 1}" for i in range(20)),
    "hidden left recursion": 'root ::= x\nx ::= y x "b" | "c"\ny ::= z\nz ::= "a" |',
    "parentheses": "root ::= " + "(" * 120_000 + '"a"' + ")" * 120_000,
}  # fmt: skip
LATER = {
    "recursion after a token": 'root ::= "a" x\nx ::= y x "b" | "c"\ny ::= z\nz ::= "a" |',
    "optional parts after a token": f'root ::= "a" {OPTIONAL} "c"',
}


def use(model: Model, text: str) -> None:
    grammar = Grammar(model, text)
    for _ in range(3):
        allowed(grammar, model)
        grammar.accept(token(model, "a"))


@pytest.mark.parametrize("name", [*HOSTILE, *LATER])
def test_a_grammar_that_llama_cpp_cannot_bear_is_refused(model: Model, name: str) -> None:
    with pytest.raises(UsageError, match=r"^the grammar is too complex: llama\.cpp "):
        use(model, (HOSTILE | LATER)[name])
    assert allowed(Grammar(model, 'root ::= "ab"'), model) == {b"a"}, "the next one is not affected"


def test_an_abort_of_llama_cpp_is_the_grammars_fault(model: Model) -> None:
    """It has an assertion about a grammar that begins with nothing, for ever."""
    with pytest.raises(UsageError, match=r"^the grammar cannot be applied: llama\.cpp aborted: GGML_ASSERT"):
        use(model, 'root ::= x root\nx ::= y\ny ::= ""')


def test_one_process_serves_one_grammar_after_the_other(tiny: Path, started: list[subprocess.Popen[bytes]]) -> None:
    with closing(Model(ModelConfig(tiny))) as model:
        for text in ('root ::= "ab"', 'root ::= "cd"'):
            assert allowed(Grammar(model, text), model) == {text[10].encode()}
        with pytest.raises(UsageError):
            Grammar(model, "nonsense")
        first = Grammar(model, 'root ::= "e"')
        assert len(started) == 1
        second = Grammar(model, 'root ::= "f"')
        assert len(started) == 2, "two grammars at the same time"
        assert (allowed(first, model), allowed(second, model)) == ({b"e"}, {b"f"})
        del first, second
        assert {process.poll() for process in started} == {None, -9}, "one is kept"
    assert [process.poll() for process in started] == [-9, -9]
    with pytest.raises(ClosedError):
        Grammar(model, 'root ::= "a"')


def test_an_idle_process_that_was_killed_is_replaced(model: Model, started: list[subprocess.Popen[bytes]]) -> None:
    Grammar(model, 'root ::= "a"').close()
    started[-1].kill()
    started[-1].wait()
    assert allowed(Grammar(model, 'root ::= "b"'), model) == {b"b"}


def test_a_process_that_cannot_run(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny.read_bytes())
    with closing(Model(ModelConfig(path))) as model:
        path.unlink()
        with pytest.raises(ModelError, match=r"failed: .*model\.gguf: no such file"):
            Grammar(model, 'root ::= "a"')
        monkeypatch.setattr("sys.executable", str(tmp_path / "none"))
        with pytest.raises(BusyError, match="cannot be started: No such file"):
            Grammar(model, 'root ::= "a"')


def test_texts_of_an_engine(tiny: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Hostile grammars end their own text only; descriptors stay what they are."""
    moved: list[object] = []
    monkeypatch.setattr(os, "dup2", lambda *arguments: moved.append(arguments))
    with duo.load(tiny) as engine:
        answer = engine.generate("a", grammar='root ::= ("bad" | "fed") "cab"')
        assert answer.text in ("badcab", "fedcab")
        assert answer.stop_reason == "end of text"
        assert engine.generate("a", json_schema='{"const": "bed"}').text == '"bed"'
        wrong: list[dict[str, Any]] = [
            {"grammar": "nonsense"}, {"grammar": " "}, {"json_schema": "{"}, {"json_schema": '{"type": 5}'},
            {"grammar": HOSTILE["hidden left recursion"]}, {"grammar": LATER["recursion after a token"]},
        ]  # fmt: skip
        for options in wrong:
            with pytest.raises(UsageError):
                engine.generate("a", **options)
        assert engine.generate("a", grammar='root ::= "bed"').text == "bed"
    assert moved == []
    assert capfd.readouterr() == ("", "")
