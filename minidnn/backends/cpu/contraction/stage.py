"""What a printed contraction is: kernels that run one after another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...codegen.kernel import KernelSource
from ..execution.buffers import Array


@dataclass(frozen=True)
class Workspace:
    """Memory that the stages of one contraction share, ``offset`` bytes from its start."""

    offset: int


#: What a kernel's pointer points to: a tensor by its number (the source, the further tensors, the
#: result), workspace, or a constant: packed weights, vectors or numbers (float32, one-dimensional).
#: Constants are functions, called when the program is built, since packing takes time.
Pointer = int | Workspace | Callable[[], Array]


@dataclass(frozen=True)
class Stage:
    """One kernel over its tasks.

    Attributes:
        tasks: how many tasks a run has; ``grain`` of them in one call are best.
        scratch_bytes: memory of a thread.
    """

    source: KernelSource
    pointers: tuple[Pointer, ...]
    tasks: int
    grain: int = 1
    scratch_bytes: int = 0


@dataclass(frozen=True)
class PrintedContraction:
    """A printed contraction.

    Attributes:
        algorithm: its name, "direct" or "F(4x4, 3x3)".
        workspace_bytes: memory that the stages share.
    """

    algorithm: str
    stages: tuple[Stage, ...]
    workspace_bytes: int = 0

    @property
    def constants(self) -> tuple[Callable[[], Array], ...]:
        """The constants of all stages."""
        pointers = (p for stage in self.stages for p in stage.pointers)
        return tuple(p for p in pointers if callable(p))
