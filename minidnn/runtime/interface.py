"""The interface of an executable: the inputs that it is called with, and the outputs it returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from minidnn.errors import GraphError
from minidnn.graph.types import TensorType

if TYPE_CHECKING:
    from minidnn.graph.ir import Graph, Value


@dataclass(frozen=True)
class Endpoint:
    """The name and type of an input or an output of a network."""

    name: str
    type: TensorType

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> str:
        return self.type.dtype


@dataclass(frozen=True)
class Interface:
    """The inputs and outputs of a network, in order.

    Attributes:
        output_names: the keys of the results, if these are a dict.
    """

    name: str
    inputs: tuple[Endpoint, ...]
    outputs: tuple[Endpoint, ...]
    output_names: tuple[str, ...] | None = None

    def ordered(self, given: Sequence[Any], named: Mapping[str, Any]) -> Sequence[Any]:
        """The inputs in order, whether they were passed by position or by name; GraphError if they
        are not those of the network."""
        if named:
            names = [value.name for value in self.inputs]
            if given or sorted(named) != sorted(names):
                raise GraphError(
                    f"inputs {sorted(named)} given by name and {len(given)} by position; valid "
                    f"is exactly {names}, by name or by position"
                )
            given = [named[name] for name in names]
        if len(given) != len(self.inputs):
            names = [value.name for value in self.inputs]
            raise GraphError(f"{len(given)} inputs given; valid are {len(self.inputs)}: {names}")
        return given


def interface_of(graph: Graph) -> Interface:
    """The interface of a graph."""
    names = graph.output_names
    return Interface(
        graph.name,
        _endpoints(graph.inputs),
        _endpoints(graph.outputs),
        None if names is None else tuple(names),
    )


def _endpoints(values: Sequence[Value]) -> tuple[Endpoint, ...]:
    return tuple(Endpoint(value.name, value.type) for value in values)
