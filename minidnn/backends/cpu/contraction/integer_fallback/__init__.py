"""Contractions of whole numbers: the sums of products of bytes, to the last bit, in int32.

All values lie as NCHW.  A first kernel packs four channels of each pixel into a word, padded as the
windows want it, so that one instruction of VNNI adds four products to the sum of each lane.  Where
a processor lacks it ISPC puts the same sums together exactly.  What is wider than a byte is
multiplied number by number.

Lanes are pixels of a convolution, whose words lie side by side, and features of a linear layer.
"""

from __future__ import annotations

from math import prod

from minidnn.fusion.contraction import Parts, parts_of, why_not_point_by_point
from minidnn.fusion.region import FusedContraction
from minidnn.fusion.stacks import reads_otherwise
from minidnn.graph.ir import Constant, Graph, Node
from minidnn.graph.operator import Contraction, is_whole_product
from minidnn.graph.operators import Conv2d, Linear
from minidnn.graph.types import BYTES

from ...isa import Isa
from ...stage import PrintedContraction
from ...tensor import ELEMENTS, STORED
from .convolution import IntegerConvolution
from .kernel import MOST_EXACT, IntegerLinear


def why_not_integer(parts: Parts) -> str | None:
    """Why there is no kernel for a contraction of whole numbers; None if there is."""
    if not isinstance(parts.node.op, (Conv2d, Linear)):
        return f"{parts.node.op.name} is no convolution or linear layer"
    if not all(isinstance(value, Constant) for value in (*parts.node.inputs[1:], *parts.vectors)):
        return "its weights are computed, and bytes must be known"
    if parts.prologue:
        return "its input is packed as it is"
    return None


def why_not_in_blocks(parts: Parts, isa: Isa) -> str | None:
    """Why a contraction of whole numbers is not computed on blocks of channels, as those of floats
    are; None if it is."""
    x, weight = (value.type for value in parts.node.inputs[:2])
    op = parts.node.op
    if not isa.quads:
        return f"{isa.name} has no instructions for it"
    if x.dtype not in BYTES or weight.dtype != "int8":
        return "it multiplies more than bytes"
    if any(value.dtype not in ELEMENTS for value in (parts.result, *parts.others)):
        return f"its result is {parts.result.dtype}"
    if not isinstance(op, Conv2d) or op.groups == 1:
        return None
    outputs, inputs, *taps = weight.shape
    if outputs // op.groups >= isa.lanes and inputs % isa.lanes == 0:
        return None
    if inputs * prod(taps) > MOST_EXACT:
        return "its groups have few channels, and their sums more digits than float32"
    return "its groups have few channels, and a bias" if parts.node.inputs[2:] else None


def why_not_behind(contraction: Node, node: Node) -> str | None:
    """Why ``node`` cannot be computed on sums of whole numbers; None if it can."""
    if (reason := why_not_point_by_point(contraction, node)) is not None:
        return reason
    if node.output.dtype not in ("float32", *BYTES):
        return f"it gives {node.output.dtype}"
    if any(value.dtype not in STORED for value in node.inputs):
        return "it reads what no kernel reads"
    if not all(isinstance(value, Constant) for value in node.inputs[len(node.tensors) :]):
        return "its vectors are computed"
    return reads_otherwise(node)


def multiplies_bytes(graph: Graph) -> bool:
    """Whether a graph has contractions of whole numbers, which have instructions of their own."""
    contractions = (n for n in graph.nodes if isinstance(n.op, (Contraction, FusedContraction)))
    found = (parts_of(node).node for node in contractions)
    return any(is_whole_product(*(value.type for value in node.inputs)) for node in found)


def print_integer(parts: Parts, isa: Isa, any_size: bool = False) -> PrintedContraction:
    """The kernels for a contraction of whole numbers by a constant weight, whose values lie as
    NCHW, each by itself; with ``any_size`` those of any number of rows and pixels."""
    if isinstance(parts.node.op, Linear):
        return IntegerLinear(parts, isa, any_size).print()
    return IntegerConvolution(parts, isa, any_size).print()
