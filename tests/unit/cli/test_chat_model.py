"""A chat with a model in this process, a tiny one."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import duo
from duo.cli.chat_model import LocalModel
from duo.cli.commands.chat import Answer, Message, describe
from duo.config import GenerationConfig, SamplingConfig, StopConfig
from duo.engine.engine import Engine
from duo.speculation.types import Origin
from tests.command import assert_refused
from tests.gguf_files import tiny_llama
from tests.unit.cli.runner import duo as run

TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'assistant' %}{{ message.content }}"
    "{% else %} b {{ message.content }} a{% endif %}{% endfor %}"
)


@pytest.fixture(scope="module")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """It never ends a text by itself."""
    path = tmp_path_factory.mktemp("models") / "chatty.gguf"
    return tiny_llama(path, seed=2, chat_template=TEMPLATE)


@pytest.fixture
def engine(chatty: Path) -> Iterator[Engine]:
    with duo.load(chatty, n_ctx=128, n_threads=1, profile=False) as engine:
        yield engine


def limited(n_predict: int, **sampling: float) -> GenerationConfig:
    return GenerationConfig(SamplingConfig(**sampling), StopConfig(n_predict, (), ignore_eos=True))  # type: ignore[arg-type]


def asked(model: LocalModel, messages: list[Message], attempt: int = 0) -> tuple[Answer, str]:
    """The answer, and what was shown of it."""
    answer, shown = Answer(), list[str]()

    def show(text: str, n_accepted: int, _source: Origin | None) -> None:
        assert 0 <= n_accepted <= len(text)
        shown.append(text)

    model.answer(messages, answer, show, attempt)
    return answer, "".join(shown)


def turn(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def test_each_turn_processes_only_what_is_new(engine: Engine) -> None:
    model = LocalModel(engine, limited(16))
    messages = [turn("user", "the cat sat on the mat")]
    answer, shown = asked(model, messages)
    assert answer.text == shown
    assert (answer.figures[0], answer.prompt[1]) == (16, 0)
    for question in ("the dog", "and"):
        n_known = sum((answer.prompt[0], answer.figures[0]))
        messages += [turn("assistant", answer.text), turn("user", question)]
        # The tokenizer does not find the tokens that the model wrote: this one writes bytes that are not UTF-8.
        assert engine.tokenize(engine.apply_chat_template(messages))[n_known - 16 : n_known] != model._tokens[-16:]
        answer, _ = asked(model, messages)
        n_prompt, n_cached = answer.prompt
        assert n_prompt > n_known
        assert n_cached == n_known - 1  # the last token was not decoded
        assert describe(answer).startswith("16 tokens, ")


def test_another_conversation_and_an_answer_without_its_stop_string_are_tokenized_as_a_whole(engine: Engine) -> None:
    messages = [turn("user", "the cat sat on the mat and the dog ran")]
    text = asked(LocalModel(engine, limited(16)), messages)[0].text
    stop = next(letter for letter in text[2:] if letter.isascii() and letter.isprintable())
    model = LocalModel(engine, GenerationConfig(stop=StopConfig(30, (stop,), ignore_eos=True)))
    answer, _ = asked(model, messages)
    assert answer.text == text[: text.index(stop)]
    for more in ([*messages, turn("assistant", answer.text), turn("user", "and")], [turn("user", "the mat")]):
        again, _ = asked(model, more)
        assert again.prompt[0] == len(engine.tokenize(engine.apply_chat_template(more)))


@pytest.mark.parametrize("method", ["submit", "cancel"])
def test_ctrl_c_inside_the_engine_waits_until_it_is_out(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """An exception there would leave a request without a thread, and the next answer would wait for ever."""
    model, inside = LocalModel(engine, limited(3)), list[bool]()
    worked: Callable[..., Any] = getattr(engine.scheduler, method)

    def interrupted(*arguments: Any) -> None:
        inside.append(True)
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        worked(*arguments)
        inside[-1] = False

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(engine.scheduler, method, interrupted)
            with pytest.raises(KeyboardInterrupt):
                asked(model, [turn("user", "the cat")])
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert inside
    assert not any(inside)
    assert asked(model, [turn("user", "the dog")])[0].figures[0] == 3
    assert not engine.scheduler.requests


def test_a_model_without_a_template_is_refused_in_one_line(tiny: Path) -> None:
    for command in (("chat",), ("-cnv",)):
        said = run(*command, "-m", tiny, "-t", "1", stdin=b"hi")
        assert_refused(said, f"{tiny.name} has no chat template, which a chat needs: `duo -m FILE -p TEXT`")


@pytest.mark.parametrize("command", ["chat", "-cnv"])
def test_a_pipe_gets_one_answer(chatty: Path, command: str) -> None:
    options = (command, "-m", chatty, "-t", "1", "-n", "6", "--ignore-eos", "--no-profile")
    piped, given, other = run(*options, stdin=b"the cat\n"), run(*options, "-p", r"\x74he cat"), run(
        *options, "-p", "the cat", "-sys", "sat on the mat")  # fmt: skip
    assert (piped.status, piped.stderr) == (0, "duo: the answer is not complete: -n is 6\n")
    assert piped.text == given.text != other.text
    full = run(*options[:-4], "-c", "32", *options[-2:], "-p", "the cat")
    assert (full.status, full.stderr) == (0, "duo: the context of 32 tokens (-c) is full\n")


def test_thoughts_are_shown_as_such_and_are_not_part_of_the_answer(tmp_path: Path) -> None:
    thinks = tiny_llama(tmp_path / "thinks.gguf", seed=2, chat_template=TEMPLATE + "<think>")
    with duo.load(thinks, n_ctx=128, n_threads=1, profile=False) as engine:
        shown, answer = list[tuple[str, Any]](), Answer()
        said: list[Message] = [{"role": "user", "content": "the cat"}]
        LocalModel(engine, limited(20)).answer(said, answer, lambda text, _, source: shown.append((text, source)))
    assert answer.text == ""
    assert "".join(text for text, _ in shown)
    assert {source for _, source in shown} == {None}
