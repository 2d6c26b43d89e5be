"""Chat templates of the user's own, their variables, and reasoning: duo, duo chat, duo lead and load()."""

from pathlib import Path
from typing import Any

import pytest

import duo as duo_package
from duo.errors import UsageError
from tests.command import assert_refused
from tests.gguf_files import tiny_llama
from tests.unit.cli.runner import duo

MODEL = "<model>{{ messages[-1].content }}"
OWN = "<own>{{ messages[-1].content }}{{ tone }}{{ ' off' if enable_thinking is false }}{{ reasoning_effort }}"
THINKS = "{{ messages[-1].content }}<think>\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("models") / "model.gguf", chat_template=MODEL)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "own.jinja"
    path.write_text(OWN + "\n")
    return path


def shown(model: Path, *options: Any, env: dict[str, str] | None = None) -> str:
    """The prompt that a run makes of a message."""
    run = duo("-m", model, "--chat", "-p", "a", "-n", "0", "--display-prompt", *options, env=env)
    assert run.status == 0, run.stderr
    return run.stdout.decode().rstrip("\n")


@pytest.mark.parametrize(
    ("options", "env", "expected"),
    [
        ("", {}, "<model>a"),
        ("--chat-template-file FILE", {}, "<own>a"),
        ("--chat-template OWN", {}, "<own>a"),
        ("", {"LLAMA_ARG_CHAT_TEMPLATE_FILE": "FILE"}, "<own>a"),
        ("", {"LLAMA_ARG_CHAT_TEMPLATE": "OWN"}, "<own>a"),
        ("--chat-template-file FILE", {"LLAMA_ARG_CHAT_TEMPLATE": "{{ 1 }}"}, "<own>a"),
        ("--chat-template OWN", {"LLAMA_ARG_CHAT_TEMPLATE_FILE": "none.jinja"}, "<own>a"),
        ('--chat-template OWN --chat-template-kwargs {"tone":"!"}', {}, "<own>a!"),
        ("--chat-template OWN", {"LLAMA_ARG_CHAT_TEMPLATE_KWARGS": '{"tone": "?"}'}, "<own>a?"),
        ("--chat-template OWN --reasoning-budget 0", {}, "<own>a off"),
        ("--chat-template OWN --reasoning-budget -1", {}, "<own>a"),
        ("--chat-template OWN", {"LLAMA_ARG_THINK_BUDGET": "0"}, "<own>a off"),
        ("--chat-template OWN -rea off", {}, "<own>a off"),
        ("--chat-template OWN", {"LLAMA_ARG_REASONING": "disabled"}, "<own>a off"),
        ("--chat-template OWN --reasoning on", {}, "<own>a"),
        ('--chat-template OWN --chat-template-kwargs {"reasoning_effort":"low"}', {}, "<own>alow"),
        ('--chat-template OWN --reasoning off --chat-template-kwargs {"enable_thinking":true}', {}, "<own>a"),
        ("--chat-template THINKS", {}, "a<think>"),
        ("--chat-template THINKS --reasoning-budget 0", {}, "a<think>\n\n</think>"),
    ],
)
def test_templates_and_variables(model: Path, file: Path, options: str, env: dict[str, str], expected: str) -> None:
    words = {"FILE": str(file), "OWN": OWN, "THINKS": THINKS}
    typed = [words.get(word, word) for word in options.split()]
    assert shown(model, *typed, env={name: words.get(value, value) for name, value in env.items()}) == expected


def test_other_commands_have_no_template(model: Path) -> None:
    assert_refused(duo("check", "-m", model, "--chat-template", OWN), "an option of `duo`", status=2)


def test_a_template_of_load(model: Path) -> None:
    messages = [{"role": "user", "content": "a"}]
    with duo_package.load(model, chat_template=OWN, chat_template_kwargs={"tone": "!"}, lookup="off") as llm:
        assert llm.apply_chat_template(messages) == "<own>a!"
    with pytest.raises(UsageError, match=r"^chat_template: 'llama3' is not Jinja"):
        duo_package.load(model, chat_template="llama3")
