"""Listening: who may connect, from the options."""

from __future__ import annotations

from collections.abc import Iterable

from duo.cli.lead_options import LeadOptions
from duo.cli.options import RunOptions
from duo.cli.output import say
from duo.cli.secrets import LOOPBACK_NAMES, api_keys, back_token, is_loopback
from duo.config import SamplingConfig
from duo.errors import UsageError
from duo.link.backs import Backs, Brief, Target
from duo.llama.context import Context
from duo.llama.model import Model
from duo.llama.vocabulary import Fingerprint
from duo.server.drafts import draft_app
from duo.server.guard import Rules
from duo.server.listener import Listener


def lead_rules(options: LeadOptions) -> Rules:
    """Who may ask the lead. Raises UsageError for an address that others reach and nothing protects."""
    keys = api_keys(options.api_key, options.api_key_file)
    if not keys and not is_loopback(options.host):
        raise UsageError(
            f"--host {options.host}: other machines can reach this address, so clients must know a key: "
            "add --api-key KEY (or --api-key-file, LLAMA_API_KEY)"
        )
    return Rules(
        keys,
        _hosts(options.host, options.allowed_host or ()),
        frozenset(origin.rstrip("/") for origin in options.cors_origin or ()),
    )


def lead_backs(options: LeadOptions) -> Backs:
    """The backs of a lead; None may join where clients need a key and backs have no token. Raises UsageError."""
    token = back_token(options.back_token, options.back_token_file)
    protected = not is_loopback(options.host) or options.api_key or options.api_key_file
    return Backs(token, closed=bool(protected and not token))


class BackPort:
    """Where `duo` itself takes drafts from other machines."""

    def __init__(self, options: RunOptions) -> None:
        """Listen. Raises UsageError."""
        token = back_token(options.back_token, options.back_token_file)
        if not token and not is_loopback(options.back_host):
            raise UsageError(
                f"--back-host {options.back_host}: other machines can reach this address, so backs must know a "
                "token: add --back-token TOKEN (or --back-token-file, DUO_BACK_TOKEN)"
            )
        self.backs = Backs(token)
        app = draft_app(self.backs, Rules(hosts=_hosts(options.back_host, ())))
        self.listener = Listener(app, options.back_host, options.back_port or 0)
        say(f"duo: taking drafts at ws://{in_url(options.back_host)}:{self.listener.port}")


def as_target(model: Model, context: Context) -> Target:
    """What backs must fit."""
    return Target(Fingerprint.of(model), model.token_texts(model.n_vocab), context.n_ctx)


def brief(options: RunOptions, sampling: SamplingConfig, target: Model) -> Brief:
    """How tokens are chosen in a run."""
    return Brief(sampling, target.end_tokens() if options.ignore_eos else ())


def in_url(host: str) -> str:
    """An address as URLs write it."""
    return f"[{host}]" if ":" in host else host


def _hosts(host: str, more: Iterable[str]) -> frozenset[str] | None:
    """The names that a server at this address answers to: DNS rebinding makes others up. None: any."""
    if not is_loopback(host) and not more:
        return None
    return frozenset((*LOOPBACK_NAMES, host.lower(), *(name.lower() for name in more)))
