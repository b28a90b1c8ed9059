"""Digests of the files that decide what GPU tests run and find, folder by folder.

A digest says nothing about comments, doc-strings and formatting: it is taken of the syntax tree of
Python's files, written in one way by all versions of Python, and of C++ without comments.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

#: Folders whose files run beside what runs on a GPU, and never decide it.
UNRELATED = (
    "minidnn/backends/cpu",
    "minidnn/batch",
    "minidnn/data",
    "minidnn/lab/cpu",
    "minidnn/pages",
    "minidnn/serving",
)
SUFFIXES = (".py", ".cu", ".cuh", ".h", ".c")
_MARK = re.compile(r"\bmark\.gpu\b")
_NATIVE_COMMENT = re.compile(
    r"""("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|//[^\n]*|/\*.*?\*/""", re.DOTALL
)


def gpu_test_files(root: Path = ROOT) -> list[str]:
    """Returns the test files with tests marked ``gpu``, as paths below the root."""
    texts = {file: file.read_text("utf-8") for file in (root / "tests").rglob("test_*.py")}
    marked = (file for file, text in texts.items() if _MARK.search(text) and _is_marked(text))
    return sorted(file.relative_to(root).as_posix() for file in marked)


def _is_marked(text: str) -> bool:
    """Whether the code names the mark, not a string in it."""
    named = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute))
    return any(node.attr == "gpu" and ast.unparse(node).endswith("mark.gpu") for node in named)


def source_files(root: Path = ROOT) -> list[Path]:
    """Returns the files of which digests are taken: those of minidnn and of the zoo, the GPU tests
    and what stands in their folders and in those from which they import."""
    found = [
        file
        for top in ("minidnn", "models")
        for file in (root / top).rglob("*")
        if file.suffix in SUFFIXES and not is_apart(file, root)
    ]
    return sorted({*found, *_test_files(root)})


def is_apart(file: Path, root: Path) -> bool:
    """Whether a file lies in one of the folders that decide nothing."""
    return any(file.is_relative_to(root / folder) for folder in UNRELATED)


def _test_files(root: Path) -> set[Path]:
    waiting = [root / name for name in gpu_test_files(root)]
    waiting += (root / "tests").glob("*.py")
    found: set[Path] = set()
    while waiting:
        file = waiting.pop()
        if file in found:
            continue
        found.add(file)
        imported = set(_imported(file, root)) if file.suffix == ".py" else set()
        waiting += imported
        for folder in {file.parent, *(each.parent for each in imported)}:
            helpers = (each for each in folder.glob("*") if each.suffix in SUFFIXES)
            waiting += (each for each in helpers if not each.name.startswith("test_"))
    return found


def _imported(file: Path, root: Path) -> Iterator[Path]:
    """The files below tests/ that a Python file imports, anywhere in it."""
    modules: list[Path] = []
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            base = file.parents[node.level - 1] if node.level else root
            place = base.joinpath(*(node.module or "").split("."))
            modules += [place, *(place / name.name for name in node.names)]
        elif isinstance(node, ast.Import):
            modules += [root.joinpath(*name.name.split(".")) for name in node.names]
    for module in modules:
        if module.is_relative_to(root / "tests"):
            files = (module.with_suffix(".py"), module / "__init__.py")
            yield from (each for each in files if each.exists())


def digests(root: Path = ROOT) -> dict[str, str]:
    """Returns a digest of the files of each folder, without those of folders in it."""
    areas: dict[str, hashlib._Hash] = {}
    for file in source_files(root):
        area = file.parent.relative_to(root).as_posix()
        digest = areas.setdefault(area, hashlib.sha256())
        digest.update(f"{file.name}\0{digest_of(file)}\0".encode())
    return {area: digest.hexdigest()[:16] for area, digest in sorted(areas.items())}


def digest_of(file: Path) -> str:
    """Returns the digest of what a file says to an interpreter or a compiler."""
    text = file.read_text("utf-8")
    meaning = python_meaning(text) if file.suffix == ".py" else native_meaning(text)
    return hashlib.sha256(meaning.encode()).hexdigest()


def native_meaning(text: str) -> str:
    """Returns C++ without comments, empty lines and indentation."""
    bare = _NATIVE_COMMENT.sub(lambda found: found[1] or " ", text)
    lines = (" ".join(line.split()) for line in bare.splitlines())
    return "\n".join(line for line in lines if line)


def python_meaning(text: str) -> str:
    """Returns a syntax tree without doc-strings and places, in the same way by all Pythons."""
    parts: list[str] = []
    _write(ast.parse(text), parts.append)
    return "".join(parts)


def _write(node: object, add: Callable[[str], None]) -> None:
    if isinstance(node, list):
        for each in node:
            _write(each, add)
            add(",")
    elif isinstance(node, ast.AST):
        add(f"{type(node).__name__}(")
        for name in node._fields:
            value: Any = getattr(node, name, None)
            if name == "body" and isinstance(value, list):
                value = _without_docstring(node, value)
            elif name == "values" and isinstance(node, ast.JoinedStr):
                value = _merged(value)
            # Versions differ in fields that are rarely given.
            if value is not None and value != [] and name != "kind":
                add(f"{name}=")
                _write(value, add)
                add(";")
        add(")")
    else:
        add(repr(node))


def _without_docstring(node: ast.AST, body: list[ast.stmt]) -> list[ast.stmt]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
        return body[1:]
    return body


def _merged(values: list[ast.expr]) -> list[ast.expr]:
    """The parts of an f-string; whether texts beside each other are one differs by version."""
    merged: list[ast.expr] = []
    for value in values:
        last = merged[-1] if merged else None
        if isinstance(value, ast.Constant) and isinstance(last, ast.Constant):
            merged[-1] = ast.Constant(str(last.value) + str(value.value))
        elif not (isinstance(value, ast.Constant) and value.value == ""):
            merged.append(value)
    return merged
