"""What a lead or a batch says where fewer texts can be written together than `-np` asks for."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from duo.cli.load import say_if_fewer_at_once


@pytest.mark.parametrize(
    ("n_slots", "n_together", "exact", "said"),
    [
        (4, 4, False, ""),
        (1, 1, True, ""),
        (4, 1, True, "one at a time: with --exact"),
        (4, 1, False, "one at a time: the cache of this model"),
        (40, 32, False, "-np 40: 32 texts are written together, and the KV caches of 40 conversations are kept"),
    ],
)
def test_texts_that_are_not_written_together(
    n_slots: int, n_together: int, exact: bool, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    slot = SimpleNamespace(n_together=n_together, config=SimpleNamespace(n_slots=n_slots, exact=exact))
    say_if_fewer_at_once(cast(Any, slot))
    found = capsys.readouterr().err
    assert said in found
    assert bool(said) == bool(found)
