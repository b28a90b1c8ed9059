"""One ATen operation to be taken: its operands as values, its other arguments as numbers."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch.fx import Node

from minidnn._torch_internals import OpOverload
from minidnn.graph.ir import Constant, Value
from minidnn.graph.trace import current_trace
from minidnn.graph.types import BYTES, ITEMSIZE, TensorType, numpy_dtype

#: Begins the reason to leave an operation that computes something else while a network is trained.
TRAINING = "it is in training mode"


class Refused(Exception):
    """Why an operation is left to PyTorch."""


#: Gives the value or values of an operation; raises :class:`Refused` or GraphError.
Converter = Callable[["AtenCall"], Any]


class Values(Protocol):
    """The values of captured nodes."""

    def __getitem__(self, node: Node) -> Any: ...


class AtenCall:
    """An operation's arguments by the names in its schema, defaults filled in."""

    def __init__(self, node: Node, values: Values) -> None:
        self.node = node
        self._values = values
        self._arguments = arguments_of(node)

    def __getitem__(self, name: str) -> Any:
        """An argument that is no tensor."""
        given = self._arguments[name]
        for part in given if isinstance(given, (list, tuple)) else (given,):
            if isinstance(part, (Node, torch.SymInt, torch.SymFloat)):
                raise Refused(f"{name} is computed at run time")
        return list(given) if isinstance(given, (list, tuple)) else given

    def number(self, name: str) -> float | int:
        """An argument that is a number (an int stays one)."""
        given = self[name]
        if isinstance(given, bool) or not isinstance(given, (int, float)):
            raise Refused(f"{name}={given!r} is no number")
        return given

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all arguments."""
        return tuple(self._arguments)

    def is_tensor(self, name: str) -> bool:
        return isinstance(self._arguments[name], Node)

    def tensor(self, name: str) -> Value:
        """An operand; a number where a tensor may stand is refused."""
        found = self.optional(name)
        if found is None:
            raise Refused(f"{name}={self._arguments[name]!r} is no tensor")
        return found

    def optional(self, name: str) -> Value | None:
        """An operand that may be absent."""
        given = self._arguments[name]
        return self._values[given] if isinstance(given, Node) else None

    def tensors(self, name: str) -> list[Value]:
        """The operands of a list."""
        return [self._values[each] for each in self._arguments[name]]

    def constant(self, name: str) -> Constant:
        """An operand that is known before the program runs."""
        found = self.tensor(name)
        if not isinstance(found, Constant):
            raise Refused(f"{name} is computed at run time")
        return found

    def weight(self, name: str) -> Value:
        """An operand that is known before the program runs, but in a network that is trained,
        whose weights are given to every run."""
        return self.tensor(name) if self.trained else self.constant(name)

    def optional_weight(self, name: str) -> Value | None:
        """Such an operand that may be absent."""
        return None if self._arguments[name] is None else self.weight(name)

    @property
    def trained(self) -> bool:
        """Whether the network is trained: it does what it does in training alone."""
        return current_trace().training

    def filled(self, name: str, type: TensorType, value: float) -> Constant:
        """A constant for an operand that is absent, of one number throughout."""
        dtype = numpy_dtype(type.dtype)
        return Constant(type, f"{self.node.name}.{name}", lambda: np.full(type.shape, value, dtype))

    def reads(self, place: int) -> bool:
        """Whether anything reads that one of several results."""
        places = [user.args[1] for user in self.node.users if user.target is operator.getitem]
        return place in places or len(places) < len(self.node.users)

    @property
    def result(self) -> TensorType:
        """The type that PyTorch gives the (first) result."""
        value = self.node.meta["val"]
        while isinstance(value, (list, tuple)):
            value = value[0]
        return type_of(value)

    def ints(self, name: str, count: int) -> tuple[int, ...]:
        """A list of that many ints, or of one that stands for them."""
        given = self[name]
        if len(given) not in (1, count):
            raise Refused(f"{name}={given} is for {len(given)} axes; known are {count}")
        return tuple(given) if len(given) == count else (given[0],) * count

    def pair(self, name: str) -> tuple[int, int]:
        """A list of one or two ints, as two."""
        first, second = self.ints(name, 2)
        return (first, second)

    def axis(self, name: str, rank: int) -> int:
        """An axis, counted from the front."""
        return int(self[name]) % max(rank, 1)


def arguments_of(node: Node) -> dict[str, Any]:
    """The arguments of a node by the names in its operator's schema, defaults filled in."""
    target: Any = node.target
    found: dict[str, Any] = {}
    for i, argument in enumerate(target._schema.arguments):
        if i < len(node.args):
            found[argument.name] = node.args[i]
        elif argument.name in node.kwargs:
            found[argument.name] = node.kwargs[argument.name]
        else:
            found[argument.name] = argument.default_value
    return found


def type_of(tensor: Any) -> TensorType:
    """The type of a PyTorch tensor; Refused if the graph has no such type."""
    if not isinstance(tensor, torch.Tensor):
        raise Refused(f"it gives a {type(tensor).__name__}, not a tensor")
    if tensor.layout != torch.strided:
        raise Refused(f"a tensor has layout {tensor.layout}")
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in ITEMSIZE or dtype in BYTES:  # whose arithmetic wraps in PyTorch
        raise Refused(f"a tensor has dtype {dtype}")
    sizes: Sequence[Any] = tuple(tensor.shape)
    if not all(isinstance(size, int) for size in sizes):
        raise Refused(f"a tensor has the shape {tuple(sizes)}, which depends on data")
    if math.prod(sizes) == 0:
        raise Refused(f"a tensor of shape {tuple(sizes)} has no elements")
    return TensorType(tuple(sizes), dtype)


@dataclass(frozen=True)
class KnownOperator:
    """An ATen operation that is known."""

    name: str
    converter: Converter
    condition: str


_TAKEN: dict[str, KnownOperator] = {}


def takes(*names: str, when: str = "") -> Callable[[Converter], Converter]:
    """Registers a converter for ATen overloads; ``when`` says on what condition, for the docs."""

    def register(converter: Converter) -> Converter:
        for name in names:
            assert name not in _TAKEN, name
            _TAKEN[name] = KnownOperator(name, converter, when)
        return converter

    return register


_LEFT: dict[str, str] = {}


def leaves(*names: str, why: str) -> None:
    """Says why these ATen overloads are left, beyond that they are not known."""
    _LEFT.update(dict.fromkeys(names, why))


def why_left(name: str) -> str:
    """Why an operation that is not taken is left."""
    return _LEFT.get(name, "it is not known")


def known() -> dict[str, KnownOperator]:
    """All known operations by name: "conv2d.default"."""
    return dict(sorted(_TAKEN.items()))


def key_of(node: Node) -> str:
    """The name under which an operation is looked up: "conv2d.default" for ATen's."""
    target: Any = node.target
    if isinstance(target, OpOverload):
        return str(target).removeprefix("aten.")
    return str(getattr(target, "__name__", target))
