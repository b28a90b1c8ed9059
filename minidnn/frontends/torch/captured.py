"""A captured program: operations of ATen without writes, and what is written back afterwards.

A program may compute in half precision: under autocast, or of a module that is in one.  What is
known converts as if all floating-point values were float32, and the program says of each operation
which half its results are in PyTorch.  What is between two such results is then free to be in
either.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule, Node

from minidnn._forks import ForkLock
from minidnn._torch_internals import pytree, unguarded
from minidnn.errors import UnsupportedError
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


#: The dtypes, by their names in graphs.
HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
_NAMES = {dtype: name for name, dtype in HALVES.items()}

_NARROW = "minidnn_narrow"


def autocast_to(memory: str) -> str | None:
    """To which half autocast makes PyTorch cast on a device ("cpu", "cuda:0") now; None where it
    is off."""
    kind = memory.partition(":")[0]
    if kind not in ("cpu", "cuda") or not torch.is_autocast_enabled(kind):
        return None
    return _NAMES.get(torch.get_autocast_dtype(kind))


def uncached(memory: str) -> AbstractContextManager[Any]:
    """Within, autocast keeps nothing that it has cast: not of the tensors without data that a
    capture is made with."""
    if autocast_to(memory) is None:
        return nullcontext()
    return torch.autocast(memory.partition(":")[0], cache_enabled=False)


def is_narrow(tensor: Any) -> bool:
    """Whether something is a tensor in half precision."""
    return isinstance(tensor, torch.Tensor) and tensor.dtype in _NAMES


def widen(captured: Captured) -> str | None:
    """Makes of all values in half precision such in float32, and notes what they were; gives the
    half, or None where there is no such value.

    UnsupportedError if there are two kinds of halves.
    """
    found: dict[str, None] = {}

    def wide(tensor: torch.Tensor) -> torch.Tensor:
        if not is_narrow(tensor):
            return tensor
        found[_NAMES[tensor.dtype]] = None
        mode: Any = getattr(tensor, "fake_mode", None) or nullcontext()
        with mode, torch.no_grad():
            return tensor.to(torch.float32)

    for node in captured.module.graph.nodes:
        if "val" in node.meta:
            node.meta[_NARROW] = is_narrow(node.meta["val"])
            node.meta["val"] = pytree.tree_map_only(torch.Tensor, wide, node.meta["val"])
    if len(found) > 1:
        raise UnsupportedError("it has values in float16 and values in bfloat16")
    return next(iter(found), None)


def was_narrow(node: Node) -> bool:
    """Whether an operation's result is in half precision in PyTorch."""
    return bool(node.meta.get(_NARROW))
