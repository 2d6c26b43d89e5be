"""Words that are no command of duo's, but are one of ollama or llama.cpp, or a model, a prompt or an address."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from duo.config.option import nearest

_NAME = "-hf USER/REPO:QUANT"
# What to say about a word that needs no arguments.
_WORDS = {
    "suggest": "`duo tune -m FILE`, without -md, measures which draft is fastest",
    "profile": "`duo tune --list` lists what was learned about pairs of models, `duo tune --reset NAME` forgets it",
    "trace": "`duo -v` says where the time went; Perfetto (https://ui.perfetto.dev) opens the file of --trace",
    "devices": "`duo --list-devices` lists the devices, `duo doctor` says what is wrong with them",
    "serve": "`duo lead -m FILE` serves a model over an OpenAI-compatible API (-hf: from Hugging Face)",
    "server": "`duo lead -m FILE` serves a model over an OpenAI-compatible API (-hf: from Hugging Face)",
    "ps": "duo has no service in the background: a model is loaded while its command runs; `duo list` shows all models",
    "stop": "duo has no service in the background: Ctrl-C ends `duo lead` and its models",
    "ls": "`duo list` shows the models in the caches",
    "show": "`duo list` shows the models in the caches",
    "rm": "models are files: `duo list` shows where they are; delete them there",
    "cp": "models are files: `duo list` shows where they are; copy them there",
    "create": "duo has no model definitions: give -sys, --temp and other options to `duo chat` or `duo lead`",
    "push": "duo publishes no models: use huggingface-cli upload",
    "generate": "`duo -m FILE -p TEXT` generates a text",
    "completion": "`duo -m FILE -p TEXT` generates a text",
    "cli": "`duo chat -m FILE` chats with a model",
}


def unknown_command(word: str, arguments: Sequence[str], known: Sequence[str]) -> str:
    """One line about a word that is no command: what was meant, as far as `arguments` show it; else similar names."""
    texts = [argument for argument in arguments if not argument.startswith("-")]
    if (meant := _meant(word, texts)) is None:
        others = (one for one in (*known, "help", "version", *_WORDS, "run", "pull") if one != word)
        similar = nearest(word, others)
        meant = _meant(similar[0], texts) if similar else "`duo --help` lists the commands"
        if meant is None:
            commands = [name for name in similar if _meant(name, texts) is None]
            meant = f"similar: {', '.join(commands)}"
    return f"no command {word!r}: {meant}"


def _meant(word: str, texts: Sequence[str]) -> str | None:
    """What to use instead of a word of another program, a model, an address or a number; None for any other word."""
    if word in ("run", "pull"):
        loaded = f"models are downloaded when they are first used: `duo chat {_model(texts)}`{_why(texts)}"
        return _run(texts) if word == "run" else loaded
    if word.endswith(".gguf"):
        return f"a model follows -m: `duo chat -m {shlex.quote(word)}`, or `duo -m {shlex.quote(word)} -p TEXT`"
    if word.startswith(("http://", "https://")):
        return f"to chat with a server: `duo chat {shlex.quote(word)}`"
    if word.isdecimal():
        return "a switch such as -v takes no value"
    if " " in word.strip():
        return f"a prompt follows -p: `duo -m FILE -p {shlex.quote(word)}`"
    return _WORDS.get(word)


def _run(texts: Sequence[str]) -> str:
    model = _model(texts)
    if len(texts) > 1:
        return f"`duo {model} --chat -p {shlex.quote(' '.join(texts[1:]))}`{_why(texts)}"
    return f"`duo chat {model}`{_why(texts)}"


def _model(texts: Sequence[str]) -> str:
    """The option for the model that is named as for ollama."""
    name = texts[0] if texts else ""
    repo = name.removeprefix("https://").removeprefix("hf.co/").removeprefix("huggingface.co/")
    if name.endswith(".gguf"):
        return f"-m {shlex.quote(name)}"
    return f"-hf {shlex.quote(repo)}" if repo.count("/") == 1 else _NAME


def _why(texts: Sequence[str]) -> str:
    return " (models are named as on Hugging Face; -m FILE for a file)" if _model(texts) == _NAME else ""
