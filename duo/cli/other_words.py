"""Words that are no command of duo's, but are one of ollama or llama.cpp, or a model, a prompt or an address."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from duo.config.option import nearest

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
    model = next((argument for argument in arguments if not argument.startswith("-")), "")
    if not (meant := _meant(word, model)):
        similar = nearest(word, (*known, "help", "version", *_WORDS, "run", "pull"))
        meant = _meant(similar[0], model) if similar else "`duo --help` lists the commands"
        meant = meant or f"similar: {', '.join(one for one in similar if not _meant(one, model))}"
    return f"no command {word!r}: {meant}"


def _meant(word: str, model: str) -> str:
    """What to use instead of a word of another program, a model, an address or a number; empty for any other word."""
    if word in ("run", "pull"):
        repo = model.removeprefix("https://").removeprefix("hf.co/").removeprefix("huggingface.co/")
        name = f"-hf {shlex.quote(repo)}" if repo.count("/") == 1 else "-hf USER/REPO:QUANT"
        option = f"-m {shlex.quote(model)}" if model.endswith(".gguf") else name
        return f"`duo chat {option}` or `duo {option} -p TEXT` (-hf: a model on Hugging Face, downloaded on first use)"
    if word.endswith(".gguf"):
        return f"a model follows -m: `duo chat -m {shlex.quote(word)}`, or `duo -m {shlex.quote(word)} -p TEXT`"
    if word.startswith(("http://", "https://")):
        return f"to chat with a server: `duo chat {shlex.quote(word)}`"
    if word.isdecimal():
        return "a switch such as -v takes no value"
    if " " in word.strip():
        return f"a prompt follows -p: `duo -m FILE -p {shlex.quote(word)}`"
    return _WORDS.get(word, "")
