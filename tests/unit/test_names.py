"""Names: one class, one name; and only the command knows its options."""

import ast
import re
from collections import Counter
from collections.abc import Iterator

from tests.command import ROOT

# They run other programs, or tell what to type.
WITH_OPTIONS = {
    "bench/contestants.py",
    "config/engine_config.py",
    "config/generation_config.py",
    "diagnose/host.py",
    "remote/connection.py",
    "http/guard.py",
    "llama/build.py",
    "server/endpoints.py",
}
# A dash or two in front of a letter, where a word begins.
OPTION = re.compile(r"(?<![^\s(\"'`])--?(?!inf\b)[a-zA-Z]")


PACKAGE = ROOT / "duo"
MODULES = {str(path.relative_to(PACKAGE)): ast.parse(path.read_bytes(), str(path)) for path in PACKAGE.rglob("*.py")}


def _texts(node: ast.AST) -> Iterator[str]:
    """The strings of a program, without its docstrings; something stands for what an f-string puts in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    for child in ast.iter_child_nodes(node):
        is_docstring = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
        is_part = isinstance(node, ast.JoinedStr) and isinstance(child, ast.Constant)
        if not is_docstring and not is_part:
            yield from _texts(child)


def test_no_class_name_is_used_twice() -> None:
    nodes = (node for tree in MODULES.values() for node in ast.walk(tree))
    counts = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    assert [name for name, n in counts.items() if n > 1] == []


def test_only_the_command_names_its_options() -> None:
    """A program that uses duo as a library has parameters, not options."""
    modules = {module: tree for module, tree in MODULES.items() if not module.startswith("cli/")}
    found = {(module, text) for module, tree in modules.items() for text in _texts(tree) if OPTION.search(text)}
    assert [(module, text) for module, text in found if module not in WITH_OPTIONS] == []
    assert {module for module, _ in found} == WITH_OPTIONS
