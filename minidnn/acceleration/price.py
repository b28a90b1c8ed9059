"""What a part of a network gains: where PyTorch runs what is around it, entering and leaving a part
costs time, and a part that gains less is better left.

The figures are for the CPU engine beside eager PyTorch, float32, two threads: rough ones, from
parts of timm's networks that were timed both ways on two cores of Zen 3 (convnextv2_atto,
mobilevit_xxs, vit_tiny, resnetv2_50).  They err on the side of leaving.
"""

from __future__ import annotations

from collections.abc import Callable

from torch.fx import Node

from minidnn.frontends.torch.convert import Part
from minidnn.graph import ir
from minidnn.graph import operators as ops

#: Seconds of a part's call beside its work: Python, and memory for its results.
_CALL = 60e-6
#: Seconds a byte at a part's ends, for moving elements to and from the layouts that it computes
#: in; and where PyTorch's tensor does not lie in the order of its axes, so that it is copied too.
_MOVED, _COPIED = 80e-12, 250e-12
#: Seconds that an operation saves by being part of a region, beside a pass over memory.
_FUSED = 10e-6
#: Seconds a byte of such a pass.
_PASS = 1 / 45e9
#: Seconds that a convolution, and another contraction, saves; and for each scalar operation.
_CONVOLUTION, _CONVOLVED = 30e-6, 1.5e-12
_CONTRACTION, _CONTRACTED = 20e-6, 0.5e-12


def gain(part: Part, is_contiguous: Callable[[Node], bool]) -> float:
    """The seconds by which a part is expected to be faster than PyTorch's operations, with its ends
    in PyTorch; it is less than 0 for a part that is slower.

    is_contiguous: whether the tensor of a captured node lies in the order of its axes.
    """
    return sum(map(_saved, part.graph.nodes)) - _crossing(part, is_contiguous)


def _saved(node: ir.Node) -> float:
    types = [tuple(value.type for value in each) for each in (node.inputs, node.outputs)]
    if node.op.kind == "movement" or isinstance(node.op, (ops.Identity, ops.Dropout)):
        return 0.0  # mostly views, there as here
    cost = node.op.cost(*types)
    if isinstance(node.op, ops.Conv2d):
        return _CONVOLUTION + cost.operations * _CONVOLVED
    if node.op.kind == "contraction":
        return _CONTRACTION + cost.operations * _CONTRACTED
    return _FUSED + cost.bytes * _PASS


def _crossing(part: Part, is_contiguous: Callable[[Node], bool]) -> float:
    ends = [
        *zip(part.inputs, part.graph.inputs, strict=True),
        *zip(part.outputs, part.graph.outputs, strict=True),
    ]
    moved = (
        value.type.bytes * (_MOVED if is_contiguous(node) else _COPIED) for node, value in ends
    )
    return _CALL + sum(moved)
