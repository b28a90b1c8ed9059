"""Tasks: a kernel of a node, and what its pointers point to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ...graph.ir import Node, Value
from ..codegen.kernel import KernelSource
from .contraction import Choice, Question, Workspace
from .execution.program import HostSum

#: What a kernel's pointer points to: a value, the workspace that the kernels of a node share, or
#: a constant that is packed for it.
Pointer = Value | Workspace | Callable[[], np.ndarray]


@dataclass(frozen=True)
class Task:
    """One kernel over its tasks, for a node."""

    node: Node
    #: Its text, the name of a function of the runner, or what calls back into Python.
    source: KernelSource | str | HostSum
    pointers: tuple[Pointer, ...]
    tasks: int
    grain: int = 1
    scratch_bytes: int = 0
    workspace_bytes: int = 0
    #: The group of nodes to which it belongs, if that is computed image after image: ``tasks`` are
    #: those of one image then, and pointers are those of the first.
    group: tuple[Node, ...] | None = None
    #: Of a contraction: what was chosen for what.
    question: Question | None = None
    choice: Choice | None = None
