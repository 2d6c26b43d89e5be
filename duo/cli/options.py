"""The options that several commands share, besides those of the configs, and what they name: texts, files and keys."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from duo.cli.terminal.console import warn
from duo.config import DEMO, HUB, MAX_SEED, SAMPLERS, EngineConfig, GenerationConfig
from duo.config.option import TEXTS, Bounds, option, switch
from duo.errors import PromptError, UsageError
from duo.models.storage import MIB, read_at_most, read_path

RANDOM_SEED = -1
T = TypeVar("T")
_MAX_PROMPT = 64 * MIB  # more than the tokens of the largest contexts
_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|[nrt'\"\\])")
_ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}
# Samplers by all of their names in llama.cpp, without - and _.
_NAMES = {name.replace("_", ""): name for name in SAMPLERS}
_NAMES |= {"nucleus": "top_p", "typ": "typ_p", "temp": "temperature"}
_UNSUPPORTED = ("dry", "xtc", "topnsigma", "infill", "adaptivep")


def named(file: Path | None, repo: str | None, flags: str, what: str) -> Path | str | None:
    """The model that one of two options names, as duo.load() takes it. Raises UsageError if both do."""
    if file and repo:
        raise UsageError(f"{flags} both name the {what}: use only one")
    return f"{HUB}{repo}" if repo else file


# fmt: off
@dataclass(frozen=True)
class LogOptions:
    """What is logged."""

    verbose: bool = option(
        False, "-v --verbose", "Output", "Print more on stderr: all statistics, and llama.cpp's log.")
    log_file: Path | None = option(
        None, "--log-file FILE $LLAMA_ARG_LOG_FILE", "Output", "Write all log messages to a file.")
    until_eof: bool = option(
        False, "--until-eof", "", "Exit when standard input is closed.", who="back rpc-server", hidden=True)


@dataclass(frozen=True)
class EngineOptions(LogOptions):
    """Which models to load, and how they decode."""

    model: Path | None = option(
        None, "-m --model GGUF $LLAMA_ARG_MODEL", "Main options",
        "Target model, which decides every token of the text; demo: a small demo pair.", excludes="hf_repo")
    model_draft: Path | None = option(
        None, "-md --model-draft --spec-draft-model GGUF $LLAMA_ARG_SPEC_DRAFT_MODEL $LLAMA_ARG_MODEL_DRAFT",
        "Main options",
        "Draft model: small, best with the vocabulary of the target. Without one, candidates come from the text itself "
        "only (--lookup). Options of a draft then have no effect, but --rpcd is refused.", excludes="hf_repo_draft")
    hf_repo: str | None = option(
        None, "-hf -hfr --hf-repo USER/REPO[:QUANT] $LLAMA_ARG_HF_REPO", "Models",
        "Hugging Face repository of the target; QUANT defaults to Q4_K_M.", excludes="model")
    hf_repo_draft: str | None = option(
        None, "-hfd -hfrd --hf-repo-draft USER/REPO[:QUANT] $LLAMA_ARG_SPEC_DRAFT_HF_REPO", "Models",
        "Hugging Face repository of the draft.", excludes="model_draft")
    chat_template_file: str | None = option(
        None, "--chat-template-file FILE $LLAMA_ARG_CHAT_TEMPLATE_FILE", "Prompt and text",
        "File with the chat template.", who=TEXTS, excludes="chat_template")
    back_token_file: Path | None = option(
        None, "--back-token-file FILE", "Remote drafts", "File with the token.", who="duo lead")
    engine: EngineConfig = EngineConfig()
    # fmt: on

    @property
    def names_target(self) -> bool:
        """Whether a target is named."""
        return bool(self.model or self.hf_repo)

    @property
    def is_demo(self) -> bool:
        """Whether the demo pair is used: by its name, or because no target is named."""
        return not self.names_target or self.model == Path(DEMO)

    def model_names(self) -> tuple[Path | str, Path | str | None]:
        """Target and draft, as duo.load() takes them. Raises UsageError."""
        target = named(self.model, self.hf_repo, "-m and -hf", "target")
        draft = named(self.model_draft, self.hf_repo_draft, "-md and -hfd", "draft")
        if target and not self.is_demo:
            return target, draft
        if draft is not None:
            what = "the demo pair has its own draft" if self.names_target else "a draft without a target"
            raise UsageError(f"{what}: name the target with -m or -hf")
        return DEMO, None

    def check_model(self) -> None:
        """Raise UsageError if no target is named."""
        if not self.names_target:
            self.model_names()  # which may know better what is missing
            raise UsageError("no model: add -m FILE or -hf USER/REPO:QUANT, or try `duo demo` or `duo chat`")

    @property
    def has_draft(self) -> bool:
        """Whether there is a draft, such as that of the demo pair."""
        return self.is_demo or self.model_names()[1] is not None


# fmt: off
@dataclass(frozen=True)
class GenerationOptions:
    """How a text is generated."""

    generation: GenerationConfig = GenerationConfig()
    seed: int = option(
        RANDOM_SEED, "-s --seed N", "Sampling",
        "Random seed; -1: a new one, which is printed. The same seed gives the same text with any draft, except for "
        "near-ties (see --exact) and with --verify rejection.",
        bounds=Bounds(RANDOM_SEED, MAX_SEED, "a seed has 64 bits"))
    logit_bias: list[str] | None = option(
        None, "-l --logit-bias ID(+/-)X", "Sampling",
        "Add X to the logit of a token, such as 15043+1 or 15043-inf; may be repeated.")
    samplers: str = option(";".join(SAMPLERS), "--samplers A;B;…", "Sampling", "Samplers to use, in this order.")
    grammar: str | None = option(
        None, "--grammar GBNF", "Sampling", "Grammar that constrains the text, in GBNF or Lark.", who=TEXTS)
    grammar_file: str | None = option(None, "--grammar-file FILE", "Sampling", "File with the grammar.", who=TEXTS)
    json_schema: str | None = option(
        None, "-j --json-schema JSON", "Sampling", "JSON schema that constrains the text; {}: any object.", who=TEXTS)
    json_schema_file: str | None = option(
        None, "-jf --json-schema-file FILE", "Sampling", "File with the JSON schema.", who=TEXTS)
    reverse_prompt: list[str] | None = option(
        None, "-r --reverse-prompt TEXT", "Prompt and text", "Stop before this text; may be repeated.", who=TEXTS,
        name="stop")
    color: str = option(
        "auto", "--color", "Output",
        "Show accepted tokens in green (of the draft) or cyan (of the lookup), and every other step in bold.",
        who="duo chat lead", choices=("auto", "always", "never"),
        spellings=switch("auto", "always", "never") | {"": "auto"})
    # fmt: on

    def config(self, *, escape: bool = True) -> GenerationConfig:
        """How a text is generated; a seed of -1 becomes a random one. Raises UsageError or PromptError."""
        import secrets  # noqa: PLC0415 - slow: it loads OpenSSL

        sampling = replace(
            self.generation.sampling,
            logit_bias=tuple(map(_bias, self.logit_bias or ())),
            samplers=tuple(_sampler_names(self.samplers)),
            seed=secrets.randbits(32) if self.seed == RANDOM_SEED else self.seed,
        )
        stops = tuple(read_argument(stop, "-r", escape=escape) for stop in self.reverse_prompt or ())
        stop = replace(self.generation.stop, stop_strings=stops)
        return replace(self.generation, sampling=sampling, stop=stop, grammar=self._grammar())

    def _grammar(self) -> str | None:
        """The grammar, as GBNF. Raises UsageError or PromptError."""
        from duo.llama.grammar import schema_grammar  # noqa: PLC0415 - not for --help

        sources = {"--grammar": self.grammar, "--grammar-file": self.grammar_file}
        sources |= {"-j": self.json_schema, "-jf": self.json_schema_file}
        flag, value = only_one("each give a grammar", sources)
        if value is None:
            return None
        is_file = flag in ("--grammar-file", "-jf")
        text = read_file(value, limit=MIB)[1] if is_file else read_argument(value, flag, escape=False)
        return text if flag.startswith("--grammar") else schema_grammar(text, flag)


def _bias(value: str) -> tuple[int, float]:
    """--logit-bias: a token id and a signed number. Raises UsageError."""
    match = re.fullmatch(r"(\d+)([+-].+)", value.strip())
    with suppress(ValueError):
        if match and (bias := float(match[2])) < math.inf:
            return int(match[1]), bias
    raise UsageError(f"--logit-bias: {value!r} is not of the form TOKEN_ID(+/-)BIAS, such as 15043+1 or 15043-inf")


def _sampler_names(text: str) -> Iterator[str]:
    for part in filter(None, (part.strip().lower() for part in text.split(";"))):
        plain = part.replace("-", "").replace("_", "")
        if plain in _UNSUPPORTED:
            warn(f"--samplers: {part} is not supported and ignored")
        else:
            yield _NAMES.get(plain, part)


# fmt: off
@dataclass(frozen=True)
class PromptOptions:
    """The prompt of a run, or the first message of a chat."""

    prompt: str | None = option(None, "-p --prompt TEXT", "Main options", "Prompt.")
    file: str | None = option(None, "-f --file FILE", "Main options", "File with the prompt; -: stdin.")
    system_prompt: str | None = option(
        None, "-sys --system-prompt TEXT", "Prompt and text", "System prompt; it implies --chat.", who=TEXTS)
    escape: bool = option(
        True, "--escape/--no-escape -e", "Prompt and text", r"Process escapes in prompts: \n, \t, \", \\ and \xHH.",
        who=TEXTS)
    # fmt: on


# What options name


def only_one(words: str, given: Mapping[str, T | None]) -> tuple[str, T | None]:
    """The one of these options that is given, and its value, or None. Raises UsageError, with these words, for more."""
    found = {flag: value for flag, value in given.items() if value is not None}
    if len(found) > 1:
        raise UsageError(f"{' and '.join(found)} {words}: use only one")
    return next(iter(found.items()), ("", None))


def read_prompt(text: str | None, file: str | None, *, escape: bool) -> str | None:
    """The prompt of -p or -f; None if neither is given. Raises UsageError, or PromptError for a file or no text."""
    flag, given = only_one("both give a prompt", {"-p": text, "-f": file})
    if given is None:
        return None
    if flag == "-p":
        name, prompt = "the prompt", read_argument(given, "the prompt", escape=escape)
    else:
        name, prompt = read_file(given, escape=escape)
    if not prompt:
        raise (UsageError if flag == "-p" else PromptError)(f"{name} is empty")
    return prompt


def read_prompts(texts: Sequence[str] | None) -> list[str]:
    """The prompts of a -p that may be repeated. Raises as read_prompt() does."""
    return [prompt for text in texts or () if (prompt := read_prompt(text, None, escape=True))]


def read_argument(text: str, name: str, *, escape: bool) -> str:
    """An argument as text, its escape sequences processed if `escape`. Raises PromptError if it is not UTF-8."""
    return _decode(text.encode("utf-8", "surrogateescape"), name, escape=escape)


def _decode(data: bytes, name: str, *, escape: bool) -> str:
    try:
        text = data.decode()  # first, so that the offset in an error is one in the input
        return _ESCAPE.sub(_unescaped, data).decode() if escape else text
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise PromptError(f"{name} is not valid UTF-8: byte 0x{byte:02x} at offset {error.start}") from None


def _unescaped(match: re.Match[bytes]) -> bytes:
    r"""What \n, \r, \t, \', \", \\ or \xHH, a byte, stands for (llama.cpp, string_process_escapes)."""
    code = match[1]
    return bytes.fromhex(code[1:].decode()) if code[:1] == b"x" else _ESCAPES.get(code, code)


