"""Where models are looked for, what they are called, and which draft for which; no drafts: test_compare_drafts.py."""

import re
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from duo.models.draft_files import FAMILIES, family_of, find_candidates, hub_name, model_folders
from tests.command import ROOT, python


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], Path]:
    """Makes a file of so many bytes. The cache of duo is cache/, that of Hugging Face hub/."""
    monkeypatch.setenv("DUO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))

    def put(name: str, n_bytes: int = 100) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"GGUF".ljust(n_bytes, b"\0"))
        return path

    put("target.gguf", 1000)
    return put


def test_what_is_given_comes_first_and_in_folders_the_smallest_but_never_the_target(
    tmp_path: Path, put: Callable[..., Path]
) -> None:
    put("b.gguf", 900)
    put("more/large.gguf", 400)
    put("more/below/small.gguf", 50)
    put("more/notes.txt")
    put("cache/demo/demo.gguf", 70)
    put("hub/models--a--b/snapshots/1/x.gguf", 60)
    for link, file in (("again", "more/large"), ("alias", "target"), ("loop", "loop")):
        (tmp_path / f"{link}.gguf").symlink_to(tmp_path / f"{file}.gguf")
    given = ("more", "b.gguf", "missing.gguf", "again.gguf", "target.gguf", "alias.gguf", "loop.gguf")
    paths = find_candidates([tmp_path / name for name in given], tmp_path / "target.gguf")
    assert [path.relative_to(tmp_path).as_posix() for path in paths] == [
        "more/below/small.gguf", "more/large.gguf", "b.gguf", "missing.gguf", "loop.gguf", "cache/demo/demo.gguf",
        "hub/models--a--b/snapshots/1/x.gguf",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({}, "home/.cache/huggingface/hub"),
        ({"XDG_CACHE_HOME": "{}/xdg"}, "xdg/huggingface/hub"),
        ({"XDG_CACHE_HOME": "{}/xdg", "HF_HOME": "~/hf"}, "home/hf/hub"),
        ({"HF_HOME": "{}/hf", "HF_HUB_CACHE": "$HF_HOME/mine"}, "hf/mine"),
    ],
)
def test_the_cache_of_hugging_face_is_where_its_variables_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], folder: str
) -> None:
    """As huggingface_hub finds it, which need not be installed."""
    for name in ("XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    found = {name: value.format(tmp_path) for name, value in variables.items()} | {"HOME": str(tmp_path / "home")}
    found["DUO_CACHE"] = str(tmp_path / "none")
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    (tmp_path / folder).mkdir(parents=True)
    assert model_folders() == [tmp_path / folder]
    told = python("import huggingface_hub.constants as c; print(c.HF_HUB_CACHE)", env=found)
    assert told.text.strip() == str(tmp_path / folder)


def test_without_huggingface_hub_a_file_in_its_cache_is_named_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "models--ada--Tiny-1B-GGUF" / "snapshots" / "1" / "Tiny-1B-Q4_K_M.gguf"
    with mock.patch.dict("sys.modules", {"huggingface_hub": None}):
        assert hub_name(path) is None


def test_the_name_of_a_file_from_hugging_face(tmp_path: Path) -> None:
    folder = tmp_path / "models--ada--Tiny-1B-GGUF" / "snapshots" / "1"
    names = {"Tiny-1B-Q4_K_M.gguf": "Q4_K_M", "q8_0/tiny.q8_0.gguf": "q8_0", "Tiny-F16-00001-of-00002.gguf": "F16"}
    names["Tiny-1B-UD-Q4_K_M.gguf"] = "UD-Q4_K_M"
    for name, quant in names.items():
        assert hub_name(folder / name) == f"ada/Tiny-1B-GGUF:{quant}"
    assert hub_name(tmp_path / "Tiny-1B-Q4_K_M.gguf") is hub_name(folder / "tiny.gguf") is None


TARGETS = {
    "Meta-Llama-3.1-70B-Instruct-Q4_K_M.gguf": "Llama 3.1, 3.2, 3.3",
    "Meta-Llama-3-8B-Instruct.Q4_0.gguf": None,  # other special tokens than 3.1
    "DeepSeek-R1-Distill-Llama-70B-Q4_K_M.gguf": "DeepSeek R1 Distill Llama 70B",
    "DeepSeek-R1-Distill-Qwen-32B-Q4_K_M.gguf": "DeepSeek R1 Distill Qwen 7B to 32B",
    "qwen2.5-coder-32b-instruct-q4_k_m.gguf": "Qwen2.5-Coder",
    "Qwen3.5-27B-Q4_K_M.gguf": None,
    "Qwen3-Next-80B-A3B-Instruct-Q4_K_M.gguf": None,
    "gemma-3-27b-it-Q4_K_M.gguf": "Gemma 3",
    "gemma-2b-it-Q8_0.gguf": None,  # the first Gemma
    "gemma-2-27b-it-Q8_0.gguf": "Gemma 2 9B, 27B",
    "gemma-3n-E4B-it-Q4_K_M.gguf": None,
    "Mistral-Small-3.2-24B-Instruct-2506-Q4_K_M.gguf": "Mistral Small 3.1, 3.2",
    "phi-4-Q4_K_M.gguf": "Phi-4 14B",
    "gpt-oss-120b-mxfp4-00001-of-00003.gguf": "gpt-oss 20B, 120B",
    "my-finetune.gguf": None,
    "Qwen3-0.6B-F16.gguf": None,  # it is a draft
}


def test_the_family_is_in_one_of_the_names_of_a_target() -> None:
    for name, targets in TARGETS.items():
        found = family_of(("main.gguf", "", name))
        assert (found and found.targets) == targets, name


def test_every_draft_can_be_named_and_is_in_the_documentation() -> None:
    lines = ["| target | draft on Hugging Face |", "|---|---|"]
    for family in FAMILIES:
        assert bool(family.draft) != bool(family.note)
        if family.draft:
            assert re.fullmatch(r"[\w.-]+/[\w.-]+(:\w+)?", family.draft)
            assert family.is_draft(family.draft)
            assert family.draft.partition(":")[0] in family.advice
        lines.append(f"| {family.targets} | {f'`{family.draft}`' if family.draft else f'none: {family.note}'} |")
    assert "\n".join(lines) in (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
