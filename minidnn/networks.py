"""From the ``network`` argument of :func:`minidnn.compile`, whatever it is, to a graph."""

from __future__ import annotations

import os
from typing import Any

from minidnn._habits import instead_of_layer
from minidnn.compiled_file import ALREADY, is_compiled
from minidnn.dynamic.dim import NamedShapes, bound, dims_of
from minidnn.errors import GraphError
from minidnn.frontends.frontend import ask, open_model, own_sizes
from minidnn.frontends.zoo import advice
from minidnn.graph.checker import check, check_own_shape
from minidnn.graph.ir import Graph
from minidnn.graph.types import plain
from minidnn.layers.arguments import Shapes
from minidnn.layers.build import to_graph
from minidnn.layers.layer import Layer
from minidnn.sizes.sized_graph import SizedGraph

__all__ = ["any_graph_of", "check_has_no_size", "checked_graph", "graph_of", "with_own_sizes"]


def with_own_sizes(network: Any, shape: Any) -> tuple[Any, Any]:
    """Returns a network and its shapes.  If none are given, these are the network's own shapes with
    named sizes, if its file declares any; the file has been read then."""
    if shape is not None or isinstance(network, (Layer, Graph)):
        return network, shape
    return own_sizes(network)


def any_graph_of(
    network: Layer | Graph | Any, shape: NamedShapes | None = None
) -> Graph | SizedGraph:
    """Returns the graph of what :func:`minidnn.compile` takes: with named sizes, given or the
    network's own, one graph for all of their ranges.

    Raises what compiling raises for these arguments, and GraphError, which names the node, for a
    network in which something other than shapes and integers depends on the sizes.
    """
    given: Any
    network, given = with_own_sizes(network, plain(shape))
    if shape is None and isinstance(network, SizedGraph):
        return network
    dims = dims_of(given)
    if not dims:
        return graph_of(network, given)
    check_has_no_size(network, given)
    opened = network if isinstance(network, Layer) else open_model(network)
    if all(dim.least == dim.most for dim in dims):
        return graph_of(opened, bound(given, {dim.name: dim.least for dim in dims}))
    return SizedGraph.traced(lambda sizes: graph_of(opened, bound(given, sizes)), dims)


def check_has_no_size(network: Any, shapes: Any) -> None:
    """GraphError if the network is a graph, whose sizes are fixed and cannot be named."""
    if isinstance(network, Graph):
        raise GraphError(
            f"shape={shapes!r:.100} names sizes, and graph {network.name!r} has its own; valid is "
            "the network or the file that the graph was made of"
        )


def graph_of(
    network: Layer | Graph | Any, shape: Shapes | None = None, *, states: bool = False
) -> Graph:
    """Returns the graph of what :func:`minidnn.compile` takes; raises what that raises for it.

    ``states`` makes the parameters of layers states instead of constants.
    """
    shape = plain(shape)
    if isinstance(network, Graph):
        if shape is not None:
            check_own_shape(network, shape)
        return checked_graph(network)
    if not isinstance(network, Layer):
        asked = ask(network)
        if asked.found is None:
            valid = "".join(f", or {takes}" for takes in asked.takes)
            hint = ""
            if isinstance(network, (str, os.PathLike)):
                hint = ALREADY if is_compiled(network) else advice(os.fspath(network))
            raise GraphError(
                f"network={network!r:.80} is a {type(network).__name__}; {hint}valid are layers "
                f"and graphs{valid}{asked.complaint}{instead_of_layer(network)}"
            )
        return checked_graph(asked.found.to_graph(network, shape))
    if shape is None:
        raise GraphError(
            "shape=None; valid is the input's shape with the batch, such as (1, 3, 224, 224)"
        )
    return to_graph(network, shape, states=states)


def checked_graph(graph: Graph) -> Graph:
    """Returns the graph if it is legal and has no empty values; raises GraphError otherwise."""
    check(graph)
    for node in graph.nodes:
        for value in (*node.inputs, *node.outputs):
            if value.type.size == 0:
                raise GraphError(f"{value!r} has no elements; valid are sizes of at least 1")
    return graph
