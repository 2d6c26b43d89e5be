"""`duo memory build`: a memory of the user's own texts, for `--memory`."""

from contextlib import closing
from itertools import accumulate
from pathlib import Path

from duo.cli.commands.options import MemoryOptions
from duo.cli.options import read_file
from duo.cli.terminal.console import note, progress_bar
from duo.config import DEMO, ModelConfig
from duo.errors import ModelError, UsageError
from duo.llama.model import Model
from duo.models.demo import demo_pair
from duo.models.hub import find_model
from duo.models.memory_file import MemoryFile, check_place
from duo.speculation.memory import END

_MOST_BYTES = 2**26  # of a text, of which the last tenth is kept


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
    texts = [read_file(name, limit=_MOST_BYTES)[1] for name in names[1:]]
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
        tokens, ends = list[list[int]](), list(accumulate(map(len, texts), initial=0))
        for name, text, n_read in zip(names[1:], texts, ends, strict=False):
            show(f"reading {Path(name).name}", n_read, ends[-1] if len(texts) > 1 else None)
            tokens.append(model.tokenize(text, add_bos=False, parse_special=False))
        found = file.add(tokens)
    note(f"{file.path}: {(found != END).sum()} tokens of {file.model}; use it with --memory {file.path}")
    return 0
