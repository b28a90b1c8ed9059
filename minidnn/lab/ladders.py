"""All ladders, and the shapes that they compute in networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import UnsupportedError
from ..graph.ir import Graph, Node
from ..graph.operators import Conv2d, Linear
from .cpu.ladders import CONVOLUTION_CPU, MEMORY_CPU
from .cuda.arrays import MEMORY, REVERSE, TRANSPOSE
from .cuda.convolution import CONVOLUTION
from .cuda.gradients import INPUT_GRADIENT, WEIGHT_GRADIENT
from .cuda.product import PRODUCT
from .shapes import ConvolutionShape, ProductShape
from .step import Ladder

LADDERS = {
    ladder.name: ladder
    for ladder in (
        *(CONVOLUTION, INPUT_GRADIENT, WEIGHT_GRADIENT),
        *(PRODUCT, MEMORY, REVERSE, TRANSPOSE),
        *(CONVOLUTION_CPU, MEMORY_CPU),
    )
}


def ladder_of(name: str) -> Ladder:
    """The ladder of that name.

    >>> from minidnn import lab
    >>> [step.name for step in lab.ladder_of("product").steps][:3]
    ['naive', 'coalesced', 'tiled']

    Args:
        name: "conv", "input-gradient", "weight-gradient", "product", "memory", "reverse",
            "transpose", "conv-cpu" or "memory-cpu".

    Returns:
        The ladder.

    Raises:
        UnsupportedError: there is none; all names are told.
    """
    if name not in LADDERS:
        raise UnsupportedError(f"no ladder is called {name!r}; there are {', '.join(LADDERS)}")
    return LADDERS[name]


def network_shapes(ladder: Ladder, graph: Graph) -> list[Any]:
    """The shapes of a network's layers that a ladder computes, each once.

    >>> from minidnn.layers.build import to_graph
    >>> from minidnn import lab, layers
    >>> graph = to_graph(layers.Conv2d(3, 8, 3), (1, 3, 10, 10))
    >>> (shape,) = lab.network_shapes(lab.ladder_of("conv"), graph)
    >>> shape.filters, shape.out_height
    (8, 8)

    Args:
        ladder: of convolutions, of their gradients, or of products.
        graph: of the network.

    Returns:
        Shapes for :func:`model` and :func:`run`, in the order of the layers.  Convolutions with
        groups, or whose axes differ in stride, padding or dilation, are left out.

    Raises:
        UnsupportedError: the ladder computes no layers, or the network has none that it can.
    """
    kind = type(ladder.shape)
    if not issubclass(kind, (ConvolutionShape, ProductShape)):
        raise UnsupportedError(f"network: {ladder.name} computes no layers of networks")
    shape_of: Callable[[Node], dict[str, int] | None] = (
        _of_product if issubclass(kind, ProductShape) else _of_convolution
    )
    found = [kind(**sizes) for node in graph.nodes if (sizes := shape_of(node)) is not None]
    if not found:
        raise UnsupportedError(
            f"network: none of its {len(graph.nodes)} layers is one that {ladder.name} computes"
        )
    return list(dict.fromkeys(found))


def _of_convolution(node: Node) -> dict[str, int] | None:
    op = node.op
    if not isinstance(op, Conv2d) or op.groups != 1:
        return None
    edges = {edge for pair in op.padding for edge in pair}
    if len(edges) > 1 or len({*op.stride}) > 1 or len({*op.dilation}) > 1:
        return None
    (batch, channels, height, width), weight = node.inputs[0].shape, node.inputs[1].shape
    return {
        "batch": batch,
        "channels": channels,
        "height": height,
        "width": width,
        "filters": weight[0],
        "window_height": weight[2],
        "window_width": weight[3],
        "stride": op.stride[0],
        "padding": edges.pop(),
        "dilation": op.dilation[0],
    }


def _of_product(node: Node) -> dict[str, int] | None:
    if not isinstance(node.op, Linear):
        return None
    x, y = node.inputs[0].type, node.output.type
    depth = x.shape[-1]
    return {"rows": x.size // depth, "columns": y.shape[-1], "depth": depth}
