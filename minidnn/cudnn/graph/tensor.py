"""A symbolic value of a graph."""

from __future__ import annotations

from typing import Protocol

from minidnn.cudnn.graph.spec import TensorSpec


class Owner(Protocol):
    """What a tensor asks of the graph that it belongs to."""

    _tensors: list[TensorSpec]
    _names: dict[int, str]

    def pointwise(self, mode: str, *operands: Tensor | float) -> Tensor: ...

    def add(self, a: Tensor, b: Tensor | float) -> Tensor: ...

    def mul(self, a: Tensor, b: Tensor | float) -> Tensor: ...

    def matmul(self, a: Tensor, b: Tensor) -> Tensor: ...


class Tensor:
    """An input or a result; ``+ - * /`` with tensors and numbers add operations."""

    __slots__ = ("graph", "index")

    def __init__(self, graph: Owner, index: int) -> None:
        self.graph = graph
        self.index = index

    @property
    def spec(self) -> TensorSpec:
        return self.graph._tensors[self.index]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.spec.shape

    @property
    def dtype(self) -> str:
        return self.spec.dtype

    @property
    def strides(self) -> tuple[int, ...]:
        """In elements."""
        return self.spec.strides

    def __add__(self, other: Tensor | float) -> Tensor:
        return self.graph.add(self, other)

    def __sub__(self, other: Tensor | float) -> Tensor:
        return self.graph.pointwise("sub", self, other)

    def __mul__(self, other: Tensor | float) -> Tensor:
        return self.graph.mul(self, other)

    def __truediv__(self, other: Tensor | float) -> Tensor:
        return self.graph.pointwise("div", self, other)

    def __matmul__(self, other: Tensor) -> Tensor:
        return self.graph.matmul(self, other)

    def __repr__(self) -> str:
        name = self.graph._names.get(self.index) or f"t{self.index}"
        return f"{name}: {self.spec}"
