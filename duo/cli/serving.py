"""Listening: who may connect, from the options."""

from __future__ import annotations

from collections.abc import Iterable

from duo.cli.lead_options import LeadOptions
from duo.cli.options import RunOptions
from duo.cli.secrets import LOOPBACK_NAMES, api_keys, back_token, is_loopback
from duo.config import SamplingConfig
from duo.errors import UsageError
from duo.link.backs import Brief, Target
from duo.link.worker import Door
from duo.llama.context import Context
from duo.llama.model import Model
from duo.llama.vocabulary import Fingerprint
from duo.server.guard import Rules


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
        hosts(options.host, options.allowed_host or ()),
        frozenset(origin.rstrip("/") for origin in options.cors_origin or ()),
    )


def lead_door(options: LeadOptions) -> Door:
    """Who may draft for a lead; nobody where clients need a key and backs have no token. Raises UsageError."""
    token = back_token(options.back_token, options.back_token_file)
    protected = not is_loopback(options.host) or options.api_key or options.api_key_file
    return Door(token, closed=bool(protected and not token))


def as_target(model: Model, context: Context) -> Target:
    """What backs must fit."""
    return Target(Fingerprint.of(model), model.token_texts(model.n_vocab), context.n_ctx)


def brief(options: RunOptions, sampling: SamplingConfig, target: Model) -> Brief:
    """How tokens are chosen in a run."""
    return Brief(sampling, target.end_tokens() if options.ignore_eos else ())


def in_url(host: str) -> str:
    """An address as URLs write it."""
    return f"[{host}]" if ":" in host else host


def hosts(host: str, more: Iterable[str]) -> frozenset[str] | None:
    """The names that a server at this address answers to: DNS rebinding makes others up. None: any."""
    if not is_loopback(host) and not more:
        return None
    return frozenset((*LOOPBACK_NAMES, host.lower(), *(name.lower() for name in more)))
