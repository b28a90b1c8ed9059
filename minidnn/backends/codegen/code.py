"""Indented source text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class Code:
    """A buffer of source lines, each indented by the number of blocks that are open."""

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
        """Returns the current position, as :meth:`insert` takes it."""
        return len(self._lines), self._depth

    def insert(self, mark: tuple[int, int], texts: Iterable[str]) -> None:
        """Inserts lines at a position that :meth:`mark` returned; marks of later positions become
        invalid."""
        position, depth = mark
        self._lines[position:position] = ["  " * depth + text for text in texts]

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Opens a block with ``head {``, indents what is added within the context, and closes it
        with ``}``."""
        self.line(f"{head} {{")
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            self.line("}")

    @contextmanager
    def unrolled(self, head: str, times: int | None = None) -> Iterator[None]:
        """As :meth:`block`, for a loop that CUDA's compiler unrolls, ``times`` times if given."""
        self.line("#pragma unroll" if times is None else f"#pragma unroll {times}")
        with self.block(head):
            yield

    def unrolled_line(self, loop: str) -> None:
        """Adds a loop whose body is one statement, and that CUDA's compiler unrolls."""
        self.line("#pragma unroll")
        self.line(loop)

    def fresh(self) -> str:
        """Returns a variable name that no other call returns."""
        self._names += 1
        return f"t{self._names}"

    def __str__(self) -> str:
        return "\n".join(self._lines) + "\n"
