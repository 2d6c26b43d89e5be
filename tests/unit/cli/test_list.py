"""`duo list`: the models in the caches, and which can draft for which."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gguf import GGUFWriter, PoolingType

from tests.command import assert_refused
from tests.gguf_files import WORDS, tiny_hybrid, tiny_llama, tiny_mamba
from tests.unit.cli.runner import duo

HUB = "hub/models--ada--tiny-GGUF/snapshots/1"


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the caches of duo (cache/) and of Hugging Face (hub/)."""
    monkeypatch.setattr(
        "duo.models.draft_files.import_module", lambda _: type("Hub", (), {"HF_HUB_CACHE": f"{tmp_path}/hub"})
    )
    for folder in ("cache", HUB, "mine"):
        (tmp_path / folder).mkdir(parents=True)
    return tmp_path


def listed(caches: Path, *arguments: str | Path) -> list[str]:
    run = duo("list", *arguments, env={"DUO_CACHE": str(caches / "cache"), "HOME": str(caches)})
    assert (run.status, run.stderr) == (0, ""), run.stderr
    return run.text.splitlines()


def test_models_of_one_vocabulary_are_a_group(caches: Path) -> None:
    tiny_llama(caches / "cache" / "large.gguf", padding=128)
    tiny_llama(caches / HUB / "tiny-Q4_K_M.gguf")
    tiny_llama(caches / "mine" / "other.gguf", words=(*WORDS[:-2], "▁bird", "▁"))
    large, small, *rest = [line.strip() for line in listed(caches)[1:3]]
    assert rest == []
    assert large.startswith("1  ~/cache/large.gguf")
    assert small.startswith("2  ada/tiny-GGUF:Q4_K_M ")
    assert [line.split()[3] for line in (large, small)] == ["MB", "MB"]
    assert " A (403)" in large
    assert " A (275)" in small
    with_given = listed(caches, caches / "mine")
    assert [line.split()[1] for line in with_given[1:4]] == [
        "~/cache/large.gguf", "ada/tiny-GGUF:Q4_K_M", "~/mine/other.gguf",
    ]  # fmt: skip


def test_which_can_draft_for_which(caches: Path) -> None:
    """The same vocabulary, at most half the size, and a cache that can be rolled back."""
    folder = caches / "cache"
    tiny_llama(folder / "target.gguf", padding=100)
    for name, make in (("draft", tiny_llama), ("hybrid", tiny_hybrid), ("recurrent", tiny_mamba)):
        make(folder / f"{name}.gguf")
    tiny_llama(folder / "another.gguf", words=(*WORDS[:-2], "▁bird", "▁"))
    sizes = {"target": 1000, "recurrent": 900, "hybrid": 300, "draft": 200, "another": 100}
    models = _json(caches, sizes)
    assert {name: one["drafts"] for name, one in models.items()} == {
        "target": ["draft"], "recurrent": [], "hybrid": [], "draft": [], "another": [],
    }  # fmt: skip
    assert {one["vocabulary"] for name, one in models.items() if name != "another"} == {"A"}
    assert models["another"]["vocabulary"] == "B"
    assert _json(caches, sizes | {"hybrid": 500})["hybrid"]["drafts"] == ["draft"]


def _json(caches: Path, sizes: dict[str, int]) -> dict[str, dict[str, object]]:
    """The models by name, if they had these sizes, with names for drafts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("duo.cli.commands.list_models.size", lambda path: sizes[path.stem])
        models = json.loads("\n".join(listed(caches, "--json")))
    return {Path(one["path"]).stem: one | {"drafts": [Path(draft).stem for draft in one["drafts"]]} for one in models}


def test_what_is_no_text_model_is_not_worth_a_warning(caches: Path) -> None:
    encoder = GGUFWriter(caches / "cache" / "encoder.gguf", "bert")
    encoder.add_token_list(["a"])
    encoder.add_pooling_type(PoolingType.MEAN)
    encoder.write_header_to_file()
    encoder.write_kv_data_to_file()
    encoder.close()
    assert listed(caches)[0].startswith("no models in ")


def test_what_is_no_model_is_left_out(caches: Path) -> None:
    (caches / "cache" / "damaged.gguf").write_bytes(b"GGUF and no more")
    tiny_llama(caches / HUB / "tiny-Q4_K_M.gguf")
    run = duo("list", env={"DUO_CACHE": str(caches / "cache")})
    assert run.status == 0
    (warning,) = run.warnings
    assert "damaged.gguf: the file is truncated or damaged" in warning
    assert run.text.splitlines()[1].split()[1] == "ada/tiny-GGUF:Q4_K_M"


def test_no_models(caches: Path) -> None:
    (said,) = listed(caches)
    assert said == ("no models in ~/cache, ~/hub: `duo demo` fetches a pair, `duo chat -hf USER/REPO:QUANT` any model")
    assert_refused(duo("list", caches / "none"), "none: no such file")
