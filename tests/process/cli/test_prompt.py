"""What becomes of a prompt before the target reads it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import ONE_EACH, duo
from tests.gguf_files import tiny_llama


def _prompt(*arguments: str | Path, stdin: bytes = b"") -> str:
    """The prompt that a run would continue."""
    run = duo(*arguments, "-n", "0", "--display-prompt", "-t", "1", stdin=stdin)
    assert (run.status, run.n_tokens) == (0, 0)
    return run.text


def test_display_prompt_puts_the_prompt_before_the_text(demo_pair: tuple[Path, Path]) -> None:
    target, draft = demo_pair
    arguments = ("-m", target, "-md", draft, "-p", "Répète: 🍎", "-n", "8", "--exact", *ONE_EACH)
    text = duo(*arguments).stdout
    assert text
    assert duo(*arguments, "--no-display-prompt").stdout == text
    assert duo(*arguments, "--display-prompt").stdout == "Répète: 🍎".encode() + text


@pytest.mark.parametrize(("content", "prompt"), [("a b", "a b"), ("a b\n", "a b"), ("a b\n\n", "a b\n"), ("é", "é")])
def test_a_file_loses_one_newline(tiny: Path, tmp_path: Path, content: str, prompt: str) -> None:
    path = tmp_path / "prompt.txt"
    path.write_bytes(content.encode())
    assert _prompt("-m", tiny, "-f", path) == prompt
    assert _prompt("-m", tiny, "-f", "-", stdin=content.encode()) == prompt


def test_an_argument_keeps_its_newline(tiny: Path) -> None:
    assert _prompt("-m", tiny, "-p", "a b\n") == "a b\n"


def test_escapes(tiny: Path, tmp_path: Path) -> None:
    written = r"a\nb\tc\"d\'e\\n \x41\xe2\x82\xac \q \x4 \e" + "\\"
    meant = "a\nb\tc\"d'e\\n A€ \\q \\x4 \\e\\"
    path = tmp_path / "prompt.txt"
    path.write_text(written)
    for source in (["-p", written], ["-f", path]):
        assert _prompt("-m", tiny, *source) == meant
        assert _prompt("-m", tiny, *source, "-e") == meant
        assert _prompt("-m", tiny, *source, "--no-escape") == written


def test_chat_uses_the_models_own_template(demo_pair: tuple[Path, Path]) -> None:
    template = "<|im_start|>system\n{}<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    target, _ = demo_pair
    own = template.format("You are a helpful AI assistant named SmolLM, trained by Hugging Face", "Hi\nyou")
    assert _prompt("-m", target, "--chat", "-p", r"Hi\nyou") == own
    for chat in ([], ["--chat"]):
        system = ("-sys", r"Be\nbrief.")
        assert _prompt("-m", target, *chat, *system, "-p", "Hi") == template.format("Be\nbrief.", "Hi")
        assert _prompt("-m", target, *chat, *system, "-p", "Hi", "--no-escape") == template.format(r"Be\nbrief.", "Hi")


def test_special_tokens_that_are_written_out_are_parsed(demo_pair: tuple[Path, Path], tmp_path: Path) -> None:
    target, _ = demo_pair
    chat = ("-m", target, "--chat", "-sys", "Be brief.", "-p", "What is 2+2?", "--exact", "-t", "1", "-n", "12")
    written = _prompt(*chat[:-2])
    assert written.startswith("<|im_start|>")
    by_hand = duo("-m", target, "-p", written, "--exact", "-t", "1", "-n", "12", "--json", tmp_path / "by_hand.json")
    run = duo(*chat, "--json", tmp_path / "chat.json")
    assert run.text == by_hand.text != ""
    n_chat, n_by_hand = (_n_prompt(tmp_path / name) for name in ("chat.json", "by_hand.json"))
    assert n_chat == n_by_hand < len(written) / 2


def test_bos_is_added_once_and_only_where_it_is_asked_for(tmp_path: Path) -> None:
    counts, texts = {}, {}
    for add_bos in (True, False):
        model = tiny_llama(tmp_path / f"model_{add_bos}.gguf", add_bos=add_bos)
        for prompt in ("the cat", "<s>the cat"):
            report = tmp_path / "report.json"
            run = duo("-m", model, "-p", prompt, "-n", "8", "--exact", "-t", "1", "--json", report)
            counts[add_bos, prompt], texts[add_bos, prompt] = _n_prompt(report), run.stdout
    n = counts[False, "the cat"]
    assert counts == {
        (False, "the cat"): n,
        (False, "<s>the cat"): n + 1,
        (True, "the cat"): n + 1,
        (True, "<s>the cat"): n + 1,
    }
    assert texts[True, "the cat"] == texts[True, "<s>the cat"] == texts[False, "<s>the cat"] != texts[False, "the cat"]


def test_without_a_model_it_is_the_demo_pair(demo_pair: tuple[Path, Path], tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    run = duo("--offline", "-n", "4", *ONE_EACH, "--json", report)
    assert (run.status, run.n_tokens) == (0, 4)
    assert run.stderr.startswith("duo: no model was named (-m, -hf): this is the demo pair")
    models = json.loads(report.read_text())["models"]
    assert (models["target"]["path"], models["draft"]["path"]) == tuple(map(str, demo_pair))

    asked = _prompt("--offline")
    assert asked.startswith("<|im_start|>system\nYou are a helpful, respectful and honest assistant.<|im_end|>")
    assert "difference between concurrency and parallelism in python" in asked


def _n_prompt(report: Path) -> int:
    n_tokens = json.loads(report.read_text())["prompt"]["tokens"]
    assert isinstance(n_tokens, int)
    return n_tokens
