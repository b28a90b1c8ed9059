"""Indented source text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class Code:
    """Lines of source, indented by the blocks that are open."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 0
        self._names = 0

    def line(self, text: str) -> None:
        self._lines.append("  " * self._depth + text)

    def lines(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.line(text)

    def mark(self) -> tuple[int, int]:
        """This place, for :meth:`insert`."""
        return len(self._lines), self._depth

    def insert(self, mark: tuple[int, int], texts: Iterable[str]) -> None:
        """Adds lines where ``mark`` was made; later marks move and must not be used any more."""
        at, depth = mark
        self._lines[at:at] = ["  " * depth + text for text in texts]

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """``head {``, what is added meanwhile, and ``}``."""
        self.line(f"{head} {{")
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            self.line("}")

    def fresh(self) -> str:
        """A variable name that no other call gives."""
        self._names += 1
        return f"t{self._names}"

    def __str__(self) -> str:
        return "\n".join(self._lines) + "\n"
