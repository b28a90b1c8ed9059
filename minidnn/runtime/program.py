"""What every backend makes of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Program(Protocol):
    """A compiled plan."""

    def run(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Computes the outputs, which are given as contiguous arrays of the right type."""
