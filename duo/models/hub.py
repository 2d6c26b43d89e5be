"""GGUF files from the Hugging Face Hub, through huggingface_hub and its cache, which llama.cpp shares.

The library reads HF_ENDPOINT, HF_TOKEN and HF_HOME, and shows progress bars on a terminal only.
"""

from __future__ import annotations

import logging
import re
from importlib import import_module
from pathlib import Path
from typing import Any

from duo.errors import DownloadError
from duo.models.files import MIB, read_own
from duo.models.selection import HubSpec, select_files

_logger = logging.getLogger(__name__)
_MAX_REF = MIB  # bytes; it has 40
_COMMIT = re.compile(r"\w[\w.-]{0,99}", re.ASCII)


def resolve_hub(spec: str, offline: bool = False) -> Path:
    """Return the path of the model `spec`, user/repo[:quant], in the Hub's cache; download it if necessary.

    All parts of a split model are downloaded, and the first is returned. Offline (also with HF_HUB_OFFLINE), only the
    cache is used; it is used too, with a warning, if the Hub fails. Raises UsageError for an invalid `spec`,
    DownloadError if the model is not available.
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
    except Exception as error:  # three major versions with three HTTP libraries: they share no base class
        reason = _explain(hub, wanted.repo, error)
        if found := _find_cached(hub, wanted):
            _logger.warning("%s; using %s from the cache", reason, wanted)
            return found
        raise DownloadError(reason) from error


def _library() -> Any:
    try:
        for module in ("constants", "errors"):
            import_module(f"huggingface_hub.{module}")
        return import_module("huggingface_hub")
    except ImportError as error:
        raise DownloadError("models from Hugging Face need huggingface_hub: pip install huggingface_hub") from error


def _fetch(hub: Any, wanted: HubSpec) -> Path:
    info = hub.HfApi().model_info(wanted.repo, timeout=hub.constants.HF_HUB_ETAG_TIMEOUT)
    names = select_files([file.rfilename for file in info.siblings or ()], wanted)
    # By branch, not by commit: only then does the cache record what `main` is, for an offline run.
    paths = [Path(hub.hf_hub_download(wanted.repo, name)) for name in names]
    if len({path.parent for path in paths}) > 1:
        raise DownloadError(f"{wanted.repo} changed during the download: run again")
    return paths[0]


def _find_cached(hub: Any, wanted: HubSpec) -> Path | None:
    """Find the model in the Hub's cache, whose layout is documented, without the network."""
    folder = Path(hub.constants.HF_HUB_CACHE) / f"models--{wanted.repo.replace('/', '--')}"
    try:
        commit = read_own(folder / "refs" / "main", _MAX_REF).decode("ascii").strip()
    except (OSError, ValueError):
        return None
    if not _COMMIT.fullmatch(commit):  # a damaged file must not lead elsewhere
        return None
    snapshot = folder / "snapshots" / commit
    names = [path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.is_file()]
    try:
        return snapshot / select_files(names, wanted)[0]
    except DownloadError:
        return None


def _explain(hub: Any, repo: str, error: BaseException) -> str:
    """Why `repo` could not be downloaded, in one line."""
    endpoint = hub.constants.ENDPOINT
    if isinstance(error, hub.errors.LocalEntryNotFoundError) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, hub.errors.GatedRepoError):
        return f"{repo} is gated: request access on its page, then set HF_TOKEN"
    if isinstance(error, hub.errors.RepositoryNotFoundError):
        return f"{endpoint} has no {repo}, or it is private and HF_TOKEN has no access to it"
    response = getattr(error, "response", None)
    if response is not None:
        token = " (is HF_TOKEN valid?)" if response.status_code in (401, 403) else ""
        return f"cannot download {repo}: {endpoint} returned {response.status_code}{token}"
    return f"cannot download {repo} from {endpoint}: {_cause(error)}"


def _cause(error: BaseException) -> str:
    """The system's message at the bottom of a chain of exceptions, or the first line of the top one."""
    root = error
    while inner := root.__cause__ or root.__context__:
        root = inner
    if isinstance(root, OSError) and root.strerror:
        return root.strerror
    return next(iter(str(error).splitlines()), type(error).__name__)
