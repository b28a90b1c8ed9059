"""Counts the lines of code of Python files: without blank lines, comments and docstrings.

python -m tools.code_lines [FOLDER ...]

Templates and data that are written as code count.  Native sources are counted beside, all their
lines that are neither blank nor a comment.
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

_NATIVE = {".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".ispc"}
_SILENT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def code_lines(text: str) -> int:
    """The lines of a Python file on which there is code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _SILENT:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - set(_docstring_lines(ast.parse(text))))


def _docstring_lines(tree: ast.Module) -> Iterator[int]:
    """The lines of texts that are statements: docstrings, and those below attributes."""
    for node in ast.walk(tree):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield from range(value.lineno, (value.end_lineno or value.lineno) + 1)


def native_lines(text: str) -> int:
    """The lines of a native source that are neither blank nor a comment of whole lines."""
    count, within = 0, False
    for line in map(str.strip, text.splitlines()):
        if within or line.startswith("/*"):
            within = "*/" not in line
        elif line and not line.startswith("//"):
            count += 1
    return count


def counted(folder: Path) -> tuple[Counter[str], Counter[str], int]:
    """Lines of code and files by the first folder below, and lines of native code."""
    lines: Counter[str] = Counter()
    files: Counter[str] = Counter()
    native = 0
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".py":
            inner = path.relative_to(folder).parts
            part = inner[0] if len(inner) > 1 else "."
            lines[part] += code_lines(path.read_text("utf-8"))
            files[part] += 1
        elif path.suffix in _NATIVE:
            native += native_lines(path.read_text("utf-8"))
    return lines, files, native


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folders", nargs="*", type=Path, default=[Path("minidnn")])
    for folder in parser.parse_args().folders:
        lines, files, native = counted(folder)
        for part, count in lines.most_common():
            print(f"{count:8,} lines of code in {files[part]:4} files  {folder / part}")
        whole = f"{lines.total():8,} lines of code in {files.total():4} files  {folder}"
        print(f"{whole}, and {native:,} of native code")


if __name__ == "__main__":
    main()
