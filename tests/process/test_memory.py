"""One memory for several processes, of which some are killed; and texts that are remembered by a real engine."""

import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

import duo
from duo.config import ModelConfig
from duo.engine.proposers import LookupProposer, RunningText
from duo.llama.model import Model
from duo.models.memory_file import MemoryFile
from duo.server.lead_server import Lead
from duo.speculation.memory import END
from tests.command import ROOT
from tests.gguf_files import tiny_llama
from tests.serving import LeadProcess

WRITER = """
import sys
import tempfile
from pathlib import Path
from typing import Any
from duo.config import ModelConfig
from duo.llama.model import Model
from duo.models import memory_file
file = memory_file.MemoryFile(Path(sys.argv[1]), Model(ModelConfig(Path(sys.argv[2])), vocabulary_only=True))
number, n, half = (int(each) for each in sys.argv[3:])
temporary = tempfile.NamedTemporaryFile
def half_written(**options):
    part = temporary(**options)
    write = part.write
    def write_half(data):
        write(data[:len(data) // 2])
        part.flush()
        print("half", flush=True)
        sys.stdin.read()
    part.write = write_half
    return part
for i in range(n):
    if i == half:
        tempfile.NamedTemporaryFile = half_written
    file.add([(number, i)])
    print(i, flush=True)
"""


