"""What code prints while it is captured: a program would not print it again."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

from minidnn.frontends.torch.reach import Place

#: The key of what is printed, among other places.
KEY = "standard output"


class Printed(Place):
    """How often this thread has printed; others' output is not counted."""

    def __init__(self) -> None:
        self.count = 0
        super().__init__(self, "the standard output")

    def now(self) -> dict[Any, Any]:
        return {0: self.count}

    def put(self, before: dict[Any, Any]) -> None:
        """What was printed stays so."""

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Within, what this thread prints is counted."""
        if sys.stdout is None:  # as in programs without a console
            yield
            return
        with contextlib.redirect_stdout(_Counting(sys.stdout, self)):
            yield


class _Counting:
    """A stream that counts what one thread writes to another stream."""

    def __init__(self, stream: Any, printed: Printed) -> None:
        self._stream = stream
        self._printed = printed
        self._thread = threading.get_ident()

    def write(self, text: str) -> Any:
        if threading.get_ident() == self._thread:
            self._printed.count += 1
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
