"""What every backend makes of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from minidnn.graph.ir import Node


class Program(Protocol):
    """A compiled plan."""

    def run(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Computes the outputs, which are given as contiguous arrays of the right type."""


@runtime_checkable
class TimedProgram(Program, Protocol):
    """A program that can time what it runs, which a backend may offer."""

    def seconds_of_nodes(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> dict[Node, float]:
        """Computes the outputs; how long each node that takes a kernel took, in order."""

    def bound_seconds(self, operations: int, bytes: int, contraction: bool) -> float:
        """The least time for that much work by the machine's measured rates; a contraction's
        operations are multiply-adds."""
