"""`duo memory build`: a memory of the user's own texts, for `--memory`."""

from contextlib import closing
from itertools import accumulate
from pathlib import Path

import numpy as np

from duo.cli.commands.options import MemoryOptions
from duo.cli.options import read_file
from duo.cli.terminal.console import note, progress_bar, warn
from duo.config import DEMO, ModelConfig
from duo.errors import ModelError, PromptError, UsageError
from duo.llama.model import Model
from duo.models.demo import demo_pair
from duo.models.hub import find_model
from duo.models.memory_file import MemoryFile, check_place
from duo.speculation.memory import END, MAX_TOKENS, Log

_MOST_BYTES = 2**26  # of a text
_MOST_CHARACTERS = 16  # of a text, for each token that is kept


def memory(options: MemoryOptions) -> int:
    """Add texts to a memory. Returns the exit status. Raises DuoError."""
    action, *names = options.words or [""]
    if action != "build" or len(names) < 2:
        raise UsageError("give a file and texts: duo memory build FILE TEXTFILE... -m MODEL")
    if options.model is None:
        raise UsageError("which model? duo memory build FILE TEXTFILE... -m MODEL")
    check_place(Path(names[0]))
    for name in names[1:]:
        if Path(name).is_dir():
            raise UsageError(f"{name or 'a text without a name'}: name files, such as src/*.py")
        if name != "-" and not Path(name).exists():
            raise PromptError(f"{name}: No such file or directory")
    if options.model == DEMO:
        with progress_bar() as show:
            path = demo_pair(show)[0]
    else:
        path = find_model(options.model)  # a download has a bar of its own
    with progress_bar() as show, closing(Model(ModelConfig(path, devices=()), vocabulary_only=True)) as model:
        try:
            file = MemoryFile(Path(names[0]), model)
        except ModelError as error:
            said = f"{error} (is the order FILE TEXTFILE?)" if "is no memory" in str(error) else str(error)
            raise ModelError(said) from None
        texts, sizes = list[Log](), list[int]()
        for n_read, name in enumerate(reversed(names[1:])):  # of too many texts, the last are kept
            show(f"reading {Path(name).name}", n_read, len(names) - 1 if len(names) > 2 else None)
            if (n_left := MAX_TOKENS - sum(map(len, texts))) <= 0:
                break
            text = read_file(name, limit=_MOST_BYTES)[1]
            end = text[-_MOST_CHARACTERS * n_left :]
            tokens = model.tokenize(end, add_bos=False, parse_special=False)
            texts.append(np.array(tokens[-n_left:], np.uint32))
            sizes.append(1 + len(tokens) if end == text else 2 * MAX_TOKENS)
        found = file.add(texts[::-1])
    n_whole = sum(n <= len(found) for n in accumulate(sizes))
    if missing := names[1 : len(names) - n_whole]:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        warn(f"a memory has at most {MAX_TOKENS} tokens: all or part of {', '.join(missing[:3])}{more} is left out")
    note(f"{file.path}: {(found != END).sum()} tokens of {file.model}; use it with --memory {file.path}")
    return 0
