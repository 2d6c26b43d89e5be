"""Usage errors: exit status 2 and one line, before any model is loaded."""

from __future__ import annotations

import shlex
import socket
from pathlib import Path
from unittest import mock

import pytest

from duo.cli.commands import COMMANDS
from duo.cli.options.by_command import RunOptions
from duo.config.option import declared
from duo.llama.library import supports_rpc
from tests.command import assert_refused
from tests.unit.cli.runner import duo

# No such model exists: the options are refused first.
MISSING = "-m missing.gguf -p x"

OPTIONS = [
    ("-ngl x", "'x' is not a number or 'auto' or 'all'"),
    ("--schedule fast", "--schedule must be one of auto, async, sync, off, not 'fast'"),
    (f"-Cr 0-{'9' * 5000}", "-Cr"),
    ("--logit-bias 12", "'12' is not of the form TOKEN_ID(+/-)BIAS, such as 15043+1 or 15043-inf"),
    ("--grammar 'root ::= \"a\"' -j {}", "--grammar and -j each give a grammar"),
    ("-j {", "-j is not valid JSON: "),
    ('-j \'{"type": "nonsense"}\'', "-j is an invalid or unsupported JSON schema: "),
    ("-hf user/repo", "-m and -hf both name the target"),
    ("-md a.gguf -hfd user/repo", "-md and -hfd both name the draft"),
    ("-f prompt.txt", "-p and -f both give a prompt"),
    ("--json x --trace x", "use a different file for each"),
    ("--back-port 0 --back-host 0.0.0.0", "--back-token"),
    ("--back-port 0 --back-token ''", "must not be empty"),
    ("--back-port 0 --verify rejection --temp 1", "--verify rejection"),
]

OTHERS = [
    ("-md draft.gguf -p x", "a draft without a target"),
    ("-m missing.gguf", "no prompt: add -p or -f"),
    ("-n 128", "no model: add -m FILE or -hf USER/REPO:QUANT, or try `duo demo` or `duo chat`"),
    ("-n 3 doctor", "options of `duo doctor` must follow `doctor`"),
    ("check -m missing.gguf", "nothing to check without a draft: name one with -md or -hfd"),
    ("check --verify rejection --temp 1", "the draft changes the text by design"),
    ("chat ftp://a", "'ftp://a' is not a URL"),
    (f"bench -m missing.gguf --draft {'9' * 5000}", "neither a number of at least 1 nor auto"),
    ("back -m a.gguf -hf user/repo", "-m and -hf both name the draft"),
    ("lead -m none.gguf --host 0.0.0.0", "--host 0.0.0.0: other machines can reach this address"),
    ("rpc-server -H 0.0.0.0", "--insecure-bind"),
    ("rpc-server -d GPU99", "unknown device GPU99"),
    ("rpc-server -d none", "-d none"),
]

ARGUMENTS = [
    ("chat a b", "(b) (see duo chat --help)"),
    ("lead --host", "--host requires an argument (see duo lead --help)"),
    ("lead --port 80a", "'--port': '80a' is not a number (see duo lead --help)"),
    ("-m x --temp hot", "'--temp' / '--temperature': 'hot' is not a number (see duo --help-all)"),
    ("-m x --chat=1", "--chat takes no value"),
    *((f"-m x {name}", f"No such option: {name}") for name in ("-cnvx", "-nx", "-n5x", "-pHello", "-v1", "-5")),
    ("-m x -dm y", "No such option: -dm; similar: -md, "),
    ("lead --no-jina", "--no-jina; similar: --no-jinja"),
    ("--host 0.0.0.0", "--host; an option of `duo lead` and `duo rpc-server` (see duo --help-all)"),
    ("doctor -m x", "-m; an option of `duo` (see duo doctor --help)"),
    ("-x", "No such option: -x (see duo --help-all)"),
    # Words that users of other programs type
    ("run llama3.2", "no command 'run': `duo chat -hf USER/REPO:QUANT` or `duo -hf"),
    ("run hf.co/user/repo:Q8_0", "`duo chat -hf user/repo:Q8_0` or"),
    ("run --verbose ./main.gguf", "`duo chat -m ./main.gguf` or"),
    ("pul user/repo", "no command 'pul': `duo chat -hf user/repo` or"),
    ("serv", "no command 'serv': `duo lead -m FILE` serves a model"),
    ("ps", "no service in the background"),
    ("'my model.gguf' -p x", "a model follows -m: `duo chat -m 'my model.gguf'`, or `duo -m"),
    ("http://localhost:5555", "`duo chat http://localhost:5555`"),
    ("'Why is the sky blue?'", "a prompt follows -p: `duo -m FILE -p 'Why is the sky blue?'`"),
    ("benhc", "no command 'benhc': similar: bench\n"),
    ("-m a.gguf lad", "similar: lead\n"),
    ("-m a.gguf -v 1", "no command '1': a switch such as -v takes no value"),
    ("profile", "`duo tune --list`"),
    ("help nonsense", "no command 'nonsense': `duo --help` lists the commands"),
]

