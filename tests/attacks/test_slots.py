"""Files of conversations that are not what they say, and full disks: refused in plain words, and no text suffers."""

import io
import os
import re
import socket
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from duo import Engine, load
from duo.server.lead_server import Lead
from tests.gguf_files import tiny_llama
from tests.serving import PATIENCE_S, LeadProcess, assert_error

PROMPT = "the cat sat on the mat " * 12
N = 8
MIB = 2**20
Write = Callable[[Path, dict[str, Any]], object]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf", depth=0.06)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("slots")


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[Engine]:
    with load(model, n_ctx=512, profile=False, n_threads=1, lookup="off") as engine:
        yield engine


@pytest.fixture(scope="module")
def lead(engine: Engine, folder: Path) -> Iterator[Lead]:
    with Lead(engine, port=0, slot_save_path=folder) as lead:
        yield lead


def ask(lead: Lead, path: str, **fields: Any) -> httpx.Response:
    return httpx.post(f"http://127.0.0.1:{lead.port}{path}", json=fields, timeout=PATIENCE_S)


def text(lead: Lead, prompt: str = PROMPT, **fields: Any) -> tuple[str, int]:
    """What is written, and how many tokens of the prompt were in a cache."""
    answer = ask(lead, "/v1/completions", prompt=prompt, max_tokens=N, ignore_eos=True, **fields)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"], answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.fixture(scope="module")
def expected(lead: Lead) -> str:
    return text(lead, cache_prompt=False)[0]


@pytest.fixture(scope="module")
def saved(lead: Lead, folder: Path, expected: str) -> dict[str, Any]:
    """The arrays of a conversation that nothing is wrong with."""
    here = next(slot["id"] for slot in slots(lead) if slot["n_prompt_tokens"])
    assert ask(lead, f"/slots/{here}?action=save", filename="good").status_code == 200
    with np.load(folder / "good") as file:
        return dict(file)


def slots(lead: Lead) -> Any:
    return httpx.get(f"http://127.0.0.1:{lead.port}/slots", timeout=PATIENCE_S).json()


def savez(path: Path, saved: dict[str, Any], **other: Any) -> None:
    with path.open("wb") as file:
        np.savez(file, **(saved | other))


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def packed(path: Path, saved: dict[str, Any]) -> None:
    """A MB that unpacks to hundreds."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, array in saved.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.save(member, array) if name != "cells" else None
                for _ in range(256 if name == "cells" else 0):
                    member.write(bytes(MIB))


def with_header(path: Path, saved: dict[str, Any], header: str) -> None:
    """Cells whose header says something else."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in saved.items():
            with archive.open(f"{name}.npy", "w") as member:
                if name == "cells":
                    text = header.encode()
                    member.write(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + array.tobytes())
                else:
                    np.save(member, array)


def listening(path: Path, _: dict[str, Any]) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        os.chdir(path.parent)  # a path of a socket may have 107 bytes
        server.bind(path.name)


def sparse(path: Path, _: dict[str, Any]) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)


