"""duo.load(): its options and errors, progress, and the size of contexts."""

from pathlib import Path
from typing import Any

import pytest

import duo
from tests.gguf_files import tiny_llama


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tiny")
    return tiny_llama(folder / "target.gguf", depth=0.3), tiny_llama(folder / "draft.gguf", depth=0.1)


def load(target: Path, draft: Path | None = None, **options: Any) -> duo.Engine:
    return duo.load(target, draft, n_threads=1, draft_n_threads=1, exact=True, profile=False, **options)


@pytest.mark.parametrize(
    ("parameter", "value"),
    [("n_ctx", -1), ("tensor_split", [1.0] * 100), ("draft_devices", ["GPU99"]), ("draft_cpu_range", "x")],
)
def test_options_out_of_range(parameter: str, value: Any, pair: tuple[Path, Path]) -> None:
    with pytest.raises(duo.UsageError, match=f"^{parameter}") as raised:
        duo.load(*pair, profile=False, **{parameter: value})
    assert raised.value.parameter == parameter


def test_progress_may_stop_the_loading_and_fail(pair: tuple[Path, Path], capfd: pytest.CaptureFixture[str]) -> None:
    finished: list[str] = []
    load(*pair, progress=lambda what, done, total: finished.extend([what] * (done == total))).close()
    assert finished == ["loading target.gguf", "loading draft.gguf"]
    with pytest.raises(duo.ModelError, match=r"^loading target\.gguf: stopped$"):
        load(*pair, progress=lambda *_: False)
    with pytest.raises(ZeroDivisionError):
        load(*pair, progress=lambda *_: bool(1 // 0))
    assert capfd.readouterr() == ("", "")


def test_contexts_grow_with_the_texts_unless_n_ctx_fixes_the_size(pair: tuple[Path, Path]) -> None:
    with load(*pair) as engine:
        short = engine.generate("the cat", max_tokens=8, ignore_eos=True)
        before = engine.slot.n_ctx
        longer = engine.generate("the cat", max_tokens=400, ignore_eos=True)
        assert before < 400 < engine.slot.n_ctx
        assert longer.tokens[:8] == short.tokens
        whole = engine.generate("the cat", ignore_eos=True)
    assert (whole.stop_reason, longer.tokens) == ("context full", whole.tokens[:400])
    with load(*pair, n_ctx=32) as engine:
        with pytest.raises(duo.PromptError, match=r"the prompt has 41 tokens, the context 32 \(n_ctx\)"):
            engine.generate("a" * 40)
        full = engine.generate("a", ignore_eos=True)
        assert (len(full.tokens), full.stop_reason) == (32 - 2, "context full")
