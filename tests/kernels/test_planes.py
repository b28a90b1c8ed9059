"""Windows and averages of planes: by the interpreter beside the reference, and one text for all
sizes."""

from __future__ import annotations

import numpy as np
import pytest

from minidnn.backends.cuda.kernels import ANY_SIZE, SCHEDULE, Launch
from minidnn.backends.cuda.tensor import tensor_of
from minidnn.fusion.operations import operation_of
from minidnn.graph import operators as ops
from minidnn.graph.ir import Node, Value
from minidnn.graph.layout import CHANNELS_LAST, PLANAR, Layout
from minidnn.graph.operator import Operator
from minidnn.graph.types import TensorType
from minidnn.kernels.ir import Kernel
from minidnn.kernels.ops import adaptive, region
from minidnn.kernels.ops.planes import Planes
from minidnn.kernels.render.numpy import run
from minidnn.kernels.schedule import AxisSchedule

OPERATORS: tuple[Operator, ...] = (
    ops.MaxPool2d((3, 3), (2, 2), (1, 1)),
    ops.MaxPool2d((2, 3), (1, 2), (1, 0), dilation=(3, 2), ceil_mode=True),
    ops.AvgPool2d((3, 3), (1, 1), (1, 1)),
    ops.AvgPool2d((2, 5), (2, 3), (1, 2), ceil_mode=True, count_include_pad=False),
    ops.AvgPool2d((4, 3), (3, 2), (2, 1), ceil_mode=True),
    ops.AvgPool2d((5, 20), (1, 7), (0, 3), divisor_override=7),
    ops.AdaptiveAvgPool2d((3, 2)),
    ops.AdaptiveAvgPool2d((1, 5)),
)


def lies(type: TensorType, layout: Layout, wide: bool) -> Planes:
    """``wide``: among two more channels."""
    batch, channels, *plane = type.shape
    memory = TensorType((batch, channels + 2, *plane), type.dtype) if wide else type
    return tensor_of(type, layout, memory, int(wide))


def lowered(
    op: Operator, shape: tuple[int, ...], layout: Layout, schedule: AxisSchedule
) -> tuple[Kernel, Planes, Planes]:
    x = Value(TensorType(shape, "float32"), "x")
    node = Node(op, (x,), "node")
    ends = lies(x.type, layout, True), lies(node.output.type, layout, False)
    if isinstance(op, ops.AdaptiveAvgPool2d):
        return adaptive.lower(shape[0], *ends, schedule), *ends
    lie = dict(zip((x, node.output), ends, strict=True))
    return region.lower([operation_of(node, 0)], [x], [node.output], lie, schedule), *ends


def elements(planes: Planes, batch: int) -> np.ndarray:
    """Where each element lies."""
    n, c, y, x = np.ogrid[:batch, : planes.channels, : planes.rows, : planes.columns]
    at = n * planes.image + c * planes.channel + y * planes.row + x * planes.pixel
    return np.asarray(at + planes.offset)


@pytest.mark.parametrize("schedule", [ANY_SIZE, SCHEDULE], ids=["any_size", "sized"])
@pytest.mark.parametrize("layout", [PLANAR, CHANNELS_LAST], ids=str)
@pytest.mark.parametrize("op", OPERATORS, ids=str)
def test_the_interpreter_gives_the_reference(
    op: Operator, layout: Layout, schedule: AxisSchedule
) -> None:
    shape = (2, 3, 11, 43)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    x[1, 2, 4, 5] = np.nan
    (expected,) = op.reference(x)
    kernel, given, made = lowered(op, shape, layout, schedule)
    memory = np.full(2 * given.image, np.nan, np.float32)
    memory[elements(given, 2)] = x
    result = np.full(expected.size, -77, np.float32)
    source, target = (param.name for param in kernel.params)
    run(kernel, {source: memory, target: result})
    np.testing.assert_array_equal(result[elements(made, 2)], expected)


@pytest.mark.parametrize("layout", [PLANAR, CHANNELS_LAST], ids=str)
@pytest.mark.parametrize("op", OPERATORS, ids=str)
def test_kernels_of_other_sizes_are_one_text(op: Operator, layout: Layout) -> None:
    """Of one image, too, and where one row or column is left."""
    shapes = (1, 3, 20, 90), (4, 3, 33, 64), (2, 3, 5, 20), (1, 3, 9, 20)
    launches = [Launch.of(lowered(op, shape, layout, ANY_SIZE)[0]) for shape in shapes]
    assert len({launch.source for launch in launches}) == 1
    assert len({launch.numbers for launch in launches}) == len(shapes)
