"""Prompts: sources, escapes, errors; tests/golden/transcript.txt has others."""

from pathlib import Path

import pytest

from duo.cli.options import read_prompt
from tests.command import assert_refused
from tests.unit.cli.runner import duo


@pytest.mark.parametrize(("content", "prompt"), [("a b", "a b"), ("a b\n", "a b"), ("a b\n\n", "a b\n"), ("é", "é")])
def test_one_newline_at_the_end_of_a_file_is_dropped(tiny: Path, tmp_path: Path, content: str, prompt: str) -> None:
    path = tmp_path / "prompt.txt"
    path.write_bytes(content.encode())
    assert read_prompt(None, str(path), escape=True) == prompt
    run = duo("-m", tiny, "-f", "-", "-n", "0", "--display-prompt", stdin=content.encode())
    assert run.text == prompt


def test_escapes(tmp_path: Path) -> None:
    written = r"a\nb\tc\"d\'e\\n \x41\xe2\x82\xac \q \x4 \e" + "\\"
    meant = "a\nb\tc\"d'e\\n A€ \\q \\x4 \\e\\"
    path = tmp_path / "prompt.txt"
    path.write_text(written)
    for source in ((written, None), (None, str(path))):
        assert read_prompt(*source, escape=True) == meant
        assert read_prompt(*source, escape=False) == written
    assert read_prompt("a b\n", None, escape=True) == "a b\n"
    assert read_prompt(None, None, escape=True) is None


@pytest.mark.parametrize("escape", ["--escape", "--no-escape"])
def test_invalid_utf_8(tiny: Path, tmp_path: Path, escape: str) -> None:
    path = tmp_path / "prompt.txt"
    path.write_bytes(b"one\\n two \xff")
    said, model = "is not valid UTF-8: byte 0xff at offset", ("-m", "missing.gguf", escape)
    assert_refused(duo(*model, "-f", path), f"{path} {said} 10")
    assert_refused(duo(*model, "-f", "-", stdin=b"\xff"), f"standard input {said} 0")
    assert_refused(duo(*model, "-p", b"two \xff"), f"the prompt {said} 4")
    assert_refused(duo("-m", b"\xff.gguf", "-p", "x"), "no such file")
    assert_refused(duo(*model, "-p", "x", "-r", b"\xff"), f"-r {said} 0")
    assert_refused(duo(*model, "-p", "x", "--grammar", b'root ::= "\xff"'), f"--grammar {said} 10")
    assert_refused(duo("-m", tiny, "-p", "x", "-sys", b"\xff"), f"-sys {said} 0")