def read_file(file: str, *, escape: bool = False, limit: int = _MAX_PROMPT) -> tuple[str, str]:
    """Name and text of a file, or stdin for `-`, without a newline at its end, as in llama.cpp. Raises PromptError."""
    name = "standard input" if file == "-" else file
    try:
        if file != "-":
            data = read_path(Path(file), limit)
        else:  # None: closed by the parent process
            data = read_at_most(sys.stdin.buffer, limit) if sys.stdin is not None else b""
    except (OSError, ValueError) as error:  # a name with a NUL, or a closed standard input
        raise PromptError(f"{name}: {_reason(error)}") from error
    return name, _decode(data.removesuffix(b"\n"), name, escape=escape)


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


def api_keys(keys: Sequence[str] | None, file: Path | None) -> list[str]:
    """All keys; an argument may have several, separated by commas, as in llama-server. Raises UsageError."""
    found = [part.strip() for key in keys or () for part in key.split(",")]
    found += _lines(file, "--api-key-file")
    if (keys or file) and not all(found or [""]):
        raise UsageError("an API key must not be empty: omit --api-key if clients need none")
    if not all(key.isascii() and key.isprintable() for key in found):
        raise UsageError("an API key has characters that are not allowed in HTTP headers")
    return found


def back_token(token: str | None, file: Path | None, option: str = "--back-token") -> str:
    """The token of remote drafts; empty if there is none. Raises UsageError."""
    only_one("both give the token", {option: token, f"{option}-file": file})
    if file is not None:
        token = next(iter(_lines(file, f"{option}-file")), "")
    if token is None:
        return ""
    if not 0 < len(token) <= 256 or not token.isprintable():
        raise UsageError(f"{option}: a token must not be empty, and has at most 256 characters, all printable")
    return token


def _lines(file: Path | None, option: str) -> list[str]:
    """The lines that are not empty; none without a file."""
    try:
        lines = read_path(file, MIB).decode().splitlines() if file is not None else []
    except (OSError, ValueError) as error:
        raise UsageError(f"{option} {file}: {_reason(error)}") from None
    return [line.strip() for line in lines if line.strip()]
