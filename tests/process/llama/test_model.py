"""Facts and tokens of models, threads that still use one when it is closed, and threads that wait for each other."""

import re
from contextlib import closing
from pathlib import Path

import pytest

from duo.config import ModelConfig
from duo.llama.model import Model
from tests.command import duo, python
from tests.gguf_files import tiny_bpe, tiny_llama


def test_facts_and_tokens(demo_pair: tuple[Path, Path]) -> None:
    with closing(Model(ModelConfig(demo_pair[0]))) as model:
        assert (model.quantisation, model.n_layer, model.n_ctx_train, model.n_vocab) == ("F16", 30, 8192, 49152)
        assert model.can_roll_back
        assert model.size.cache_widths == ((3 * 64, 3 * 64),) * 30
        assert model.header.architecture == "llama"
        assert len(model.header.text("tokenizer.chat_template")) > 256
        for text in ("a", "Grüße, 世界 🙂\n\n", " leading", "x" * 3000):
            assert b"".join(map(model.piece, model.tokenize(text))).decode() == text
        assert model.eos in model.end_tokens
        assert [model.is_end(token) for token in (model.eos, *model.tokenize("a"))] == [True, False]


@pytest.mark.parametrize(
    ("arguments", "chosen", "turns"),
    [
        (("lead",), {}, 2000),
        (("lead", "-md", "missing.gguf"), {}, 300_000),
        (("--back-port", "5999"), {}, 2000),
        (("lead",), {"GOMP_SPINCOUNT": "77"}, 77),
    ],
)
def test_threads_that_share_the_machine_with_another_process_soon_leave_their_cores(
    arguments: tuple[str, ...], chosen: dict[str, str], turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    done = duo(*arguments, "-m", "missing.gguf", env={"OMP_DISPLAY_ENV": "verbose"} | chosen)
    found = re.search(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr)  # libgomp writes what it uses
    if found is None:
        pytest.skip("llama.cpp was built with another OpenMP than GNU's, or without")
    assert int(found[1]) == turns


# A model that threads still use when it is closed or the process ends, and texts that overflow a stack

START = """
import sys, threading, time
from pathlib import Path
from duo.config import ModelConfig
from duo.llama.model import Model
model = Model(ModelConfig(Path(sys.argv[1])), vocabulary_only=True)
"""
# Tabs are not in the vocabulary: llama.cpp needs a second for this text.
TOKENISING = """
begun = threading.Event()
def tokenize():
    begun.set()
    print("tokens", len(model.tokenize("\\t" * 200_000)), flush=True)
threading.Thread(target=tokenize, daemon="daemon" in sys.argv).start()
begun.wait()
time.sleep(0.1)
if "close" in sys.argv:
    model.close()
"""
LONG_WORDS = """
for character in "a! ":
    assert model.tokenize(character * 200_000) == [ord(character)] * 200_000
"""


@pytest.mark.parametrize("ending", ["close", "exit", "daemon"])
def test_a_model_is_not_freed_while_a_thread_tokenises(tmp_path: Path, ending: str) -> None:
    done = python(START + TOKENISING, tiny_llama(tmp_path / "model.gguf"), ending)
    assert done.status == 0, done.stderr[-1000:]
    assert done.text == "tokens 200001\n" or ending == "daemon"


@pytest.mark.parametrize("pre", ["deepseek-llm", "tekken"])
def test_a_long_word_does_not_overflow_the_stack(tmp_path: Path, pre: str) -> None:
    """The splitting of some vocabularies recurses for each character: 8 MiB of a stack end after some 20,000."""
    done = python(START + LONG_WORDS, tiny_bpe(tmp_path / "model.gguf", pre))
    assert done.status == 0, done.stderr[-1000:]
