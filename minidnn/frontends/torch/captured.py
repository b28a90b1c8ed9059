"""A captured program: operations of ATen without writes, and what is written back afterwards."""

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

#: Held by the thread that captures: PyTorch keeps what it does meanwhile where all threads see it.
#: Whoever makes programs holds it all along, so that nobody waits for it who is waited for.
CAPTURING = ForkLock(reentrant=True)


@contextlib.contextmanager
def layers_in_full() -> Iterator[None]:
    """Has PyTorch's layers compute attention by its usual operations, and not by one of its own
    for inference, of which nothing is known here.  For who holds :data:`CAPTURING`."""
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
    """A tensor that a module holds under a name, as it is now: ``holder[key]``."""

    holder: Any
    key: Any
    name: str

    @property
    def tensor(self) -> Any:
        return self.holder[self.key]


def reader_of(held: Iterable[Held]) -> Callable[[], Iterator[Any]]:
    """What gives these tensors as they are whenever it is called."""
    every = list(held)
    return partial(
        map, operator.getitem, [each.holder for each in every], [each.key for each in every]
    )


@dataclass
class Captured:
    """A captured program.

    Attributes:
        module: the operations, reading placeholders.
        held: placeholders that stand for tensors which the module holds.
        given: placeholders that stand for leaves of the arguments, with their places among them.
        constants: all nodes that are held, or computed of what is held alone or of nothing.
        writes: results (by place) that are written back to a placeholder's tensor after a run.
        arranged: how the results are arranged, for ``torch.utils._pytree``.
        untaped: placeholders that are written to where gradients are off.
        counted: placeholders of counters to which a run adds one.
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
        """Whether a run writes to what the module holds or is given."""
        return bool(self.writes or self.counted)

    @property
    def operations(self) -> list[Node]:
        """What is computed at run time, in order."""
        return [
            node
            for node in self.module.graph.nodes
            if node.op not in ("placeholder", "get_attr", "output") and node not in self.constants
        ]

    def label(self, node: Node) -> str:
        """An operation's name, for messages: the path of its module, if that has one."""
        return label_of(node)

    def unknown(self, node: Node, reason: str) -> str:
        """What is said of an operation that is not known for this reason."""
        return f"{self.label(node)}: {key_of(node)}: {reason}"

    def tensor(self, node: Node) -> Any:
        """A constant's tensor as it is now."""
        if node in self.held:
            return self.held[node].tensor
        if node.op == "get_attr":
            return operator.attrgetter(str(node.target))(self.module)
        with torch.no_grad():
            arguments = torch.fx.map_arg((node.args, node.kwargs), self.tensor)
            function: Any = node.target
            return function(*arguments[0], **arguments[1])
