"""A recorded conversation of curl with the lead: `python -m tests.process.server.test_curl` writes the answers anew."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from duo.models.demo import demo_pair as _demo_pair
from tests.serving import PATIENCE_S, LeadProcess

RECORD = Path(__file__).with_name("curl.txt")
ADDRESS = "127.0.0.1:5555"  # of the lead, in the record
OPTIONS = ("--exact", "--lookup", "off", "--ctx-size", "512", "--alias", "org/demo", "--api-key", "sk-demo")

# What differs from one time to the next.
_VARYING = {
    r'"((?:chat)?cmpl)-[0-9a-f]{32}"': r'"\1-ID"',
    r'"(msg|resp|rs|fc|toolu|call)_[0-9a-f]{24,32}"': r'"\1_ID"',
    r'"duo [\d.]+\w*"': '"duo VERSION"',
    r'"created(_at)?":\d+': r'"created\1":0',
    r'"(\w+_(?:ms|per_second))":[\d.e+-]+': r'"\1":0.0',
    r"(?m)^date: .*$": "date: DATE",
    r"(?m)^content-length: \d+$": "content-length: N",
    r"(?m)^(\w+:\w+_seconds(?:_total)?) [\d.e+-]+$": r"\1 S",
}


def converse(target: Path, record: str) -> str:
    """Run the commands of the record one after the other. They and what they say, as in the record."""
    commands = re.findall(r"^\$ (.*)$", record, re.MULTILINE)
    with LeadProcess(target, *OPTIONS) as lead:
        return "\n".join(f"$ {command}\n{_answer(f'127.0.0.1:{lead.port}', command)}" for command in commands)


def _answer(address: str, command: str) -> str:
    program, *arguments = shlex.split(command.replace(ADDRESS, address))
    done = subprocess.run(
        [program, "-q", *arguments],  # without the user's own settings
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    said = (done.stdout + done.stderr).decode().replace("\r\n", "\n").replace(address, ADDRESS)
    for pattern, replacement in _VARYING.items():
        said = re.sub(pattern, replacement, said)
    return said.rstrip("\n") + "\n"


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_the_conversation_goes_as_recorded(demo_pair: tuple[Path, Path]) -> None:
    record = RECORD.read_text(encoding="utf-8")
    assert converse(demo_pair[0], record) == record


if __name__ == "__main__":
    RECORD.write_text(converse(_demo_pair()[0], RECORD.read_text(encoding="utf-8")), encoding="utf-8")
