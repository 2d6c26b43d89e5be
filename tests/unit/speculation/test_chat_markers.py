"""Chat markers: found in templates, and exchanged."""

from collections.abc import Sequence

import pytest

from duo.speculation.chat_markers import Markers, Render, convert, find_markers

Messages = Sequence[dict[str, str]]


def chatml(messages: Messages) -> str:
    said = "".join(f"<|im_start|>{one['role']}\n{one['content']}<|im_end|>\n" for one in messages)
    preamble = "" if messages[0]["role"] == "system" else "<|im_start|>system\nBe kind.<|im_end|>\n"
    return f"{preamble}{said}<|im_start|>assistant\n"


def zephyr(messages: Messages) -> str:
    return "<s>" + "".join(f"<|{one['role']}|>\n{one['content']}</s>\n" for one in messages) + "<|assistant|>\n"


def gemma(messages: Messages) -> str:
    if messages[0]["role"] == "system":
        raise ValueError("no system messages")
    names = {"assistant": "model"}
    said = (f"<turn>{names.get(one['role'], one['role'])}\n{one['content']}</turn>\n" for one in messages)
    return "".join(said) + "<turn>model\n"


def made(render: Render, bos: str = "") -> Markers:
    markers = find_markers(render, bos)
    assert markers is not None
    return markers


CHATS: dict[str, Messages] = {
    "a question": [{"role": "user", "content": "How?"}],
    "with a system message": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How?"}],
    "several": [
        {"role": "user", "content": "How?"},
        {"role": "assistant", "content": "So.\n"},
        {"role": "user", "content": "And why?"},
    ],
}


@pytest.mark.parametrize("messages", CHATS.values(), ids=CHATS)
@pytest.mark.parametrize(("ours", "theirs"), [(zephyr, chatml), (chatml, zephyr)])
def test_a_chat_in_the_format_of_another_model(ours: Render, theirs: Render, messages: Messages) -> None:
    text, wanted = (one(messages).removeprefix("<s>") for one in (ours, theirs))  # BOS is not part of the text
    assert convert(text, made(ours, "<s>"), made(theirs, "<s>")) == wanted


def test_a_system_message_for_a_model_without_them() -> None:
    text = zephyr(CHATS["with a system message"]).removeprefix("<s>")
    assert convert(text, made(zephyr, "<s>"), made(gemma)) == "<turn>user\nBe brief.\n\nHow?</turn>\n<turn>model\n"


@pytest.mark.parametrize("text", ["Once upon a time", "", "a <|user|>\n", "\n<|user|>\nHow?</s>\n<|assistant|>\n"])
def test_any_other_text_stays_as_it_is(text: str) -> None:
    assert convert(text, made(zephyr, "<s>"), made(chatml)) == text


def test_templates_without_markers() -> None:
    assert find_markers(lambda messages: str(1 / 0), "") is None, "it fails"
    assert find_markers(lambda messages: messages[-1]["content"], "") is None, "it forgets messages"
    assert find_markers(lambda messages: chatml(messages).upper(), "") is None, "it changes them"
