"""Kernels of planes: by the interpreter beside the reference, and one text for all sizes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from minidnn.backends.cpu.operators.kernels import shaped
from minidnn.backends.cuda.kernels import ANY_SIZE, SCHEDULE, Launch
from minidnn.fusion.operations import operation_of
from minidnn.graph import operators as ops
from minidnn.graph.ir import Node, Value
from minidnn.graph.operator import Operator
from minidnn.graph.types import TensorType
from minidnn.kernels.ir import Kernel
from minidnn.kernels.ops import region
from minidnn.kernels.ops.planes import PlaneStrides
from minidnn.kernels.schedule import AxisSchedule
from tests.kernels.by_numpy import run

WINDOWS: tuple[Operator, ...] = (
    ops.MaxPool2d((3, 3), (2, 2), (1, 1)),
    ops.MaxPool2d((2, 3), (1, 2), (1, 0), dilation=(3, 2), ceil_mode=True),
    ops.AvgPool2d((3, 3), (1, 1), (1, 1)),
    ops.AvgPool2d((2, 5), (2, 3), (1, 2), ceil_mode=True, count_include_pad=False),
    ops.AvgPool2d((4, 3), (3, 2), (2, 1), ceil_mode=True),
    ops.AvgPool2d((5, 20), (1, 7), (0, 3), divisor_override=7),
    ops.AvgPool2d((11, 23), (11, 23)),
)
ADAPTIVE: tuple[Operator, ...] = (ops.AdaptiveAvgPool2d((3, 2)), ops.AdaptiveAvgPool2d((1, 5)))
LANES = AxisSchedule(lanes=4, keeps_sizes=True, keeps_unit_sizes=True)
BLOCK = 4


def planar(type: TensorType) -> PlaneStrides:
    """Behind one more channel and before another."""
    _, channels, rows, columns = type.plane
    plane = rows * columns
    strides = (channels + 2) * plane, plane, columns, 1
    return PlaneStrides(type.dtype, channels, rows, columns, *strides, offset=plane)


def channels_last(type: TensorType) -> PlaneStrides:
    _, channels, rows, columns = type.plane
    wide = channels + 2
    strides = rows * columns * wide, 1, columns * wide, wide
    return PlaneStrides(type.dtype, channels, rows, columns, *strides, offset=1)


def blocked(type: TensorType) -> PlaneStrides:
    """In blocks, of which the last is filled up."""
    _, channels, rows, columns = type.plane
    blocks, plane = -(-channels // BLOCK), rows * columns * BLOCK
    strides, padding = (blocks * plane, plane, columns * BLOCK, BLOCK), -channels % BLOCK
    return PlaneStrides(type.dtype, channels, rows, columns, *strides, block=BLOCK, padding=padding)


def within_a_block(type: TensorType) -> PlaneStrides:
    """Behind three channels of the first block."""
    batch, channels, *plane = type.plane
    whole = blocked(TensorType((batch, channels + 3, *plane), type.dtype))
    fields = {name: getattr(whole, name) for name in PlaneStrides.__slots__}
    return PlaneStrides(**fields | {"channels": channels, "first": 3})


Lie = Callable[[TensorType], PlaneStrides]
WAYS: tuple[tuple[AxisSchedule, Lie, Lie], ...] = (
    *((ANY_SIZE, lie, lie) for lie in (planar, channels_last)),
    (ANY_SIZE, planar, channels_last),
    *((SCHEDULE, lie, lie) for lie in (planar, channels_last)),
    *((LANES, lie, lie) for lie in (planar, blocked)),
    *((LANES, planar, blocked), (LANES, blocked, planar), (LANES, planar, within_a_block)),
)


def elements(lies: PlaneStrides, batch: int) -> np.ndarray:
    """Where each element lies."""
    n, c, y, x = np.ogrid[:batch, : lies.channels, : lies.rows, : lies.columns]
    c = c + lies.first
    at = n * lies.image + c // lies.block * lies.channel + c % lies.block
    return np.asarray(at + y * lies.row + x * lies.pixel + lies.offset)


def lowered(
    op: Operator, schedule: AxisSchedule, given: Lie, made: Lie, *shapes: tuple[int, ...]
) -> Kernel:
    values = [Value(TensorType(shape, "float32"), "x") for shape in shapes]
    node = Node(op, values, "node")
    if isinstance(op, ops.AdaptiveAvgPool2d):
        ends = given(values[0].type), made(node.output.type)
        return region.lower_adaptive(shapes[0][0], *ends, schedule)

    def lie(value: Value) -> PlaneStrides:
        return (made if value is node.output else given)(value.type)

    return region.lower([operation_of(node, 0)], [node.output], lie, schedule)[0]


def check(op: Operator, schedule: AxisSchedule, given: Lie, made: Lie, *inputs: np.ndarray) -> None:
    (expected,) = op.reference(*inputs)
    kernel = lowered(op, schedule, given, made, *(x.shape for x in inputs))
    memory = []
    for x in inputs:
        lies = given(TensorType(x.shape, "float32"))
        memory.append(np.full(x.shape[0] * lies.image, np.nan, np.float32))
        memory[-1][elements(lies, x.shape[0])] = x
    lies = made(TensorType(expected.shape, "float32"))
    result = np.full(expected.shape[0] * lies.image, -77, np.float32)
    memory.append(result)
    run(kernel, dict(zip((param.name for param in kernel.params), memory, strict=True)))
    places = elements(lies, expected.shape[0])
    np.testing.assert_array_equal(result[places], expected)
    others = np.delete(result, places)
    zeros = expected.shape[0] * lies.padding * lies.rows * lies.columns
    assert (others == 0).sum() == zeros and (others == -77).sum() == others.size - zeros


@pytest.mark.parametrize("channels", [3, 8])
@pytest.mark.parametrize(("schedule", "given", "made"), WAYS)
@pytest.mark.parametrize("op", WINDOWS, ids=str)
def test_windows(
    op: Operator, schedule: AxisSchedule, given: Lie, made: Lie, channels: int
) -> None:
    x = np.random.default_rng(0).standard_normal((2, channels, 11, 23)).astype(np.float32)
    x[1, 2, 4, 5] = np.nan
    check(op, schedule, given, made, x)


@pytest.mark.parametrize(("schedule", "given", "made"), WAYS[:5])
@pytest.mark.parametrize("op", ADAPTIVE, ids=str)
def test_adaptive_averages(op: Operator, schedule: AxisSchedule, given: Lie, made: Lie) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 11, 43)).astype(np.float32)
    check(op, schedule, given, made, x)


#: An operand that is repeated along some axes.
REPEATED = ((2, 9, 5, 7), (1, 9, 1, 1), (2, 1, 5, 7), (2, 9, 5, 1), (1, 1, 1, 7))


@pytest.mark.parametrize("shape", REPEATED)
@pytest.mark.parametrize(("schedule", "given", "made"), WAYS)
def test_repeated_operands(
    schedule: AxisSchedule, given: Lie, made: Lie, shape: tuple[int, ...]
) -> None:
    random = np.random.default_rng(0)
    x, z = (random.standard_normal(each).astype(np.float32) for each in ((2, 9, 5, 7), shape))
    check(ops.Mul(), schedule, given, made, x, z)


SIZES = ((1, 3, 20, 90), (4, 3, 33, 64), (2, 3, 5, 20), (1, 3, 9, 20), (2, 3, 70, 9000))


@pytest.mark.parametrize(("given", "made"), [way[1:] for way in WAYS[:3]])
@pytest.mark.parametrize("op", (*WINDOWS[:6], *ADAPTIVE), ids=str)
def test_cuda_has_one_text_for_all_sizes(op: Operator, given: Lie, made: Lie) -> None:
    """Of one image, too, and where one row or column is left."""
    launches = [Launch.of(lowered(op, ANY_SIZE, given, made, shape)) for shape in SIZES]
    assert len({launch.source for launch in launches}) == 1
    assert len({launch.numbers for launch in launches}) == len(SIZES)


@pytest.mark.parametrize(("given", "made"), [way[1:] for way in WAYS[5:]])
@pytest.mark.parametrize("op", WINDOWS[:6], ids=str)
def test_the_cpu_has_one_text_for_all_sizes(op: Operator, given: Lie, made: Lie) -> None:
    """But for planes of one position, which lie as vectors do."""
    large = [shape for shape in SIZES if shape[2] > 5]
    kernels = [shaped(lowered(op, LANES, given, made, shape)) for shape in large]
    assert len({kernel.source for kernel in kernels}) == 1
    assert len({tuple(kernel.sizes) for kernel in kernels}) == len(large)


@pytest.mark.parametrize(("given", "made"), [way[1:] for way in WAYS[:3]])
def test_repeated_operands_have_one_text_on_cuda(given: Lie, made: Lie) -> None:
    planes = (5, 7), (1, 9), (9, 1), (1, 1)
    shapes = [((2, 9, *plane), (2, 9, 1, 1)) for plane in planes]
    launches = [Launch.of(lowered(ops.Mul(), ANY_SIZE, given, made, *pair)) for pair in shapes]
    assert len({launch.source for launch in launches}) == 1
