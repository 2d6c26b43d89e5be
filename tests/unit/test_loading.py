"""duo.load(): its options and errors, progress, and the size of contexts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

import duo
from tests.gguf_files import tiny_llama


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tiny")
    return tiny_llama(folder / "target.gguf", depth=0.3), tiny_llama(folder / "draft.gguf", depth=0.1)


def load(target: Path, draft: Path | None = None, **options: Any) -> duo.Engine:
    return duo.load(target, draft, n_threads=1, draft_n_threads=1, exact=True, profile=False, **options)


WRONG: dict[str, object] = {
    "n_ctx": -1, "type_k": "x", "n_gpu_layers": "x", "tensor_split": [1.0] * 100, "devices": ["GPU99"],
    "draft_devices": ["GPU99"], "cpu_range": "x", "draft_cpu_range": "x",
}  # fmt: skip


@pytest.mark.parametrize("parameter", WRONG)
def test_options_out_of_range(parameter: str, pair: tuple[Path, Path]) -> None:
    with pytest.raises(duo.UsageError, match=f"^{parameter}") as raised:
        duo.load(*pair, profile=False, **{parameter: cast("Any", WRONG[parameter])})
    assert raised.value.parameter == parameter


def test_a_wrong_schema(pair: tuple[Path, Path]) -> None:
    with load(*pair) as engine, pytest.raises(duo.UsageError, match=r"^json_schema ") as raised:
        engine.generate("the cat", json_schema="{")
    assert raised.value.parameter == "json_schema"


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(duo.ModelError, match="no such file"):
        duo.load(tmp_path / "missing.gguf")


def test_a_draft_with_another_vocabulary(
    pair: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = tiny_llama(tmp_path / "other.gguf", words=tuple(f"▁word{i}" for i in range(16)))
    with load(pair[0]) as engine:
        alone = engine.generate("the cat", max_tokens=24, ignore_eos=True).text
    with (
        caplog.at_level("INFO", "duo.loading"),
        load(pair[0], other, schedule="sync", lookup="off", warmup=False) as engine,
    ):
        result = engine.generate("the cat", max_tokens=24, ignore_eos=True)
    assert result.text == alone
    assert result.statistics.draft is not None
    assert result.statistics.draft.vocabulary == "translated"
    assert result.statistics.draft.verified > 0
    assert "other.gguf drafts for target.gguf through the text: token 259 is" in caplog.text
    assert "is accepted more often (`duo list` shows which models share one)." in caplog.text


def test_progress_may_stop_the_loading_and_fail(pair: tuple[Path, Path], capfd: pytest.CaptureFixture[str]) -> None:
    told: list[tuple[str, float, float | None]] = []
    load(*pair, progress=lambda *progress: told.append(progress)).close()
    finished = [description for description, done, total in told if done == total]
    assert finished == ["loading target.gguf", "loading draft.gguf"]
    with pytest.raises(duo.ModelError, match=r"^loading target\.gguf: stopped$"):
        load(*pair, progress=lambda *_: False)

    def fail(description: str, done: float, total: float | None) -> None:
        raise ZeroDivisionError(description)

    with pytest.raises(ZeroDivisionError, match=r"loading target\.gguf"):
        load(*pair, progress=fail)
    assert capfd.readouterr() == ("", "")


def test_contexts_grow_with_the_texts(pair: tuple[Path, Path]) -> None:
    with load(*pair) as engine:
        short = engine.generate("the cat", max_tokens=8, ignore_eos=True)
        before = engine.slot.n_ctx
        longer = engine.generate("the cat", max_tokens=400, ignore_eos=True)
        assert before < 400 < engine.slot.n_ctx
        assert longer.tokens[:8] == short.tokens
        whole = engine.generate("the cat", ignore_eos=True)
    assert (whole.stop_reason, longer.tokens) == ("context full", whole.tokens[:400])


def test_n_ctx_fixes_the_size(pair: tuple[Path, Path]) -> None:
    with load(*pair, n_ctx=32) as engine:
        with pytest.raises(duo.PromptError, match=r"the prompt has 41 tokens, the context 32 \(n_ctx\)"):
            engine.generate("a" * 40)
        full = engine.generate("a", ignore_eos=True)
        assert (len(full.tokens), full.stop_reason) == (32 - 2 + 1, "context full")
