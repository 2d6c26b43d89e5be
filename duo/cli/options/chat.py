"""The options of `duo chat`."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from duo.cli.options.context import BatchOptions, CacheOptions, ContextOption, WarmupOption
from duo.cli.options.declare import PROMPT, HelpOpt, option
from duo.cli.options.devices import DeviceOptions, RpcOptions
from duo.cli.options.drafting import DraftingOptions, ExactOption, ProfileOption
from duo.cli.options.engine import EngineOptions, GenerationOptions
from duo.cli.options.model import HubOptions, ModelOptions, WeightOptions
from duo.cli.options.output import ColorOption, LogOptions
from duo.cli.options.prompt import LimitOptions, PromptOptions, StopOptions, TemplateOptions
from duo.cli.options.sampling import GrammarOptions, SamplingOptions
from duo.cli.options.server import SERVER
from duo.cli.options.threads import CoreOptions, ThreadOptions
from duo.errors import UsageError

# What a request to a server has, under these names; the server decides what is not given.
SETTINGS = {
    "predict": "max_tokens", "temp": "temperature", "seed": "seed", "top_k": "top_k", "top_p": "top_p",
    "min_p": "min_p", "typical": "typical_p", "repeat_penalty": "repeat_penalty", "repeat_last_n": "repeat_last_n",
    "presence_penalty": "presence_penalty", "frequency_penalty": "frequency_penalty", "reverse_prompt": "stop",
}  # fmt: skip
_SERVER_ONLY = ("api_key", "api_key_file")
_EITHER = (*SETTINGS, "url", "model", "system_prompt", "escape", "prompt", "file", "color", "help")


# fmt: off
@dataclass(frozen=True)
class ChatOptions(EngineOptions, GenerationOptions, PromptOptions, TemplateOptions, ColorOption):
    """The options of `duo chat`: those of a run, or of a request to a server."""

    offers = (
        ModelOptions, PromptOptions, LimitOptions, HubOptions, WeightOptions, StopOptions, SamplingOptions,
        GrammarOptions, DraftingOptions, ProfileOption, ExactOption, ThreadOptions, CoreOptions, DeviceOptions,
        RpcOptions, ContextOption, BatchOptions, CacheOptions, WarmupOption, ColorOption, LogOptions,
    )
    url: Annotated[str | None, typer.Argument(
        metavar="URL", show_default=False,
        help="Address of an OpenAI-compatible server, with or without /v1; -m is the name of its model then. Without "
        "a URL and a model: a lead at http://127.0.0.1:5555 if there is one, otherwise the demo pair.")] = None
    api_key: Annotated[str | None, option(
        "--api-key", panel=SERVER, metavar="KEY", env=["LLAMA_API_KEY", "OPENAI_API_KEY"],
        help="API key; safer in $LLAMA_API_KEY or $OPENAI_API_KEY, which other users cannot see.")] = None
    api_key_file: Annotated[Path | None, option(
        "--api-key-file", panel=SERVER, metavar="FILE",
        help="File whose first non-empty line is the API key; overrides --api-key.")] = None
    system_prompt: Annotated[str | None, option(
        "-sys", "--system-prompt", panel=PROMPT, metavar="TEXT", help="System prompt.")] = None
    escape: Annotated[bool, option(
        "--escape/--no-escape", "-e", panel=PROMPT,
        help=r"Process escapes in -p, -f and -sys: \n, \t, \", \\ and \xHH.")] = True
    given: frozenset[str] = frozenset()  # the fields that the command line sets
    help: HelpOpt = False

    @property
    def has_engine_options(self) -> bool:
        """Whether an option is given that a server would not be told."""
        return bool(self._only_here())

    def check_server(self) -> None:
        """Raises UsageError for options that a server would not be told."""
        if names := self._only_here():
            raise UsageError(f"{_flag(names[0])} is for a model in this process: it has no effect on a server")

    def check_engine(self) -> None:
        """Raises UsageError for options that only a server is told."""
        if names := sorted(self.given & set(_SERVER_ONLY)):
            raise UsageError(f"{_flag(names[0])} is for a server: add its URL, or leave it out")

    def settings(self) -> dict[str, Any]:
        """What is sent with each request to a server."""
        values = {name: getattr(self, field) for field, name in SETTINGS.items() if field in self.given}
        return {name: value for name, value in values.items() if value is not None}

    def _only_here(self) -> list[str]:
        return sorted(self.given - set(_SERVER_ONLY) - set(_EITHER))


def _flag(name: str) -> str:
    """The first spelling of the option of a field."""
    groups = (*ChatOptions.offers, ChatOptions)
    hints = [inspect.get_annotations(group, eval_str=True).get(name) for group in groups]
    # Typer takes the first name as the default until it finds that the option is annotated.
    return next(str(hint.__metadata__[0].default) for hint in hints if hint is not None)
