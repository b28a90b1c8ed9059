"""Read from the source, without running it, which module of minidnn imports which."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

# The face imports everything lazily by name; whoever imports it depends on that table only.
FACE = "minidnn"


def modules_of(root: Path) -> dict[str, Path]:
    """Return every module of minidnn, the zoo included, with its file, sorted by name."""
    found = {}
    for package, folder in (("minidnn", root / "minidnn"), ("minidnn.models", root / "models")):
        for path in folder.rglob("*.py"):
            parts = [package, *path.relative_to(folder).with_suffix("").parts]
            if parts[-1] == "__init__":
                parts.pop()
            found[".".join(parts)] = path
    return dict(sorted(found.items()))


def imports_of(
    module: str, source: str, is_package: bool, known: set[str], deferred: bool = True
) -> list[str]:
    """Return the modules among ``known`` that ``module`` imports.

    ``from a.b import c`` is an import of ``a.b.c`` when that is a module and of ``a.b`` otherwise.
    ``import_module("a.b")`` counts like the statement.  With ``deferred``, imports within
    functions and under TYPE_CHECKING count as well: they are dependencies, though not at import
    time.
    """
    targets: dict[str, None] = {}
    for node in _walk(ast.parse(source), deferred):
        for name in _named(node, module, is_package):
            while name and name not in known:
                name = name.rpartition(".")[0]
            if name and name != module:
                targets[name] = None
    return sorted(targets)


def _walk(node: ast.AST, deferred: bool) -> Iterator[ast.AST]:
    yield node
    if not deferred and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return
    if not deferred and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, deferred)


def _named(node: ast.AST, module: str, is_package: bool) -> Iterator[str]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.name
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            parts = module.split(".")
            cut = len(parts) - node.level + (1 if is_package else 0)
            base = ".".join([*parts[:cut], *([node.module] if node.module else [])])
        for alias in node.names:
            yield f"{base}.{alias.name}"
    elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
        yield from (str(given.value) for given in node.args if isinstance(given, ast.Constant))


def import_graph(root: Path, deferred: bool = True) -> dict[str, list[str]]:
    """Return, for every module of minidnn but the face, the modules of minidnn it imports."""
    graph = {}
    files = modules_of(root)
    for module, path in files.items():
        if module != FACE:
            source, is_package = path.read_text(encoding="utf-8"), path.name == "__init__.py"
            graph[module] = imports_of(module, source, is_package, set(files), deferred)
    return graph


def find_cycle(graph: Mapping[str, list[str]]) -> list[str] | None:
    """Return one import circle, first module repeated at the end, or None."""
    done: set[str] = set()
    for start in graph:
        path: list[str] = []
        pending = [(start, iter(graph[start]))] if start not in done else []
        while pending:
            module, rest = pending[-1]
            if len(path) < len(pending):
                path.append(module)
            following = next((name for name in rest if name not in done), None)
            if following is None:
                done.add(module)
                path.pop()
                pending.pop()
            elif following in path:
                return [*path[path.index(following) :], following]
            else:
                pending.append((following, iter(graph.get(following, []))))
    return None
