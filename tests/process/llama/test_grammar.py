"""Grammars in their process: what they allow, what is refused, and that no grammar harms this process."""

import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from duo.config import ModelConfig
from duo.errors import BusyError, ClosedError, ModelError, UsageError
from duo.llama.grammar import Grammar, GrammarProcess
from duo.llama.model import Model
from tests.gguf_files import tiny_llama


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="module")
def model(tiny: Path) -> Iterator[Model]:
    with closing(Model(ModelConfig(tiny))) as loaded:
        yield loaded


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


def test_a_schema_with_a_large_vocabulary(tmp_path: Path) -> None:
    """The vocabulary takes llguidance longer than a grammar may take."""
    words = tuple(f"w{i}" for i in range(260_000))
    with closing(Model(ModelConfig(tiny_llama(tmp_path / "large.gguf", words=words)), vocabulary_only=True)) as large:
        grammar = Grammar(large, '%llguidance {}\nstart: %json {"const": 1}')
        assert allowed(grammar, large) == {b"1"}


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
# Grammars that llama.cpp cannot parse or apply with limited time, memory and stack: unlimited, each of them ends or
# blocks the process that it is in.
TOO_COMPLEX = r"^the grammar is too complex: it needs more than 1 s or 512 MB"
LATER = 'root ::= "a" x\nx ::= y x "b" | "c"\ny ::= z\nz ::= "a" |'
HOSTILE = {
    'root ::= ("a"? ){1000} ("a"? ){1000}': TOO_COMPLEX,
    'root ::= "a" ("a"? ){1000} ("a"? ){1000} "c"': TOO_COMPLEX,
    "root ::= r0\nr20 ::= [ab]*" + "".join(f"\nr{i} ::= r{i + 1} r{i + 1}" for i in range(20)): TOO_COMPLEX,
    'root ::= x\nx ::= y x "b" | "c"\ny ::= z\nz ::= "a" |': TOO_COMPLEX,  # hidden left recursion
    LATER: TOO_COMPLEX,
    "root ::= " + "(" * 120_000 + '"a"' + ")" * 120_000: TOO_COMPLEX,
    'root ::= x root\nx ::= y\ny ::= ""': r"^the grammar cannot be applied: llama\.cpp aborted: GGML_ASSERT",
}
REFUSED = INVALID | HOSTILE


@pytest.mark.parametrize("text", REFUSED, ids=range(len(REFUSED)))
def test_a_grammar_is_refused_with_the_reason(model: Model, text: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match=REFUSED[text]) as refused:  # noqa: PT012 - some only when they are applied
        grammar = Grammar(model, text)
        for _ in range(3):
            allowed(grammar, model)
            grammar.accept(token(model, "a"))
    assert len(str(refused.value)) < 400
    assert "\n" not in str(refused.value)
    assert capfd.readouterr() == ("", "")
    assert allowed(Grammar(model, 'root ::= "ab"'), model) == {b"a"}, "the next one is not affected"


def test_a_process_serves_one_grammar_after_the_other(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Recorded(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    with closing(Model(ModelConfig(tiny))) as model:
        Grammar(model, 'root ::= "ab"')
        with pytest.raises(UsageError):
            Grammar(model, "nonsense")
        first = Grammar(model, 'root ::= "e"')
        assert len(started) == 1
        second = Grammar(model, 'root ::= "f"')
        assert len(started) == 2, "two grammars at the same time"
        assert (allowed(first, model), allowed(second, model)) == ({b"e"}, {b"f"})
        del first, second
        several = [Grammar(model, 'root ::= "ab"') for _ in range(5)]
        assert len(started) == 5, "both were kept"
        del several
        alive = [process for process in started if process.poll() is None]
        assert len(alive) == 4, "as many as texts are written together"
        for process in alive:
            process.kill()
            process.wait()
        assert allowed(Grammar(model, 'root ::= "b"'), model) == {b"b"}, "and is replaced if it was killed"
    assert [process.poll() for process in started] == [-9] * 6
    with pytest.raises(ClosedError):
        Grammar(model, 'root ::= "a"')


def test_a_grammar_that_fails_at_its_last_token_harms_no_other(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for that token, so the process may still be there when the next grammar takes it."""
    with closing(Model(ModelConfig(tiny))) as model:
        process = Grammar(model, 'root ::= "a"')._process
        process.pointer.kill()
        process.pointer.wait()
        monkeypatch.setattr(GrammarProcess, "has_ended", False)
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