def writer(path: Path, model: Path, number: int, n: int, half: int = -1) -> "subprocess.Popen[str]":
    """A process that adds `n` texts, and stops in the middle of writing one."""
    arguments: list[str | Path] = [sys.executable, "-c", WRITER, path, model, *map(str, (number, n, half))]
    return subprocess.Popen(arguments, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_processes_that_use_one_file_lose_nothing_that_was_complete(tmp_path: Path) -> None:
    """One is killed in the middle of a write, two at any moment."""
    path, model = tmp_path / "ours.memory", tiny_llama(tmp_path / "tiny.gguf")
    with writer(path, model, 1, 9, half=5) as stopped:
        assert stopped.stdout is not None
        while stopped.stdout.readline() != "half\n":
            pass
        others = [writer(path, model, number, 60) for number in (2, 3, 4, 5)]  # which wait for it
        stopped.send_signal(signal.SIGKILL)
    complete = {(1, i) for i in range(5)}
    for number, other in enumerate(others, 2):
        with other:
            assert other.stdout is not None
            for _ in range(20 if number > 3 else 60):
                complete.add((number, int(other.stdout.readline())))
            if number > 3:
                other.send_signal(signal.SIGKILL)
    with closing(Model(ModelConfig(model), vocabulary_only=True)) as loaded:
        found = MemoryFile(path, loaded).texts.reshape(-1, 3)
    assert (found[:, 0] == END).all()
    pairs = [(int(number), int(i)) for _, number, i in found]
    assert complete <= {*pairs}
    assert len(pairs) == len({*pairs})
    assert (1, 5) not in pairs
    assert not [*tmp_path.glob(".duo-memory-*")]


def test_what_the_target_wrote_is_remembered_and_no_prompt(tmp_path: Path) -> None:
    path, model = tmp_path / "mine.memory", tiny_llama(tmp_path / "tiny.gguf")
    with duo.load(model, memory=str(path), n_ctx=256, exact=True) as engine:
        first = [engine.generate("a b c", max_tokens=n, seed=n, temperature=1.0).tokens for n in (30, 20)]
        stream = engine.stream("a b c", max_tokens=100)
        next(stream)
        stream.close()  # has not ended
    with duo.load(model, memory=str(path), n_ctx=256, exact=True) as engine:
        again = [engine.generate("a b c", max_tokens=n, seed=n, temperature=1.0).tokens for n in (30, 20)]
    assert again == first
    with closing(Model(ModelConfig(model), vocabulary_only=True)) as loaded:
        found = MemoryFile(path, loaded).texts.tolist()
    assert found == [token for text in (*first, *first) for token in (END, *text)]


@pytest.mark.parametrize(
    ("memory", "gains"), [({}, [0, 0, 0, 1]), ({"memory": "off"}, [0] * 4), ({"memory": "a.memory"}, [None] * 4)]
)
def test_without_a_memory_it_is_known_what_one_would_have_brought(
    memory: dict[str, Any], gains: list[int | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = []
    with duo.load(tiny_llama(tmp_path / "tiny.gguf"), n_ctx=256, profile=False, **memory) as engine:
        for seed in range(4):
            engine.generate("a b c", max_tokens=60, seed=seed, temperature=1.0)
            found.append(engine.slot.memories.gain)
    assert found == pytest.approx(gains, abs=0.9)


@pytest.mark.parametrize("option", [{"lookup": "off"}, {"schedule": "off"}])
def test_a_memory_without_a_lookup_is_not_used(
    option: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, model = tmp_path / "my.memory", tiny_llama(tmp_path / "tiny.gguf")
    with duo.load(model, memory=str(path), n_ctx=256, **option) as engine:
        engine.generate("a b c", max_tokens=4)
    assert "the memory is not used: it needs the lookup, which is off" in caplog.messages


def test_a_lead_has_a_file_only_for_one_key(tmp_path: Path) -> None:
    path, model = tmp_path / "ours.memory", tiny_llama(tmp_path / "tiny.gguf")
    with LeadProcess(model, "--memory", path, "--api-key", "sk-one") as lead:
        answer = lead.post("/v1/completions", {"Authorization": "Bearer sk-one"}, prompt="a b", max_tokens=8)
        assert answer.status_code == 200
        lead.send(signal.SIGTERM)
        assert lead.finish() == 0
    with closing(Model(ModelConfig(model), vocabulary_only=True)) as loaded:
        assert MemoryFile(path, loaded).texts.tolist().count(END) == 1
    for keys, said in (((), "has none"), (("--api-key", "a,b"), "has 2")):
        with LeadProcess(model, "--memory", path, *keys, wait=False) as lead:
            assert lead.finish() == 2
            (line,) = lead.lines
            assert line.startswith(f"duo: error: --memory {path}: a lead keeps one only for one API key, and {said}")


@pytest.mark.parametrize("keys", [("sk-a", "sk-b"), ("sk-a", "sk-a"), ()])
def test_a_prompt_of_another_key_is_read_anew(keys: tuple[str, ...], tmp_path: Path) -> None:
    with (
        duo.load(tiny_llama(tmp_path / "tiny.gguf"), n_ctx=512) as engine,
        Lead(engine, port=0, api_keys=keys, slot_save_path=tmp_path) as lead,
    ):

        def post(path: str, i: int, **body: Any) -> httpx.Response:
            headers = {"Authorization": f"Bearer {keys[i]}"} if keys else {}
            return httpx.post(f"{lead.url}{path}", json=body, headers=headers, timeout=60)

        def n_cached(i: int) -> int:
            answer = post("/v1/completions", i, prompt="the cat sat " * 10, max_tokens=2)
            return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

        are_two = len({*keys}) == 2
        counts = [n_cached(i) for i in (0, 0, 1, 1)]
        assert [n > 20 for n in counts] == [False, True, not are_two, True]
        here = engine.slot.saved.here
        for action, i, status in (("save", 1, 200), ("restore", 1, 200), ("restore", 0, 400 if are_two else 200)):
            answer = post(f"/slots/{here}?action={action}", i, filename="text")
            assert answer.status_code == status, answer.text


@pytest.mark.parametrize("keys", [("sk-a", "sk-b"), ("sk-a", "sk-a"), ()])
def test_no_key_has_what_another_ones_texts_had(keys: tuple[str, ...], tmp_path: Path) -> None:
    """Over HTTP: which texts serve as memory for which key; those of one key, or without keys, for all."""
    served: list[list[int]] = []  # what each text was predicted from
    owners: list[str] = []  # of the index that it has
    begin = LookupProposer.begin

    def spy(self: LookupProposer, text: RunningText) -> None:
        begin(self, text)
        assert self._memory is not None
        served.append(self._memory.log.tolist())
        owners.append(self._lookup._owner)

    with pytest.MonkeyPatch.context() as patch, duo.load(tiny_llama(tmp_path / "tiny.gguf")) as engine:
        patch.setattr(LookupProposer, "begin", spy)
        with Lead(engine, port=0, api_keys=keys) as lead:
            for i in range(6):
                key = keys[i % 2] if keys else ""
                headers = {"Authorization": f"Bearer {key}"} if key and i < 4 else {"X-Api-Key": key}
                body = {"prompt": "a b", "max_tokens": 5, "seed": i, "temperature": 1}
                answer = httpx.post(f"{lead.url}/v1/completions", json=body, headers=headers, timeout=60)
                assert answer.status_code == 200, answer.text
        counts = [log.count(END) for log in served]
        assert counts == ([0, 0, 1, 1, 2, 2] if len({*keys}) == 2 else [*range(6)])
        assert owners == (3 * [*keys] if keys else 6 * [""])
        if len({*keys}) == 2:
            memories = engine.slot.memories._by_owner
            assert {*memories} == {*keys}
            mine, theirs = (memories[key].log.tolist() for key in keys)
            assert mine != theirs