def halved(path: Path, saved: dict[str, Any]) -> None:
    savez(path, saved)
    os.truncate(path, path.stat().st_size // 2)


def spoiled(path: Path, saved: dict[str, Any]) -> None:
    savez(path, saved)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


LIES: dict[str, Write] = {
    "nothing": lambda path, _: path.write_bytes(b""),
    "text": lambda path, _: path.write_text("hello"),
    "an end of a zip": lambda path, _: path.write_bytes(b"PK\x05\x06" + bytes(18)),
    "many PK": lambda path, _: path.write_bytes(b"PK" * 50),
    "an array": lambda path, saved: path.write_bytes(npy(saved["cells"])),
    "a pickle": lambda path, saved: savez(path, saved, tokens=np.array([{}], dtype=object)),
    "half of it": halved,
    "a byte changed": spoiled,
    "packed": packed,
    "1 TB of nothing": sparse,
    "no cells": lambda path, saved: savez(path, {name: saved[name] for name in ("identity", "tokens", "numbers")}),
    "fewer cells": lambda path, saved: savez(path, saved, cells=saved["cells"][:-100]),
    "more cells": lambda path, saved: savez(path, saved, cells=np.append(saved["cells"], saved["cells"])),
    "empty cells": lambda path, saved: savez(path, saved, cells=saved["cells"][:0]),
    "cells of zeros": lambda path, saved: savez(path, saved, cells=np.zeros_like(saved["cells"])),
    "cells of ones": lambda path, saved: savez(path, saved, cells=np.full_like(saved["cells"], 255)),
    "cells of other numbers": lambda path, saved: savez(path, saved, cells=saved["cells"].astype(float)),
    "cells in rows": lambda path, saved: savez(path, saved, cells=saved["cells"][None]),
    "no tokens": lambda path, saved: savez(path, saved, tokens=saved["tokens"][:0]),
    "fewer tokens": lambda path, saved: savez(path, saved, tokens=saved["tokens"][:-9]),
    "more tokens": lambda path, saved: savez(path, saved, tokens=np.append(saved["tokens"], 3)),
    "too many tokens": lambda path, saved: savez(path, saved, tokens=np.zeros(10**6, int), numbers=[9, 0, 10**6]),
    "a token -1": lambda path, saved: savez(path, saved, tokens=saved["tokens"] - 10**6),
    "a token 2**40": lambda path, saved: savez(path, saved, tokens=saved["tokens"] + 2**40),
    "tokens that are no numbers": lambda path, saved: savez(path, saved, tokens=np.full(len(saved["tokens"]), np.nan)),
    "one token": lambda path, saved: savez(path, saved, tokens=np.array(3)),
    "fewer numbers": lambda path, saved: savez(path, saved, numbers=[1, 2]),
    "numbers of another length": lambda path, saved: savez(path, saved, numbers=[9, 0, 9], tokens=saved["tokens"][:9]),
    "numbers of more": lambda path, saved: savez(path, saved, numbers=[9, 0, 500], tokens=np.ones(500, int)),
    "negative numbers": lambda path, saved: savez(path, saved, numbers=[-1, -1, len(saved["tokens"])]),
    "large numbers": lambda path, saved: savez(path, saved, numbers=[2**62, 2**62, 2**62]),
    "another model": lambda path, saved: savez(path, saved, identity="x" * 10_000),
    "identity as bytes": lambda path, saved: savez(path, saved, identity=np.frombuffer(b"abc", np.uint8)),
    "a header of terabytes": lambda path, saved: with_header(
        path, saved, "{'descr': '|u1', 'fortran_order': False, 'shape': (999999999999,), }"
    ),
    "a header of brackets": lambda path, saved: with_header(path, saved, "(" * 9000),
    "a header of code": lambda path, saved: with_header(path, saved, "__import__('os').abort()"),
    "a pipe": lambda path, _: os.mkfifo(path),
    "a folder": lambda path, _: path.mkdir(),
    "a socket": listening,
    "a device": lambda path, _: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path, _: path.symlink_to(path),
    "a link to nowhere": lambda path, _: path.symlink_to("/none"),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_a_file_that_is_not_what_it_says(
    lead: Lead, folder: Path, saved: dict[str, Any], expected: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / f"lie-{[*LIES].index(name)}"
    monkeypatch.chdir(folder)
    LIES[name](path, saved)
    for slot in (0, 2):
        answer = ask(lead, f"/slots/{slot}?action=restore", filename=path.name)
        assert_error(answer, 400)
        assert not re.search(r"pickle|allow_|unsafe|numpy|array|Errno|header|zip", answer.text), answer.text
        assert text(lead)[0] == expected
        assert text(lead, "the dog", id_slot=slot)[0] == text(lead, "the dog", cache_prompt=False)[0]
    assert httpx.get(f"http://127.0.0.1:{lead.port}/health", timeout=PATIENCE_S).status_code == 200


def test_a_good_file_is_restored_into_any_slot(lead: Lead, saved: dict[str, Any], expected: str) -> None:
    for slot in (0, 1, 3):
        answer = ask(lead, f"/slots/{slot}?action=restore", filename="good")
        assert answer.json()["n_restored"] == len(saved["tokens"])
        found, n_cached = text(lead, id_slot=slot)
        assert (found, n_cached > 40) == (expected, True)


def test_cells_that_are_no_numbers_spoil_no_text(
    lead: Lead, folder: Path, saved: dict[str, Any], expected: str
) -> None:
    """llama.cpp takes them, and they would stay in the cells, where others read them, too."""
    other = text(lead, "the dog", cache_prompt=False)[0]
    cells = saved["cells"].copy()
    cells[-3000:] = 0xFF
    savez(folder / "nan", saved, cells=cells)
    assert ask(lead, "/slots/0?action=restore", filename="nan").status_code == 200
    for _ in range(2):
        assert text(lead)[0] == expected
        assert text(lead, "the dog")[0] == other
    assert httpx.get(f"http://127.0.0.1:{lead.port}/health", timeout=PATIENCE_S).status_code == 200


@pytest.mark.parametrize("name", ["pipe", "pipe.new", "folder"])
def test_what_is_in_the_way_of_a_file(lead: Lead, folder: Path, saved: dict[str, Any], name: str) -> None:
    (folder / name).mkdir() if name == "folder" else os.mkfifo(folder / name)
    text(lead, id_slot=1)
    filename = name.removesuffix(".new")
    answer = ask(lead, "/slots/1?action=save", filename=filename)
    assert answer.status_code == (400 if name == "folder" else 200)
    assert not [path for path in folder.iterdir() if path.name.startswith(f".{filename}")], "nothing is left behind"


FULL = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({2**14}, {2**14}))"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the limit")
def test_a_full_disk(model: Path, tmp_path: Path) -> None:
    with LeadProcess(model, "-c", "512", "--slot-save-path", tmp_path, "--no-profile", before=FULL) as lead:
        before = lead.write(PROMPT, N)
        answer = lead.post("/slots/0?action=save", filename="text")
        assert_error(answer, 507, "text: File too large")
        assert not [*tmp_path.iterdir()]
        assert lead.write(PROMPT, N) == before
