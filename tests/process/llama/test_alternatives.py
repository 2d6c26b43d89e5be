"""Alternatives to a draft's candidates, verified beside these: the text is that of the target alone, in fewer steps."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from duo import Engine, load
from duo.speculation import controller, decision
from tests.gguf_files import tiny_gemma, tiny_llama

DEPTH = 0.06
OPTIONS: dict[str, Any] = {"n_ctx": 320, "profile": False, "n_threads": 1, "draft_n_threads": 1, "flash_attn": "off"}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pair")
    return tiny_llama(folder / "target.gguf", depth=DEPTH, n_layer=2), tiny_llama(folder / "draft.gguf", depth=DEPTH)


@pytest.fixture(scope="module")
def alone(pair: tuple[Path, Path]) -> Iterator[Engine]:
    with load(pair[0], schedule="off", lookup="off", **OPTIONS) as engine:
        yield engine


@pytest.fixture
def free_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A further row costs nothing: all alternatives are verified."""

    def plan(plan: Any, draft: Any, costs: Any, rate: float, n_most: int) -> Any:
        return decision.with_alternatives(plan, draft, costs, 0.0, n_most)

    monkeypatch.setattr(controller, "with_alternatives", plan)


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 1.0, "seed": 5, "repeat_penalty": 1.1}])
@pytest.mark.parametrize("options", [{"lookup": "off"}, {}], ids=str)
@pytest.mark.usefixtures("free_rows")
def test_texts_are_those_of_the_target_alone(
    pair: tuple[Path, Path], alone: Engine, options: dict[str, Any], sampling: dict[str, Any]
) -> None:
    """The last of them fills the context."""
    dice, verified, accepted = random.Random(4), 0, 0
    with load(pair[0], pair[1], schedule="sync", **OPTIONS, **options) as engine:
        for n_tokens in (1, 2, 3, 5, 40, 120, 300):
            more = {"ignore_eos": True, "max_tokens": n_tokens, "logprobs": 2, **sampling}
            prompt = dice.choices(range(3, 270), k=20)
            ours, theirs = engine.generate(prompt, **more), alone.generate(prompt, **more)
            assert ours.tokens == theirs.tokens
            for one, other in zip(ours.logprobs, theirs.logprobs, strict=True):
                assert one.logprob == pytest.approx(other.logprob, abs=1e-3)
            if (draft := ours.statistics.draft) is not None:
                verified, accepted = verified + draft.alternatives, accepted + draft.alternatives_accepted
                assert type(draft.alternatives_accepted) is int  # `duo bench` reads nothing else
    assert verified > 40
    assert 3 < accepted < verified


@pytest.mark.usefixtures("free_rows")
def test_where_they_would_change_the_text_do_not_pay_or_cannot_be_there_are_none(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    windowed, on = tiny_gemma(tmp_path / "window.gguf", window=16), {"exact": True, "flash_attn": "on"}
    for target, options in ((pair[0], {"schedule": "async"}), (pair[0], on), (windowed, {})):
        with load(target, target, **OPTIONS | {"schedule": "sync"} | options) as engine:
            draft = engine.generate(list(range(3, 30)), max_tokens=40, ignore_eos=True).statistics.draft
            assert draft is not None
            assert (draft.verified > 0, draft.alternatives) == (True, 0)
