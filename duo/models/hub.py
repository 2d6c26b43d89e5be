"""The names by which a user specifies a model: a path, or `user/repo:Q4_K_M` on the Hugging Face Hub.

huggingface_hub downloads it into its cache, which llama.cpp shares. It reads HF_ENDPOINT, HF_TOKEN and HF_HOME, and
shows progress bars on a terminal only.
"""

import logging
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from duo.config import HUB, ModelConfig
from duo.errors import DownloadError, DuoError, ModelError, UsageError
from duo.llama.build import pip_install
from duo.models.storage import open_own

_logger = logging.getLogger(__name__)
_MAGIC = b"GGUF"
_SPEC = re.compile(r"([\w.-]+/[\w.-]+)(?::([\w./-]+))?", re.ASCII)
_FILE = re.compile(r"(.+?)(-\d{5}-of-\d{5})?\.gguf", re.ASCII | re.IGNORECASE)
_QUANT = re.compile(r"[-.]((?:UD-)?\w+)$", re.ASCII | re.IGNORECASE)

_PREFERRED = ("Q4_K_M", "Q8_0")
# By whole words: "Model-MTP-Q8_0" is a model, and so is "Model-imatrix-Q8_0", which was made with such a matrix.
_NO_MODEL = re.compile(r"(?:.*[-._])?mmproj([-._].*)?|imatrix([-._].*)?|.*[-._]imatrix", re.IGNORECASE)
_HEAD = re.compile(r"(mtp|eagle3|dflash|dspark)[-._].*", re.IGNORECASE)  # drafts for a model beside it
_IS_QUANT = re.compile(r"(?:UD-)?(?:I?Q|TQ|B?F|MXFP|NVFP)\d.*", re.ASCII | re.IGNORECASE)  # 8B is none
_BLOCK = re.compile(r"(?:dflash|dspark)[-._](.+)\.gguf", re.IGNORECASE)  # of these, block drafts


def find_model(name: str | os.PathLike[str], *, offline: bool = False, with_block: bool = False) -> Path:
    """The GGUF file at a path, or, without one, that a str such as user/repo:Q4_K_M names. Raises DuoError.

    `with_block`: a block draft beside it on the Hub is downloaded, too.
    """
    path = Path(name)
    if isinstance(name, str):
        if name.startswith(HUB):
            return resolve_hub(name.removeprefix(HUB), offline, with_block)
        if not path.exists() and path.suffix != ".gguf" and _SPEC.fullmatch(name):
            return resolve_hub(name, offline, with_block)
    return check_gguf(path)


def check_gguf(path: Path) -> Path:
    """Return `path` if the file begins like a GGUF file; llama.cpp checks the rest. Raises ModelError."""
    try:
        with open_own(path) as file:
            magic = file.read(len(_MAGIC))
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file (duo list: the models of this machine)") from None
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from error
    if magic != _MAGIC:
        raise ModelError(f"{path}: not a GGUF file")
    return path


# The Hub


def resolve_hub(spec: str, offline: bool = False, with_block: bool = False) -> Path:
    """The first file of the model `spec`, user/repo[:quant], in the Hub's cache; downloaded if necessary.

    Offline (also with HF_HUB_OFFLINE), or with a warning if the Hub fails, from the cache. Raises UsageError for a
    `spec` that is invalid or fits several models, DownloadError.
    """
    match = _SPEC.fullmatch(spec)
    if match is None:
        raise UsageError(f"a Hugging Face name has the form user/repo[:quant], not {spec!r}")
    repo, quant = match.groups()
    try:
        hub = import_module("huggingface_hub")
        import_module("huggingface_hub.file_download")  # with constants and errors
    except ImportError as error:
        raise DownloadError(f"models from Hugging Face need huggingface_hub: {install_command()}") from error
    if offline := offline or hub.constants.HF_HUB_OFFLINE:
        reason = f"{spec} is not in {hub.constants.HF_HUB_CACHE}, and duo is offline"
    else:
        try:
            return _fetch(hub, repo, quant, with_block)
        except DuoError:
            raise
        except Exception as error:  # three major versions with three HTTP libraries: they share no base class
            reason = _explain(hub, repo, error)
    found = _find_cached(hub, repo, quant)
    if found is None:
        raise DownloadError(reason)
    if not offline:
        _logger.warning("%s; using %s from the cache", reason, spec)
    return found


def has_package() -> bool:
    """Whether huggingface_hub is installed, without which no model has a name on the Hub."""
    return find_spec("huggingface_hub") is not None


def install_command() -> str:
    """The command that installs huggingface_hub."""
    return f"{pip_install()} 'huggingface_hub>=0.30'"


def _fetch(hub: Any, repo: str, quant: str | None, with_block: bool) -> Path:
    info = hub.HfApi().model_info(repo, timeout=hub.constants.HF_HUB_ETAG_TIMEOUT)
    there = [file.rfilename for file in info.siblings or ()]
    names = select_files(there, repo, quant)
    names += select_block(there, names[0])[:1] if with_block else ()
    # By branch, not by commit: only then does the cache record what `main` is, for an offline run.
    paths = [Path(hub.hf_hub_download(repo, name)) for name in names]
    if len({path.parent for path in paths}) > 1:
        raise DownloadError(f"{repo} changed during the download: run again")
    return paths[0]


