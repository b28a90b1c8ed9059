"""Docstrings name what exists: modules, attributes of classes, and arguments of functions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

MODULE = re.compile(r":mod:`~?(\.*)([\w.]+)`")
ENTRY = re.compile(r"^    \*{0,2}(\w+(?:, \w+)*): ", re.MULTILINE)
#: They are attributes that the package loads when they are asked for.
LAZY = {"minidnn.metrics"}


def entries(docstring: str, section: str) -> list[str]:
    """The names that a section of a docstring describes."""
    _, _, rest = docstring.partition(f"{section}:\n")
    found = ENTRY.findall(rest.split("\n\n")[0])
    return [name for names in found for name in names.split(", ")]


def unknown_modules(root: Path, file: Path) -> Iterator[str]:
    package = file.relative_to(root).parts[:-1]
    for dots, name in MODULE.findall(file.read_text("utf-8")):
        above = package[: len(package) - len(dots) + 1] if dots else ()
        path = root.joinpath(*above, *name.split("."))
        is_ours = bool(dots) or name.startswith("minidnn")
        exists = path.is_dir() or path.with_suffix(".py").is_file() or name in LAZY
        if is_ours and not exists:
            yield f"module {dots}{name}"


def known_names(node: ast.ClassDef | ast.FunctionDef) -> set[str]:
    """The attributes that a class may have, or a function's arguments."""
    if isinstance(node, ast.FunctionDef):
        return {n.arg for n in ast.walk(node.args) if isinstance(n, ast.arg)}
    inside = list(ast.walk(ast.Module(node.body[1:], [])))
    names = {n.id for n in inside if isinstance(n, ast.Name)}
    names |= {n.attr for n in inside if isinstance(n, ast.Attribute)}
    return names | {n.name for n in inside if isinstance(n, ast.FunctionDef)}


def unknown_names(file: Path) -> Iterator[str]:
    text = file.read_text("utf-8")
    for section, kind in (("Attributes", ast.ClassDef), ("Args", ast.FunctionDef)):
        if f"{section}:\n" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, kind) or getattr(getattr(node, "args", None), "kwarg", None):
                continue
            if named := entries(ast.get_docstring(node) or "", section):
                known = known_names(node)
                yield from (f"{name} of {node.name}" for name in named if name not in known)


def test_docstrings_name_what_exists(root: Path) -> None:
    wrong = [
        f"{file.relative_to(root)}: {name}"
        for file in sorted((root / "minidnn").rglob("*.py"))
        for name in (*unknown_modules(root, file), *unknown_names(file))
    ]
    assert wrong == []
