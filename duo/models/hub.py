"""GGUF files from the Hugging Face hub, through huggingface_hub and its cache, which llama.cpp shares.

The library reads HF_ENDPOINT, HF_TOKEN and HF_HOME itself, and shows progress bars only on a terminal.
"""

from __future__ import annotations

import logging
from importlib import import_module
from pathlib import Path
from typing import Any

from duo.errors import DownloadError
from duo.models.selection import HubSpec, select_files

_logger = logging.getLogger(__name__)


def resolve_hub(spec: str, offline: bool = False) -> Path:
    """Return where the model `spec`, user/repo[:quant], lies in the hub's cache; fetch it if need be.

    Of a split model all parts are fetched and the first is returned. Offline, be it by HF_HUB_OFFLINE, only
    the cache is looked at; it also serves, with a warning, when the hub does not.
    Raises UsageError when `spec` has another form, DownloadError when the model is not to be had.
    """
    wanted = HubSpec.parse(spec)
    hub = _library()
    if offline or hub.constants.HF_HUB_OFFLINE:
        if found := _find_cached(hub, wanted):
            return found
        raise DownloadError(f"{wanted} is not in {hub.constants.HF_HUB_CACHE}, and duo is offline")
    try:
        return _fetch(hub, wanted)
    except DownloadError:
        raise
    except Exception as error:  # three HTTP libraries in as many major versions: no base class covers them
        reason = _explain(hub, wanted.repo, error)
        if found := _find_cached(hub, wanted):
            _logger.warning("%s; taking %s from the cache", reason, wanted)
            return found
        raise DownloadError(reason) from error


def _library() -> Any:
    try:
        for module in ("constants", "errors"):
            import_module(f"huggingface_hub.{module}")
        return import_module("huggingface_hub")
    except ImportError as error:
        raise DownloadError("models of Hugging Face need huggingface_hub: pip install huggingface_hub") from error


def _fetch(hub: Any, wanted: HubSpec) -> Path:
    info = hub.HfApi().model_info(wanted.repo, timeout=hub.constants.HF_HUB_ETAG_TIMEOUT)
    names = select_files([file.rfilename for file in info.siblings or ()], wanted)
    # By branch, not by commit: only then does the cache note what `main` is, for the next run offline.
    paths = [Path(hub.hf_hub_download(wanted.repo, name)) for name in names]
    if len({path.parent for path in paths}) > 1:
        raise DownloadError(f"{wanted.repo} changed while it was fetched: run again")
    return paths[0]


def _find_cached(hub: Any, wanted: HubSpec) -> Path | None:
    """Find the model in the hub's cache, whose layout is documented. Uses no network."""
    folder = Path(hub.constants.HF_HUB_CACHE) / f"models--{wanted.repo.replace('/', '--')}"
    try:
        commit = (folder / "refs" / "main").read_text(encoding="utf-8").strip()
    except OSError:
        return None
    snapshot = folder / "snapshots" / commit
    names = [path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.is_file()]
    try:
        return snapshot / select_files(names, wanted)[0]
    except DownloadError:
        return None


def _explain(hub: Any, repo: str, error: BaseException) -> str:
    """Why `repo` could not be fetched, in one line."""
    endpoint = hub.constants.ENDPOINT
    if isinstance(error, hub.errors.LocalEntryNotFoundError) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, hub.errors.GatedRepoError):
        return f"{repo} is gated: ask for access on its page, then set HF_TOKEN"
    if isinstance(error, hub.errors.RepositoryNotFoundError):
        return f"{endpoint} has no {repo}, or it is private and HF_TOKEN has no access to it"
    response = getattr(error, "response", None)
    if response is not None:
        token = " (refused HF_TOKEN?)" if response.status_code in (401, 403) else ""
        return f"cannot fetch {repo}: {endpoint} answered {response.status_code}{token}"
    return f"cannot fetch {repo} from {endpoint}: {_gist(error)}"


def _gist(error: BaseException) -> str:
    """What the system said at the bottom of a chain of exceptions, or the first line of the top one."""
    root = error
    while inner := root.__cause__ or root.__context__:
        root = inner
    if isinstance(root, OSError) and root.strerror:
        return root.strerror
    return next(iter(str(error).splitlines()), type(error).__name__)