def _find_cached(hub: Any, repo: str, quant: str | None) -> Path | None:
    """Find the model in the Hub's cache, without the network."""
    with suppress(DownloadError, OSError, ValueError):  # for what is not there, or is damaged
        snapshot = Path(hub.snapshot_download(repo, local_files_only=True))
        if snapshot.parent.name == "snapshots" and ".." not in snapshot.parts:  # not a damaged reference
            names = [path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.is_file()]
            return snapshot / select_files(names, repo, quant)[0]
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
    return f"cannot download {repo} from {endpoint}: {root_cause(error)}"


def root_cause(error: BaseException) -> str:
    """The system's message at the bottom of a chain of exceptions, or the first line of the top one."""
    root = error
    while inner := root.__cause__ or root.__context__:
        root = inner
    lines = str(error).splitlines() or [type(error).__name__]
    return root.strerror if isinstance(root, OSError) and root.strerror else lines[0]


def select_files(names: Iterable[str], repo: str, tag: str | None) -> list[str]:
    """The file for `tag` among `names` in `repo`, or all its parts: of Q4_K_M, Q8_0 and the first one by default.

    A tag is the quantisation, or more of the file's name. Raises DownloadError; UsageError if several files have it.
    """
    names = sorted(names, reverse=True)
    found = {match[1]: name for name in names if (match := _FILE.fullmatch(name))}
    stems = [stem for stem in sorted(found) if not _NO_MODEL.fullmatch(_base(stem))]
    stems = [stem for stem in stems if not _HEAD.fullmatch(_base(stem))] or stems
    if not stems:
        raise DownloadError(f"{repo} has no GGUF model")
    chosen = next(filter(None, (_tagged(stems, wanted) for wanted in ((tag,) if tag else _PREFERRED))), [])
    if tag and not chosen:
        available = ", ".join(dict.fromkeys(quant_of(found[stem]) or found[stem] for stem in stems))
        raise DownloadError(f"{repo} has no {tag} (available: {available})")
    if len(chosen) > 1:
        which = ", ".join(f"{repo}:{stem}" for stem in chosen)
        raise UsageError(
            f"{repo} has {len(chosen)} models {f'called {tag}' if tag else 'to choose from'}: name one, {which}"
        )
    first = re.sub(r"\d{5}([-]of-\d{5}\.gguf)$", r"00001\1", found[(chosen or stems)[0]])
    parts = [path.as_posix() for path in ModelConfig(Path(first)).shards]
    if missing := set(parts) - set(names):
        raise DownloadError(f"{repo} has {len(parts) - len(missing)} of the {len(parts)} parts of {first}")
    return parts


def select_block(names: Iterable[str], model: str) -> list[str]:
    """The block drafts beside `model` among `names`: first those of its name, then those of its quantisation."""
    folder, _, own = model.lower().rpartition("/")
    found = [(name, match[1]) for name in names if (match := _BLOCK.fullmatch(_base(name)))]
    found = [(name, rest) for name, rest in found if name.lower().rpartition("/")[0] == folder and _base(name) != own]

    def rank(one: tuple[str, str]) -> tuple[bool, bool, str]:
        name, rest = one
        return stem_of(rest).lower() not in own, quant_of(name) != quant_of(model), name

    return [name for name, _ in sorted(found, key=rank)]


def quant_of(name: str) -> str | None:
    """The quantisation in the name of a file, such as Q4_K_M or UD-Q4_K_XL; None if there is none."""
    file = _FILE.fullmatch(name)
    return found[1] if file and (found := _QUANT.search(file[1])) else None


def stem_of(name: str) -> str:
    """The name of a file, or what it ends with, without quantisation, number of a part and .gguf."""
    stem = file[1] if (file := _FILE.fullmatch(name)) else name
    quant = _QUANT.search(stem)
    return stem[: quant.start()] if quant and _IS_QUANT.fullmatch(quant[1]) else stem


def _base(stem: str) -> str:
    return stem.rpartition("/")[2]


def _tagged(stems: Sequence[str], tag: str) -> list[str]:
    """The `stems` that have `tag` as whole words: those that are it, else those that end with it, else all."""
    # After an underscore only what begins like a quantisation: K_M is no word of Q4_K_M.
    word = rf"(?<![^-./{'_' * bool(re.match('[a-z]+[0-9]', tag, re.IGNORECASE))}]){re.escape(tag)}"
    patterns = rf"(?:.*/)?{re.escape(tag)}", rf".*(?<!UD-){word}", rf".*{word}", rf".*{word}(?![^-./]).*"
    levels = ([stem for stem in stems if re.fullmatch(pattern, stem, re.IGNORECASE)] for pattern in patterns)
    return next(filter(None, levels), [])
