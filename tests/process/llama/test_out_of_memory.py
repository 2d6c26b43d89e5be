"""What is said when the system has no more memory: as with `ulimit -v`, at different moments."""

import sys
from contextlib import closing
from pathlib import Path

import pytest

from duo.config import ModelConfig
from duo.errors import ModelError
from duo.llama import grammar
from duo.llama.grammar import GrammarProcess
from duo.llama.model import Model
from tests.command import duo, python

# Code of a process: limits its address space to what it has now, and so many MiB.
LIMIT = """
import resource
from pathlib import Path
from duo.config import ContextConfig, EngineConfig, ModelConfig, SamplingConfig
from duo.errors import DuoError
from duo.llama import context, library
from duo.llama.context import Context
from duo.llama.model import Model
def limit(more, *_):
    n_pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = n_pages * resource.getpagesize() + (more << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
"""
# And this, when it begins to load a model.
LOADING = """
load = Model._load
Model._load = lambda *a: limit({}) or load(*a)
"""
NEEDED = "out of memory: its weights need 257 MiB, and "
FREE = " MiB of this machine's memory are available within the limit of this process ("


@pytest.mark.parametrize("options", [(), ("--no-mmap",)])
def test_weights_that_do_not_fit(demo_pair: tuple[Path, Path], options: tuple[str, ...]) -> None:
    done = duo("-m", demo_pair[0], *options, "-p", "Hi", "-n", "1", before=LIMIT + LOADING.format(100))
    assert (done.status, done.text) == (1, "")
    assert f"duo: error: {demo_pair[0]}: {NEEDED}" in done.stderr
    assert FREE in done.stderr


CONTEXT = """
model = Model(ModelConfig(Path(sys.argv[1])))
limit(64)
context.check_memory = lambda *_: None  # which says it before llama.cpp does
try:
    Context(model, ContextConfig(8192, 1, 1, flash_attn="on"))
except DuoError as error:
    print(type(error).__name__, error)
"""
ABORT = """
from llama_cpp._ggml import libggml
with library.errors_of(Path("model.gguf"), "its weights need 1 GiB"):
    libggml.ggml_abort(b"ggml.c", 1644, b"GGML_ASSERT(%s) failed", b"ctx->mem_buffer != NULL")
"""


def test_a_context_that_llama_cpp_cannot_allocate(demo_pair: tuple[Path, Path]) -> None:
    done = python(f"import sys{LIMIT}{CONTEXT}", demo_pair[0])
    start = (
        f"MemoryLimitError {demo_pair[0].name}: out of memory: a context of 8192 tokens needs 180 MiB and buffers, and "
    )
    assert done.text.startswith(start), done.stderr
    assert FREE in done.text


def test_an_abort_for_lack_of_memory_does_not_blame_the_file() -> None:
    done = python(f"import sys{LIMIT}library.start(){ABORT}")
    assert done.status == 1
    assert done.stderr.startswith("duo: error: model.gguf: out of memory: its weights need 1 GiB, and ")


def test_a_context_that_does_not_fit_a_limit_is_refused_before_llama_cpp_fails(demo_pair: tuple[Path, Path]) -> None:
    done = python(f"import sys{LIMIT}{CONTEXT.replace('context.check_memory =', '_ =')}", demo_pair[0])
    assert done.text.startswith(f"MemoryLimitError {demo_pair[0].name}: a context of 8192 tokens needs ")


def test_a_grammar_whose_process_has_no_memory(demo_pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    code = f"import sys{LIMIT}{LOADING.format(0)}\nfrom duo.llama.grammar_process import main\nmain()"
    monkeypatch.setattr(grammar, "child_command", lambda _, path: [sys.executable, "-c", code, path])
    with closing(Model(ModelConfig(demo_pair[0]), vocabulary_only=True)) as model, pytest.raises(ModelError) as raised:
        GrammarProcess(model)
    start = (
        f"the process that applies the grammar failed: {demo_pair[0]}: out of memory: its vocabulary needs more, and "
    )
    assert str(raised.value).startswith(start)


def test_a_header_that_there_is_no_memory_for(demo_pair: tuple[Path, Path]) -> None:
    code = "from duo.llama.gguf_header import GgufHeader\nlibrary.start()\nlimit(0)\nGgufHeader(Path(sys.argv[1]))"
    last = python(f"import sys{LIMIT}{code}", demo_pair[0]).stderr.splitlines()[-1]
    assert last.startswith(f"duo.errors.MemoryLimitError: {demo_pair[0]}: out of memory: its header needs more, and ")
