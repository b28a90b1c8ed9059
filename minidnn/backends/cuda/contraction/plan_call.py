"""A plan of cuDNN's as a row of the table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ....cudnn.graph.execution import Execution


@dataclass(frozen=True)
class PlanCall:
    """A plan; no work in flight writes the inputs in the places ``settled``, such as weights."""

    plan: Execution
    settled: tuple[int, ...] = ()

    def bind(self, addresses: Sequence[int]) -> Callable[[], None]:
        """Runs on CuPy's current stream.

        Args:
            addresses: of the inputs, the output and the workspace.
        """
        *tensors, workspace = addresses
        return self.plan.bind_pointers(tensors, workspace, self.plan, self.settled)
