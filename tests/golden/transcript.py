"""What short commands print: `python -m tests.golden` writes transcript.txt anew."""

import os
import re
import shlex
import tempfile
from pathlib import Path

from tests.gguf_files import tiny_hybrid, tiny_llama, tiny_mamba
from tests.unit.cli.runner import duo

TRANSCRIPT = Path(__file__).with_name("transcript.txt")
_COMMAND = re.compile(r"^\$ duo (.*)\n((?:(?![$#] ).+\n)*)", re.MULTILINE)
_REPORT = re.compile(r"^(speed|draft|lookup|gain|RAM|cores|tokens:) .*\n", re.MULTILINE)
_TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message['content'] }}{% endfor %}"


def make_files(folder: Path) -> None:
    """The files that the commands name."""
    tiny = tiny_llama(folder / "tiny.gguf")
    tiny_llama(folder / "large.gguf", padding=100)
    tiny_llama(folder / "other.gguf", words=("a", "b"))
    tiny_llama(folder / "instruct.gguf", add_bos=True, chat_template=_TEMPLATE)
    tiny_llama(folder / "no-tensors.gguf", tensors=False)
    tiny_llama(folder / "split.gguf", max_tensors=4)
    (folder / "split-00003-of-00003.gguf").unlink()
    tiny_mamba(folder / "recurrent.gguf")
    tiny_hybrid(folder / "hybrid.gguf")
    (folder / "cut.gguf").write_bytes(tiny.read_bytes()[:6000])
    instruct = (folder / "instruct.gguf").read_bytes()
    (folder / "half.gguf").write_bytes(instruct[: len(instruct) // 2])
    (folder / "zip.gguf").write_bytes(b"PK\3\4 a zip")
    (folder / "empty.txt").write_text("\n")


def recorded() -> dict[str, str]:
    """The arguments of each command of the transcript, with what is expected of it."""
    return dict(_COMMAND.findall(TRANSCRIPT.read_text(encoding="utf-8")))


def printed(arguments: str, expected: str) -> str:
    """What a command prints where the files are, and its exit status; `expected` itself if it stands for that.

    Of a run, what is said beside its text and its report.
    """
    run = duo(*shlex.split(arguments))
    said, n_lines = _REPORT.subn("", run.stderr)
    text = said + ("" if n_lines else run.text) + f"[{run.status}]\n" * bool(run.status)
    assert not (run.status and run.stdout), run.text
    # Records of the log are printed by a thread of their own.
    pattern = "\n".join(map(re.escape, sorted(expected.splitlines()))).replace("…", ".*")
    return expected if re.fullmatch(pattern, "\n".join(sorted(text.splitlines()))) else text


def transcript() -> str:
    """The transcript, with what the commands print now."""
    before, text = Path.cwd(), TRANSCRIPT.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        make_files(Path(folder))
        os.chdir(folder)
        try:
            return _COMMAND.sub(lambda match: f"$ duo {match[1]}\n{printed(match[1], match[2])}", text)
        finally:
            os.chdir(before)
