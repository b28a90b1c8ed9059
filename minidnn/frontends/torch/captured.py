"""A captured program: a functional graph of ATen operations, and the values to write back.

:mod:`.functional` makes such programs; converters and :mod:`minidnn.acceleration` read them.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule, Node

from minidnn._forks import ForkLock
from minidnn._torch_internals import unguarded
from minidnn.frontends.torch.aten.call import key_of
from minidnn.frontends.torch.convert import label_of

#: The lock of the thread that captures, as PyTorch keeps the state of a capture in globals.
#: A thread that makes programs holds it from beginning to end, so that no two threads can wait for
#: each other.
CAPTURING = ForkLock(reentrant=True)


@contextlib.contextmanager
def layers_in_full() -> Iterator[None]:
    """Switches off PyTorch's fast path for attention layers, whose fused inference operations are
    not known here.  The caller holds :data:`CAPTURING`."""
    mha = torch.backends.mha
    before = mha.get_fastpath_enabled()
    mha.set_fastpath_enabled(False)
    try:
        with unguarded(mha.get_fastpath_enabled):
            yield
    finally:
        mha.set_fastpath_enabled(before)


@dataclass(frozen=True)
class Held:
    """A parameter, buffer or constant of a module, read as ``holder[key]`` whenever it is needed.

    Attributes:
        holder: the mapping that holds the tensor, such as a module's ``_parameters``.
        key: its key in ``holder``.
        name: its path in the module, for messages and for names in graphs.
    """

    holder: Any
    key: Any
    name: str

    @property
    def tensor(self) -> Any:
        return self.holder[self.key]


def reader_of(held: Iterable[Held]) -> Callable[[], Iterator[Any]]:
    """Returns a function that iterates over the tensors that are held when it is called."""
    every = list(held)
    return partial(
        map, operator.getitem, [each.holder for each in every], [each.key for each in every]
    )


@dataclass
class Captured:
    """A program captured for arguments of fixed shapes.

    Attributes:
        module: the FX graph of the operations.
        held: placeholders of tensors that the captured module holds.
        given: placeholders of the arguments' leaves, with the positions of these leaves.
        constants: nodes whose values are known before a run: those that are held, and those that
            are computed from such nodes alone or without operands.
        writes: results that are written back after a run: position of the result, and placeholder
            of the tensor that it is written to.
        arranged: the structure (``TreeSpec``) of the results, for ``torch.utils._pytree``.
        untaped: placeholders whose tensors are written to without gradient mode.
        counted: placeholders of counters that a run increments by one.
    """

    module: GraphModule
    held: dict[Node, Held]
    given: dict[Node, int]
    constants: dict[Node, None]
    writes: list[tuple[int, Node]]
    arranged: Any
    untaped: frozenset[Node] = frozenset()
    counted: list[Node] = field(default_factory=list)

    @property
    def has_writes(self) -> bool:
        """Whether a run writes to tensors of the module or to arguments."""
        return bool(self.writes or self.counted)

    @property
    def operations(self) -> list[Node]:
        """The nodes that are computed at run time, in the program's order."""
        return [
            node
            for node in self.module.graph.nodes
            if node.op not in ("placeholder", "get_attr", "output") and node not in self.constants
        ]

    def label(self, node: Node) -> str:
        """An operation's name, for messages: the path of its module, if that has one."""
        return label_of(node)

    def unknown(self, node: Node, reason: str) -> str:
        """The message about an operation that is left for this reason."""
        return f"{self.label(node)}: {key_of(node)}: {reason}"

    def tensor(self, node: Node) -> Any:
        """The current tensor of a constant; it is computed where the module does not hold it."""
        if node in self.held:
            return self.held[node].tensor
        if node.op == "get_attr":
            return operator.attrgetter(str(node.target))(self.module)
        with torch.no_grad():
            arguments = torch.fx.map_arg((node.args, node.kwargs), self.tensor)
            function: Any = node.target
            return function(*arguments[0], **arguments[1])
