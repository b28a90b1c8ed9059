"""What source code names of PyTorch: dotted names, and attributes that begin with an underscore."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any


def dotted_names(tree: ast.AST) -> dict[str, int]:
    """Every name of PyTorch's that a module imports or reads, as far as attributes follow each
    other, and a line where it does."""
    found: dict[str, int] = {}
    local: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "torch":
                    local[alias.asname or "torch"] = alias.name if alias.asname else "torch"
                    found.setdefault(alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            for alias in node.names:
                local[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                found.setdefault(f"{node.module}.{alias.name}", node.lineno)
    for node in ast.walk(tree):
        path = _path(node)
        if path and path[0] in local and isinstance(node, ast.expr):
            found.setdefault(".".join([local[path[0]], *path[1:]]), node.lineno)
    return found


def _path(node: ast.AST) -> list[str]:
    """``a.b.c`` -> a, b, c; so is ``sys.modules["a"].b.c``."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "sys.modules":
        parts.append(ast.literal_eval(node.slice) if isinstance(node.slice, ast.Constant) else "")
    elif isinstance(node, ast.Name):
        parts.append(node.id)
    else:
        return []
    return parts[::-1]


def private_attributes(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Attributes of other objects than ``self`` that begin with one underscore."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and re.match("_[^_]", node.attr):
            owner = node.value
            if not isinstance(owner, ast.Name) or owner.id not in ("self", "cls"):
                yield node.attr, node.lineno


def private_texts(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Texts that may be the names of such attributes, as ``getattr`` takes them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if_name = re.match("_[^_]", node.value)
            yield from [(node.value, node.lineno)] if if_name else []


def defined_names(source: str) -> set[str]:
    """What begins with an underscore and a module itself defines: functions, classes, variables and
    attributes that it writes to."""
    pattern = r"\b(?:def|class) (_\w+)|(?:^|[\s.])(_\w+)(?:: [^=\n]+)?(?: = |, |$)"
    found = re.findall(pattern, source, re.MULTILINE)
    return {name for pair in found for name in pair if name}


def found_in_torch(name: str) -> bool:
    """Whether PyTorch, as it is installed, has what a dotted name says."""
    parts = name.split(".")
    value: Any = import_module(parts[0])
    for i, part in enumerate(parts[1:], 2):
        if not hasattr(value, part):
            try:
                import_module(".".join(parts[:i]))
            except ImportError:
                return False
        # A function may have the name of the module that it comes from.
        module = sys.modules.get(".".join(parts[:i]))
        is_module = module is not None and i < len(parts) and not hasattr(
            getattr(value, part), parts[i]
        )  # fmt: skip
        value = module if is_module else getattr(value, part)
    return True


def sources_of(root: Path) -> dict[str, str]:
    """The modules of minidnn and of the zoo, by path."""
    paths = sorted(path for top in ("minidnn", "models") for path in (root / top).rglob("*.py"))
    return {str(path.relative_to(root)): path.read_text(encoding="utf-8") for path in paths}
