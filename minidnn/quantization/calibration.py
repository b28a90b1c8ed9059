"""The network that is quantized, for one size or for ranges, and the data it is calibrated with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minidnn.compiler import compile as compile_network
from minidnn.dynamic.dim import Dim, Template, sizes_of
from minidnn.errors import GraphError
from minidnn.graph.ir import Graph
from minidnn.runtime.interface import interface_of
from minidnn.sizes.sized_graph import SizedGraph, input_templates

Batch = tuple[np.ndarray, ...]

#: For values and nodes of the graph that was measured those of another size.
Twins = Mapping[Any, Any]

_FEW_SIZES = 4
"""Of batches with more sizes not each gets a program of its own."""


@dataclass(frozen=True)
class Calibration:
    """A network and data.

    Attributes:
        graph: the network's for one size: all that is found out is said of its values and nodes.
        sized: the same for all sizes in ranges, if it has any.
        device: which computes.
    """

    graph: Graph
    sized: SizedGraph | None
    batches: Sequence[Batch]
    device: str | None

    def made(self, change: Callable[[Graph, Twins], Graph]) -> Graph | SizedGraph:
        """What becomes of the network, for one size or for all.

        ``change`` is given the graph of a size, and what stands in it for values and nodes.
        """
        if self.sized is None:
            return change(self.graph, _twins(self.graph, self.graph))
        return self.sized.mapped(lambda graph: change(graph, _twins(self.graph, graph)))

    def program(self, change: Callable[[Graph, Twins], Graph]) -> Callable[..., Any]:
        """What computes :meth:`made` for the arrays of any batch."""
        network = self.made(change)
        if isinstance(network, Graph):
            return compile_network(network, device=self.device)
        sizes = {tuple(array.shape for array in batch) for batch in self.batches}
        own: dict[str, Any] = {"background": len(sizes) > _FEW_SIZES}
        return compile_network(network, None, device=self.device, **own)


def _twins(one: Graph, other: Graph) -> Twins:
    values = zip(one.values, other.values, strict=True)
    return {**dict(values), **dict(zip(one.nodes, other.nodes, strict=True))}


def batches_of(graph: Graph, sized: SizedGraph | None, data: object) -> list[Batch]:
    """The data as tuples with an array for each input; GraphError if they are not that."""
    given = [data] if isinstance(data, np.ndarray) else data
    if not isinstance(given, Iterable):
        raise GraphError(
            f"data={data!r:.80} is a {type(data).__name__}; valid are an array and an iterable of "
            "batches"
        )
    templates = input_templates(graph if sized is None else sized)
    batches = []
    for number, batch in enumerate(given):
        arrays = tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)
        _check_shapes(graph, templates, [np.shape(array) for array in arrays], number)
        batches.append(tuple(np.asarray(array) for array in arrays))
    if not batches:
        raise GraphError("data has no batches; valid is at least one")
    return batches


def _check_shapes(
    graph: Graph, templates: Sequence[Template], shapes: list[tuple[int, ...]], number: int
) -> None:
    is_sized = any(isinstance(size, Dim) for template in templates for size in template)
    if is_sized and len(shapes) == len(templates):
        try:
            sizes_of(interface_of(graph).inputs, templates, shapes)
        except GraphError as error:
            raise GraphError(f"data: batch {number}: {error}") from None
    elif shapes != list(templates):
        raise GraphError(
            f"data: batch {number} has arrays of shapes {shapes}; valid are {list(templates)}, as "
            "the network's inputs; with a minidnn.Dim as the first size of shape= batches may "
            "differ"
        )
