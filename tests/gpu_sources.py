"""Digests of the files that decide what GPU tests run and find, folder by folder.

A digest says nothing about comments, doc-strings and formatting: it is taken of the syntax tree of
Python's files, written in one way by all versions of Python, and of C++ without comments.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

#: Folders of what never runs in a GPU test, or only beside it: to change them changes no result.
APART = (
    "minidnn/backends/cpu",
    "minidnn/batch",
    "minidnn/data",
    "minidnn/pages",
    "minidnn/serving",
)
NATIVE = (".cu", ".cuh", ".h", ".c")
_MARK = re.compile(r"\bmark\.gpu\b")
_NATIVE_COMMENT = re.compile(
    r"""("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|//[^\n]*|/\*.*?\*/""", re.S
)


def gpu_test_files(root: Path = ROOT) -> list[str]:
    """The test files with tests marked ``gpu``, as paths below the root."""
    files = sorted((root / "tests").rglob("test_*.py"))
    texts = {file: file.read_text(encoding="utf-8") for file in files}
    return [
        file.relative_to(root).as_posix()
        for file, text in texts.items()
        if _MARK.search(text) and _is_marked(ast.parse(text))
    ]


def _is_marked(tree: ast.AST) -> bool:
    """Whether code, not a text in it, names the mark."""
    return any(
        isinstance(node, ast.Attribute) and ast.unparse(node).endswith("mark.gpu")
        for node in ast.walk(tree)
    )


def source_files(root: Path = ROOT) -> list[Path]:
    """All files that a digest is taken of: minidnn's, the zoo's, GPU tests and their helpers."""
    apart = tuple(f"{folder}/" for folder in APART)
    tests = set(gpu_test_files(root))
    found = []
    for top in ("minidnn", "models", "tests"):
        for file in (root / top).rglob("*"):
            name = file.relative_to(root).as_posix()
            if file.suffix not in (".py", *NATIVE) or name.startswith(apart):
                continue
            if top == "tests" and file.name.startswith("test_") and name not in tests:
                continue
            found.append(file)
    return sorted(found)


def digests(root: Path = ROOT) -> dict[str, str]:
    """A digest for each area (a folder's files, without those of folders below it)."""
    areas: dict[str, hashlib._Hash] = {}
    for file in source_files(root):
        area = file.parent.relative_to(root).as_posix()
        digest = areas.setdefault(area, hashlib.sha256())
        digest.update(f"{file.name}\0{digest_of(file)}\0".encode())
    return {area: digest.hexdigest()[:16] for area, digest in sorted(areas.items())}


def digest_of(file: Path) -> str:
    """The digest of what a file means."""
    text = file.read_text(encoding="utf-8")
    meaning = python_meaning(text) if file.suffix == ".py" else native_meaning(text)
    return hashlib.sha256(meaning.encode()).hexdigest()


def native_meaning(text: str) -> str:
    """C++ without comments, empty lines and blanks at the ends of lines."""
    bare = _NATIVE_COMMENT.sub(lambda found: found[1] or " ", text)
    lines = (" ".join(line.split()) for line in bare.splitlines())
    return "\n".join(line for line in lines if line)


def python_meaning(text: str) -> str:
    """Python's syntax tree without doc-strings and places; the same for all versions of Python."""
    return "".join(_written(ast.parse(text)))


def _written(node: object) -> Iterator[str]:
    if isinstance(node, list):
        for each in node:
            yield from _written(each)
            yield ","
    elif isinstance(node, ast.AST):
        yield f"{type(node).__name__}("
        for name in node._fields:
            value = getattr(node, name, None)
            if name == "body" and isinstance(value, list):
                value = _without_docstring(node, value)
            elif isinstance(node, ast.JoinedStr) and name == "values":
                value = _merged(value)
            # Versions differ in fields that are rarely given.
            if value is None or value == []:
                continue
            yield f"{name}="
            yield from _written(value)
            yield ";"
        yield ")"
    else:
        yield repr(node)


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
            merged[-1] = ast.Constant(f"{last.value}{value.value}")
        elif not (isinstance(value, ast.Constant) and value.value == ""):
            merged.append(value)
    return merged
