"""How long OpenMP's threads wait for each other."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.command import command, environment


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
    inherited = environment()
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        inherited.pop(name, None)
    done = subprocess.run(
        command(*arguments, "-m", "missing.gguf"),
        env=inherited | {"OMP_DISPLAY_ENV": "verbose"} | chosen,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    # libgomp writes what it uses.
    found = re.search(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr)
    if found is None:
        pytest.skip("llama.cpp was built with another OpenMP than GNU's, or without")
    assert int(found[1]) == turns
