"""`duo list`: the models in the caches, and which can draft for which."""

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from duo.cli.commands import memory as memory_command
from duo.cli.commands.list_models import Listed
from duo.cli.options import read_file
from duo.cli.terminal.console import size_of
from duo.config import ModelConfig
from duo.llama import gguf_header
from duo.llama.model import model_size
from duo.models import memory_file
from duo.models.demo import DRAFT, TARGET
from duo.speculation import memory as memory_module
from tests.command import Run
from tests.gguf_files import WORDS, tiny_block, tiny_hybrid, tiny_llama, tiny_mamba, tiny_mixture
from tests.gguf_header import GgufHeader
from tests.unit.cli.runner import duo

HUB = "hub/models--ada--tiny-GGUF/snapshots/1"


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the caches of duo (cache/) and of Hugging Face (hub/)."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    for folder in ("cache", HUB, "mine"):
        (tmp_path / folder).mkdir(parents=True)
    return tmp_path


def listed(caches: Path, *arguments: str | Path) -> Run:
    run = duo("list", *arguments, env={"DUO_CACHE": str(caches / "cache"), "HOME": str(caches)})
    assert run.status == 0, run.stderr
    return run


def test_groups_beyond_the_alphabet_have_names_too(tmp_path: Path) -> None:
    head = gguf_header.GgufHeader(tiny_llama(tmp_path / "a.gguf"))
    letters = [Listed(Path(), 0, 0, head, group).letter for group in range(60)]
    assert [letters[i] for i in (0, 25, 26, 59)] == ["A", "Z", "A1", "H2"]
    assert len({*letters}) == 60


