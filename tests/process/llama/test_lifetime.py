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
from duo.config import ModelConfig
from duo.llama.model import Model
begun = threading.Event()
def tokenize():
    begun.set()
    print("tokens", len(model.tokenize("\\t" * 200_000)), flush=True)
model = Model(ModelConfig(Path(sys.argv[1])))
threading.Thread(target=tokenize, daemon="daemon" in sys.argv).start()
begun.wait()
time.sleep(0.1)
if "close" in sys.argv:
    model.close()
"""
WORDS = """
import sys
from pathlib import Path
from duo.config import ModelConfig
from duo.llama.model import Model
model = Model(ModelConfig(Path(sys.argv[1])), vocabulary_only=True)
for character in "a! ":
    assert model.tokenize(character * 200_000) == [ord(character)] * 200_000
"""


def run(code: str, *arguments: Path | str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr[-1000:]
    return done.stdout


@pytest.mark.parametrize("ending", ["close", "exit", "daemon"])
def test_a_model_is_not_freed_while_a_thread_tokenises(tmp_path: Path, ending: str) -> None:
    said = run(TOKENISING, tiny_llama(tmp_path / "model.gguf"), ending)
    assert said == "tokens 200001\n" or ending == "daemon"


@pytest.mark.parametrize("pre", ["deepseek-llm", "tekken"])
def test_a_long_word_does_not_overflow_the_stack(tmp_path: Path, pre: str) -> None:
    """The splitting of some vocabularies recurses for each character: 8 MiB of a stack end after some 20,000."""
    run(WORDS, tiny_bpe(tmp_path / "model.gguf", pre))
