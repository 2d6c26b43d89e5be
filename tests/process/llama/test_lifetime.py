"""A model that threads still use when it is closed or the process ends, and texts that overflow a stack."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.gguf_files import tiny_bpe, tiny_llama

# Tabs are not in the vocabulary: llama.cpp needs a second for this text.
TOKENISING = """
import sys, threading, time
from pathlib import Path
import duo
from duo.config import ModelConfig
from duo.llama.model import Model
begun = threading.Event()
def tokenize(use):
    begun.set()
    print("tokens", len(use("\\t" * 200_000)), flush=True)
def start(use, daemon=False):
    thread = threading.Thread(target=tokenize, args=(use,), daemon=daemon)
    thread.start()
    begun.wait()
    time.sleep(0.1)
    return thread
"""
ENDINGS = {
    "close of the model": """
model = Model(ModelConfig(Path(sys.argv[1])))
thread = start(model.tokenize)
model.close()
""",
    "exit": """
model = Model(ModelConfig(Path(sys.argv[1])))
start(model.tokenize)
""",
}


def run(code: str, model: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, model], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_model_is_not_freed_while_a_thread_tokenises(tmp_path: Path, ending: str) -> None:
    done = run(TOKENISING + ENDINGS[ending], tiny_llama(tmp_path / "model.gguf"))
    assert (done.returncode, done.stdout) == (0, "tokens 200001\n"), done.stderr[-1000:]


def test_the_interpreter_ends_while_a_daemon_thread_tokenises(tmp_path: Path) -> None:
    ending = ENDINGS["exit"].replace("model.tokenize", "model.tokenize, daemon=True")
    done = run(TOKENISING + ending, tiny_llama(tmp_path / "model.gguf"))
    assert done.returncode == 0, done.stderr[-1000:]


@pytest.mark.parametrize("pre", ["deepseek-llm", "tekken"])
def test_a_long_word_does_not_overflow_the_stack(tmp_path: Path, pre: str) -> None:
    """The splitting of some vocabularies recurses for each character: 8 MiB of a stack end after some 20,000."""
    code = """
import sys
from pathlib import Path
from duo.config import ModelConfig
from duo.llama.model import Model
model = Model(ModelConfig(Path(sys.argv[1])), vocabulary_only=True)
for character in "a! ":
    assert model.tokenize(character * 200_000) == [ord(character)] * 200_000
"""
    done = run(code, tiny_bpe(tmp_path / "model.gguf", pre))
    assert done.returncode == 0, done.stderr[-1000:]