def test_which_can_draft_for_which(caches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same vocabulary, at most half the size, and a cache that can be rolled back."""
    folder, hub = caches / "cache", caches / HUB
    tiny_llama(folder / "target.gguf", padding=100)
    for path, make in (
        (hub / "draft-Q4_K_M", tiny_llama),
        (folder / "hybrid", tiny_hybrid),
        (folder / "flat", tiny_mamba),
    ):
        make(path.with_suffix(".gguf"))
    tiny_llama(caches / "mine" / "other.gguf", words=(*WORDS[:-2], "▁bird", "▁"))
    sizes = {"target": 1000, "flat": 900, "hybrid": 500, "draft-Q4_K_M": 200, "other": 100}
    monkeypatch.setattr("duo.cli.commands.list_models.size", lambda path: sizes[path.stem])
    models = {Path(one["path"]).stem: one for one in json.loads(listed(caches, caches / "mine", "--json").text)}
    pairs = {(Path(draft).stem, name) for name, one in models.items() for draft in one["drafts"]}
    assert pairs == {("draft-Q4_K_M", "target"), ("draft-Q4_K_M", "hybrid")}
    assert {name: one["vocabulary"] for name, one in models.items()} == dict.fromkeys(models, "A") | {"other": "B"}
    lines = listed(caches, caches / "mine").text.splitlines()
    found = [re.sub(r" *\d.*?  (\S+) .* ([AB] \(\d+\)).*", r"\1 \2", line) for line in lines]
    assert {"~/cache/target.gguf A (375)", "ada/tiny-GGUF:Q4_K_M A (275)", "~/mine/other.gguf B (275)"} <= {*found}


def test_what_is_no_text_model_and_no_model(caches: Path) -> None:
    path = tiny_llama(caches / "cache" / "encoder.gguf")
    GgufHeader.read(path).set("llama.pooling_type", 1).write(path)
    said = "no models in ., ~/cache, ~/hub: `duo demo` fetches a pair, `duo chat -hf USER/REPO:QUANT` any model\n"
    assert listed(caches).text == said
    (caches / "cache" / "damaged.gguf").write_bytes(b"GGUF and no more")
    run = listed(caches)
    (warning,) = run.warnings
    assert "damaged.gguf: the file is truncated or damaged" in warning
    assert run.text == said


def test_a_split_model_with_a_missing_part_is_named_and_not_listed(caches: Path) -> None:
    first = tiny_llama(caches / "mine" / "split.gguf", n_layer=4, max_tensors=20)
    (second,) = set((caches / "mine").iterdir()) - {first}
    assert len(json.loads(listed(caches, caches / "mine", "--json").text)) == 1
    second.unlink()
    run = listed(caches, caches / "mine", "--json")
    assert json.loads(run.text) == []
    (warning,) = run.warnings
    assert warning.endswith(f"split-00001-of-00002.gguf: cannot be used without {second.name}")


def test_the_folders_that_were_searched_are_named(caches: Path) -> None:
    tiny_llama(caches / "mine" / "one.gguf")
    assert listed(caches, caches / "mine").text.endswith("Searched: ~/mine, ~/cache, ~/hub.\n")
    (caches / "mine" / "one.gguf").unlink()
    assert listed(caches, caches / "mine").text.startswith("no models in ~/mine, ~/cache, ~/hub: ")


def test_files_in_the_current_folder_are_listed_too(caches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(caches / "mine")
    tiny_llama(caches / "mine" / "own.gguf")
    run = listed(caches)
    assert re.search(r"^1  own\.gguf ", run.text, re.MULTILINE)
    assert run.text.endswith("Searched: ., ~/cache, ~/hub.\n")
    assert "own" not in listed(caches, caches / "cache").text


def test_memories_are_listed(caches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = caches / "mine"
    monkeypatch.chdir(folder)
    model = tiny_llama(folder / "own.gguf")
    for name in ("one.memory", "damaged.memory"):
        (folder / "text.txt").write_text("the cat sat on the mat", encoding="utf-8")
        run = duo("memory", "build", name, "text.txt", "-m", model)
        assert (run.status, run.text) == (0, ""), run.stderr
        assert re.fullmatch(rf"duo: {name}: \d+ tokens of \S+; use it with --memory {name}\n", run.stderr)
    damaged = folder / "damaged.memory"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    (folder / "empty.memory").touch()
    for paths in ((), (folder,), ("one.memory", "damaged.memory", "empty.memory", model)):
        run = listed(caches, *paths)
        assert not run.warnings
        found = [line.removeprefix("~/mine/") for line in run.text.splitlines() if ".memory: " in line]
        assert {*found} >= {"damaged.memory: a damaged memory", "empty.memory: a damaged memory"}
        assert sum(re.match(r"one\.memory: a memory of \S+, \d+ tokens", line) is not None for line in found) == 1
        assert "own.gguf" in run.text
    (entry,) = json.loads(listed(caches, "--json").text)
    assert entry["memories"] == ["one.memory"]
    (other,) = json.loads(listed(caches, tiny_llama(caches / "other.gguf"), "--json").text)
    assert other["memories"] == []


def test_of_too_many_texts_the_last_ones_are_read_and_the_others_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for module in (memory_command, memory_file, memory_module):
        monkeypatch.setattr(module, "MAX_TOKENS", 200)
    read = list[str]()

    def spy(name: str, *, limit: int) -> tuple[str, str]:
        read.append(name)
        return read_file(name, limit=limit)

    monkeypatch.setattr(memory_command, "read_file", spy)
    names, model = [f"{i}.txt" for i in range(9)], tiny_llama(tmp_path / "own.gguf")
    for name in names:
        Path(name).write_text("the cat sat on the mat " * 8, encoding="utf-8")
    run = duo("memory", "build", "a.memory", *names, "-m", model)
    said, _ = run.stderr.splitlines()
    assert read == names[: -len(read) - 1 : -1]
    assert 1 < len(read) < 9
    assert said.startswith("duo: warning: a memory has at most 200 tokens: all or part of 0.txt, 1.txt, 2.txt and ")
    assert run.status == 0
    alone = duo("memory", "build", "b.memory", "0.txt", "-m", model)
    assert (alone.status, len(alone.stderr.splitlines())) == (0, 1)
    n_each = int(alone.stderr.split()[2])
    n_whole = (200 * 7 // 8) // (n_each + 1)
    assert said.endswith(f" and {9 - n_whole - 3} more is left out")


def test_a_memory_of_the_demo_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is complete: there are two files of the right sizes."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "cache" / "demo"
    folder.mkdir(parents=True)
    for made in (TARGET, DRAFT):
        os.truncate(tiny_llama(folder / made.name), made.size)
    (tmp_path / "text.txt").write_text("the cat sat on the mat", encoding="utf-8")
    run = duo("memory", "build", "a.memory", "text.txt", "-m", "demo", env={"DUO_CACHE": str(tmp_path / "cache")})
    assert run.status == 0, run.stderr
    assert (tmp_path / "a.memory").is_file()


def test_a_block_draft_has_a_kind(caches: Path) -> None:
    tiny_block(caches / "mine" / "block.gguf")
    assert re.search(r"block\.gguf .* DFlash ", listed(caches, caches / "mine").text)
    assert [one["head"] for one in json.loads(listed(caches, caches / "mine", "--json").text)] == ["DFlash"]


@pytest.mark.parametrize("max_tensors", [0, 20])
def test_a_mixture_says_how_much_of_it_are_experts(caches: Path, max_tensors: int) -> None:
    folder = caches / "mine"
    tiny_llama(folder / "dense.gguf")
    path = tiny_mixture(folder / "mixture.gguf", max_tensors=max_tensors)
    n_experts = sum(model_size(ModelConfig(path)).experts)
    assert n_experts
    models = json.loads(listed(caches, folder, "--json").text)
    assert {one["path"]: one["expert_bytes"] for one in models} == {
        str(path): n_experts, str(folder / "dense.gguf"): 0
    }  # fmt: skip
    (line,) = [line for line in listed(caches, folder).text.splitlines() if "mixture of experts" in line]
    number = next(i for i, one in enumerate(models, 1) if one["expert_bytes"])
    others = size_of(models[number - 1]["bytes"] - n_experts)
    said = f"{number} is a mixture of experts: {size_of(n_experts)} of experts, {others} of the rest; "
    assert line == f"{said}on a card that lacks room for all: -ngl 99 -cmoe"


def test_a_token_reads_its_experts_and_no_layer_that_only_drafts() -> None:
    sizes = {"token_embd": 1, "output": 2, "blk.0.attn_q": 4, "blk.0.ffn_up_exps": 80, "blk.1.ffn_up_exps": 160}
    numbers = {"block_count": 2, "nextn_predict_layers": 1, "expert_used_count": 1, "expert_count": 8}
    header: Any = SimpleNamespace(
        architecture="glm4moe", tensors={f"{name}.weight": n for name, n in sizes.items()}, number=numbers.__getitem__
    )
    assert Listed(Path("a.gguf"), 247, 8, header, 0).token_bytes == 2 + 4 + 80 // 8


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("build", "a.memory", "src"), 2, "src: name files, such as src/*.py"),
        (("build", "a.memory", ""), 2, "a text without a name: name files, such as src/*.py"),
        (("build", "", "text.txt"), 2, "memory: give the name of a file"),
        (("build", "text.txt", "other.txt"), 1, "name another file (is the order FILE TEXTFILE?)"),
        (("build", "text.txt"), 2, "duo memory build FILE TEXTFILE... -m MODEL"),
    ],
)
def test_what_is_no_memory_or_text(
    words: tuple[str, ...], status: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    for name in ("text.txt", "other.txt"):
        (tmp_path / name).write_text("the cat", encoding="utf-8")
    run = duo("memory", *words, "-m", tiny_llama(tmp_path / "own.gguf"))
    (line,) = run.stderr.splitlines()
    assert run.status == status
    assert said in line
    assert not (tmp_path / "a.memory").exists()
