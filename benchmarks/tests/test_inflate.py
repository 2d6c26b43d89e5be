"""Inflated models: they are larger, and compute the same."""

import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from benchmarks.inflate import inflate, main
from benchmarks.models import F16, F32, Q4_0, opened, smollm2
from benchmarks.traces import written
from duo.config import ContextConfig
from duo.engine.decoder import decode_all
from duo.llama.library import quantize
from duo.speculation.sampling import Greedy
from tests.gguf_files import N_FF, tiny_hybrid, tiny_llama

Q8_0 = 7  # llama.h, enum llama_ftype
PROMPT = "The lighthouse keeper and his dog"
CONFIG = ContextConfig(128, 1, 1, n_outputs_max=16)


def compare(source: Path, target: Path) -> None:
    """The logits of a prompt, to the rounding of other kernels, and a text."""
    with opened((source, target), CONFIG) as ((model, inflated), contexts):
        prompt = model.tokenize(PROMPT)
        assert prompt == inflated.tokenize(PROMPT)
        logits, others = (decode_all(context, prompt) for context in contexts)
        np.testing.assert_allclose(others, logits, atol=0.05)
        text, other = (written(context, prompt, 48, Greedy(), model.is_end) for context in contexts)
        assert other == text


@pytest.mark.parametrize("kind", [F32, F16, Q8_0, Q4_0])
def test_an_inflated_model_computes_the_same(kind: int, tmp_path: Path) -> None:
    quantize(tiny_llama(tmp_path / "f32.gguf", n_layer=2), tmp_path / "small.gguf", kind)
    inflate(tmp_path / "small.gguf", tmp_path / "large.gguf", 4 * N_FF, 5)
    found = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "large.gguf").tensors}
    assert [*found["blk.4.ffn_down.weight"].shape] == [4 * N_FF, 64]
    assert found["blk.4.attn_q.weight"].data.any(), "a model of zeros might be read faster"
    compare(tmp_path / "small.gguf", tmp_path / "large.gguf")


@pytest.mark.parametrize("kind", [F32, Q4_0])
def test_a_mixture_of_copies_computes_the_same(kind: int, tmp_path: Path) -> None:
    quantize(tiny_llama(tmp_path / "f32.gguf", n_layer=2), tmp_path / "small.gguf", kind)
    inflate(tmp_path / "small.gguf", tmp_path / "large.gguf", n_layers=3, n_experts=5)
    found = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "large.gguf").tensors}
    assert [*found["blk.2.ffn_down_exps.weight"].shape] == [N_FF, 64, 5]
    compare(tmp_path / "small.gguf", tmp_path / "large.gguf")


@pytest.mark.parametrize("kind", [F16, Q4_0])
def test_a_real_model_writes_the_same_text(kind: int, tmp_path: Path) -> None:
    source, target = smollm2(kind), tmp_path / "large.gguf"
    inflate(source, target, 2 * 1536, 31)
    assert target.stat().st_size > 1.3 * source.stat().st_size
    compare(source, target)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--ffn", "200"], "needs a width that is a multiple of 128, and at least 2 layers"),
        (["--experts", "1"], "a mixture has 2 experts or more"),
        (["--layers", "1"], "needs a width that is a multiple of 128, and at least 2 layers"),
        ([], "no-gate.gguf has no feed-forward layers of one width with a gate"),
    ],
)
def test_what_cannot_be_inflated(
    options: list[str], error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tiny_llama(tmp_path / "tiny.gguf", n_layer=2)
    if not options:
        writer = gguf.GGUFWriter(source := tmp_path / "no-gate.gguf", "llama")
        writer.add_tensor("output.weight", np.zeros((2, 2), np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    monkeypatch.setattr(sys, "argv", ["inflate", str(source), str(tmp_path / "new.gguf"), *options])
    with pytest.raises(SystemExit) as raised:
        main()
    assert (raised.value.code, error in capsys.readouterr().err) == (2, True)
    assert not (tmp_path / "new.gguf").exists()


def test_a_hybrid_model_does_not_get_more_layers(tmp_path: Path) -> None:
    source = tiny_hybrid(tmp_path / "hybrid.gguf")
    with pytest.raises(ValueError, match="cannot have more layers"):
        inflate(source, tmp_path / "new.gguf", n_layers=4)


def run(arguments: list[object], monkeypatch: pytest.MonkeyPatch) -> int | str | None:
    """The exit status, or the line in its place."""
    monkeypatch.setattr(sys, "argv", ["inflate", *map(str, arguments)])
    with pytest.raises(SystemExit) as raised:
        main()
    return raised.value.code


@pytest.mark.parametrize("link", [False, True])
def test_the_source_is_not_overwritten(
    link: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = source = tiny_llama(tmp_path / "tiny.gguf")
    before = source.read_bytes()
    if link:
        (target := tmp_path / "link.gguf").symlink_to(source)
    assert run([source, target, "--ffn", 2 * N_FF], monkeypatch) == 2
    assert f"{target} is the source" in capsys.readouterr().err
    assert source.read_bytes() == before


@pytest.mark.parametrize("n_bytes", [0, 3, 20, 1000, -1])
def test_an_incomplete_file_is_named(n_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = tmp_path / "part.gguf", tmp_path / "new.gguf"
    source.write_bytes(tiny_llama(tmp_path / "tiny.gguf").read_bytes()[:n_bytes])
    assert f"{source}: not a complete GGUF file" in str(run([source, target, "--ffn", 2 * N_FF], monkeypatch))
    source.write_bytes(b"no GGUF" * 100)
    assert f"{source}: not a complete GGUF file" in str(run([source, target], monkeypatch))
    assert not target.exists()