RPC = [
    ("--rpc localhost", "not of the form host:port"),
    ("--rpc a:1,,b:2", "a name is missing"),
    ("--rpcd localhost:1", "--rpcd without a draft"),
    ("-ts 1,x", "not of the form N,N"),
    ("--rpc localhost:1 -ngl 0", "0 layers"),
    ("--rpc localhost:1,localhost:1", "is named twice"),
    ("-md b.gguf --rpc localhost:1,localhost:2 --rpcd localhost:2", "localhost:2 is named twice"),
    ("-md b.gguf --rpc localhost:1 --temp 1 --verify rejection", "--verify rejection"),
]


@pytest.mark.parametrize(
    ("arguments", "said"), [*((f"{MISSING} {more}", said) for more, said in OPTIONS), *OTHERS, *ARGUMENTS]
)
def test_what_is_refused(arguments: str, said: str) -> None:
    assert_refused(duo(*shlex.split(arguments)), said, status=2)


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_numbers_out_of_range_are_refused_by_the_name_of_their_option(command: str) -> None:
    options = declared(COMMANDS[command].options if command else RunOptions(), command or "duo")
    for one in options:
        if one.option.bounds and one.option.flag:
            number = one.option.bounds.most + 1
            run = duo(*command.split(), one.option.flag, str(number))
            assert_refused(run, f"{one.option.flag} must be at most {one.option.bounds.most}, not {number}", status=2)


@pytest.mark.skipif(not supports_rpc(), reason="this build has no RPC")
@pytest.mark.parametrize(("arguments", "said"), RPC)
def test_rpc_servers_that_exclude_each_other(arguments: str, said: str) -> None:
    test_what_is_refused(f"{MISSING} {arguments}", said)


def test_a_build_without_rpc_names_the_command_that_adds_it() -> None:
    with mock.patch("duo.llama.library.supports_rpc", return_value=False):
        assert_refused(duo(*shlex.split(f"{MISSING} --rpc localhost:1")), "built without RPC; to build it with RPC: ")


@pytest.mark.parametrize("command", [["rpc-server", "-p"], ["lead", "-m", "none.gguf", "--port"]])
def test_a_port_in_use(command: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert_refused(duo(*command, str(port)), f"cannot listen on 127.0.0.1:{port}", status=2)


@pytest.mark.parametrize("option", ["--json", "--trace", "--log-file"])
def test_a_file_that_cannot_be_written(tmp_path: Path, option: str) -> None:
    for path, said in ((tmp_path / "none" / "file", "No such file or directory"), (tmp_path, "Is a directory")):
        assert_refused(duo(*MISSING.split(), option, path), f"{option} {path}: {said}", status=2)
    new, old = tmp_path / "new", tmp_path / "old"
    old.write_text("of a run before")
    for path in (new, old):
        assert duo(*MISSING.split(), option, path).status == 1
    assert option == "--log-file" or (not new.exists() and old.read_text() == "of a run before")


@pytest.mark.parametrize("names", ["-hf user/repo", "-m {tiny} -hfd user/repo"])
def test_hugging_face_names_without_huggingface_hub(tiny: Path, names: str) -> None:
    with mock.patch.dict("sys.modules", {"huggingface_hub": None}):
        run = duo(*names.format(tiny=tiny).split(), "-p", "x")
    assert_refused(run, "models from Hugging Face need huggingface_hub: pip install huggingface_hub")
