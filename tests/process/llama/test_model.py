"""Facts, tokens and templates of a real model, and how long OpenMP's threads wait for each other."""

from __future__ import annotations

import re
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from duo.config import ModelConfig
from duo.errors import ModelError
from duo.llama.model import Model
from tests.command import command, environment


def test_facts_and_tokens(demo_pair: tuple[Path, Path]) -> None:
    with closing(Model(ModelConfig(demo_pair[0]))) as model:
        assert (model.quantisation, model.n_layer, model.n_ctx_train, model.n_vocab) == ("F16", 30, 8192, 49152)
        assert model.can_roll_back
        assert model.size.cache_widths == ((3 * 64, 3 * 64),) * 30
        assert model.metadata("general.architecture") == "llama"
        assert model.metadata("no.such.key") is None
        assert len(model.metadata("tokenizer.chat_template") or "") > 256, "longer than the first buffer"
        for text in ("a", "Grüße, 世界 🙂\n\n", " leading", "x" * 3000):
            assert b"".join(map(model.piece, model.tokenize(text))).decode() == text
        assert model.eos in model.end_tokens()
        assert [model.is_end(token) for token in (model.eos, *model.tokenize("a"))] == [True, False]


def test_loading_can_be_stopped(demo_pair: tuple[Path, Path]) -> None:
    seen: list[float] = []
    with pytest.raises(ModelError):
        Model(ModelConfig(demo_pair[0]), seen.append)  # type: ignore[arg-type]
    assert seen


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
    arguments: tuple[str, ...], chosen: dict[str, str], turns: int
) -> None:
    env = environment() | {"OMP_DISPLAY_ENV": "verbose"} | chosen
    env.pop("OMP_WAIT_POLICY", None)
    line = command(*arguments, "-m", "missing.gguf")
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=60, check=False)
    found = re.search(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr)  # libgomp writes what it uses
    if found is None:
        pytest.skip("llama.cpp was built with another OpenMP than GNU's, or without")
    assert int(found[1]) == turns
