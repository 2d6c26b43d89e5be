"""Command lines: options that take a value, at values out of any range, and at random ones.

The options are found from the command itself. Models are tiny, or missing where a command would not end by itself.
"""

from random import Random
from typing import Any

import pytest
from hypothesis import given

from tests.fuzz.cases import cases, dice
from tests.fuzz.forks import Forks
from tests.gguf_files import tiny_llama
from tests.golden.configuration import whole_command

NUMBERS = (
    "0", "-1", "1", "512", "513", "65536", "1000000000", "2147483647", "2147483648", "4294967296",
    "9223372036854775808", "-9223372036854775809", "nan", "inf", "-inf", "1e308", "-1e308", "1e-320", "1e400",
)  # fmt: skip
TEXTS = (
    "", " ", "٣", "0x10", "1_000", "1.5", "9" * 5000, "1,2,3", "0-1", "5+1e308", "1e308,1e308", "nan,1", "auto", "all",
    "none", "a:99999999", "\udcff", "[" * 2000, "🙂" * 9,
)  # fmt: skip
LEFT_OUT = ("doctor", "list", "demo")  # take no values, or some of the options of a run
OPTIONS: dict[str, list[Any]] = {  # that take a value, by command; the first has no name
    name: [option for option in command.params if option.param_type_name == "option" and not option.is_flag]
    for name, command in {"": whole_command(), **whole_command().commands}.items()
    if name not in LEFT_OUT
}


def combination(draw: Random) -> tuple[str, list[str]]:
    """Up to five options of one command with random values."""
    command = draw.choice(list(OPTIONS))
    arguments: list[str] = []
    noise = bytes(draw.randrange(1, 256) for _ in range(draw.randrange(12))).decode("utf-8", "surrogateescape")
    for option in draw.choices(OPTIONS[command], k=draw.randint(1, 5)):
        value = draw.choice((draw.choice(NUMBERS), draw.choice(NUMBERS), draw.choice(TEXTS), noise))
        arguments += [draw.choice(option.opts), value]
    return command, arguments


@pytest.fixture(scope="module")
def beginnings(duo: Forks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """A command line of each command that ends soon; what is added may override a part of it."""
    folder = tmp_path_factory.mktemp("models")
    target, draft = tiny_llama(folder / "target.gguf"), tiny_llama(folder / "draft.gguf", seed=1)
    (folder / "requests.jsonl").write_text('{"custom_id": "a", "method": "POST", "url": "/completion", "body": {}}\n')
    pair, missing = ["-m", str(target), "-md", str(draft), "-t", "1", "-td", "1"], ["-m", str(folder / "missing.gguf")]
    found = {
        "": [*pair, "-p", "the cat", "-n", "4"],
        "check": ["check", *pair, "-p", "the cat", "-n", "4"],
        "tune": ["tune", *missing, "-md", str(draft)],
        "bench": ["bench", *missing, "-md", str(draft), "--peers", "none"],
        "lead": ["lead", *missing, "--port", "0"],
        "back": ["back", *missing],
        "batch": ["batch", str(folder / "requests.jsonl"), "-o", str(folder / "answers.jsonl"), *missing],
        "memory": ["memory", "build", str(folder / "memory"), str(folder / "missing.txt"), *missing],
        "rpc-server": ["rpc-server", "-d", "none"],
        "chat": ["chat"],  # standard input is empty
        "plan": ["plan", "--target-ms", "100", "--draft-ms", "10", "--accept", "0.7"],
    }
    assert found.keys() == OPTIONS.keys()
    return found


def test_the_beginnings_are_sound(duo: Forks, beginnings: dict[str, list[str]]) -> None:
    for command, beginning in beginnings.items():
        assert duo.fault(*beginning) == ""
        assert (duo(*beginning)[0] == 0) == (command in ("", "check", "plan")), command
    assert sum(map(len, OPTIONS.values())) > 200


@cases(2000)
@given(draw=dice)
def test_a_command_line_ends_in_order(duo: Forks, beginnings: dict[str, list[str]], draw: Random) -> None:
    command, arguments = combination(draw)
    assert duo.fault(*beginnings[command], *arguments) == ""
