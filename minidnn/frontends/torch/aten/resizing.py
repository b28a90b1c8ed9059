"""Images of another size, as minidnn/graph/resize.py has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minidnn.frontends.torch.aten.call import AtenCall, leaves, takes
from minidnn.graph import resize
from minidnn.graph.ir import Value


@takes(
    "upsample_nearest1d.vec",
    "upsample_nearest2d.vec",
    "upsample_nearest3d.vec",
)
def upsample_nearest(call: AtenCall) -> Any:
    x = call.tensor("input")
    return resize.nearest(x, _axes(call, x))


@takes(
    "_upsample_nearest_exact1d.vec",
    "_upsample_nearest_exact2d.vec",
    "_upsample_nearest_exact3d.vec",
)
def upsample_nearest_exact(call: AtenCall) -> Any:
    x = call.tensor("input")
    return resize.nearest_exact(x, _axes(call, x))


@takes("upsample_linear1d.vec", "upsample_bilinear2d.vec", "upsample_trilinear3d.vec")
def upsample_linear(call: AtenCall) -> Any:
    x = call.tensor("input")
    return resize.linear(x, _axes(call, x), bool(call["align_corners"]))


@takes("upsample_bicubic2d.vec")
def upsample_bicubic(call: AtenCall) -> Any:
    x = call.tensor("input")
    return resize.cubic(x, _axes(call, x), bool(call["align_corners"]))


leaves(
    "_upsample_bilinear2d_aa.vec",
    "_upsample_bicubic2d_aa.vec",
    why="antialias=True: an output is made of as many elements as images become smaller",
)


def _axes(call: AtenCall, x: Value) -> list[resize.Axis]:
    """The axes behind the channels; it may be said by how much images grow."""
    sizes = list(zip(x.shape[2:], call.result.shape[2:], strict=True))
    factors: Sequence[float | None] = call["scale_factors"] or (None,) * len(sizes)
    return [resize.Axis(*pair, factor) for pair, factor in zip(sizes, factors, strict=True)]
