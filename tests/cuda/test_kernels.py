"""The kernels around sequences, run by the emulator: element-wise, copies, softmax, pooling."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from minidnn.backends.cuda import copy
from minidnn.backends.cuda.contraction.gather import Gathering, print_gather
from minidnn.backends.cuda.kernels import SCHEDULE, Launch
from minidnn.backends.cuda.normalize import print_softmax
from minidnn.backends.cuda.pointwise import CHAIN, Argument, PointStep, print_pointwise
from minidnn.backends.cuda.product.matmul import print_product
from minidnn.backends.cuda.reduce import averages_images, print_image_average
from minidnn.backends.cuda.strided import print_broadcast, strided_of
from minidnn.backends.cuda.tensor import Tensor, tensor_of
from minidnn.graph import operators as ops
from minidnn.graph.expression import argument, linearize
from minidnn.graph.ir import Node, Value
from minidnn.graph.layout import CHANNELS_LAST, PLANAR, Layout
from minidnn.graph.types import TensorType, rounded_to
from minidnn.kernels.ops import region
from minidnn.memory import Annotations, BufferView
from tests.cuda.cards import H200
from tests.sampling import mixed

from .arrays import STORED, numbers, stored, strided
from .emulator.run import Emulated

RANDOM = np.random.default_rng(0)
DTYPES = ("float32", "float16", "bfloat16")


def numbers_of(shape: Sequence[int], dtype: str) -> np.ndarray:
    drawn = RANDOM.standard_normal(shape).astype(np.float32)
    return rounded_to(dtype, drawn).astype(np.float32)


def memory_of(tensor: Tensor, array: np.ndarray | None, images: int) -> np.ndarray:
    """Memory with a tensor's elements, NaN between them."""
    size = tensor.offset + images * tensor.image + tensor.channels * tensor.channel + 64
    whole = np.full((size * tensor.itemsize + 16) // 2 * 2, 0xFF, np.uint8)
    shift = -whole.ctypes.data % 16
    memory = whole[shift : shift + size * tensor.itemsize].view(STORED[tensor.dtype])
    if array is not None:
        strided(memory, tensor, images)[...] = stored(array, tensor.dtype)
    return memory


def read(memory: np.ndarray, tensor: Tensor, images: int) -> np.ndarray:
    return np.asarray(numbers(strided(memory, tensor, images), tensor.dtype), np.float32)


def run(launch: Launch, arguments: Sequence[np.ndarray], folder: Path) -> None:
    run_all([(launch, arguments)], folder)


def run_all(launches: Sequence[tuple[Launch, Sequence[np.ndarray]]], folder: Path) -> None:
    """Compiles all kernels together and runs one after the other."""
    emulated = Emulated([launch.source for launch, _ in launches], folder)
    for launch, arguments in launches:
        emulated.launch(launch, arguments)


def slices(shape: tuple[int, ...], dtype: str, layout: Layout) -> list[Tensor]:
    """A value by itself, and in a wider one."""
    type = TensorType(shape, dtype)
    wide = TensorType((shape[0], shape[1] + 11, *shape[2:]), dtype)
    return [tensor_of(type, layout), tensor_of(type, layout, wide, 8)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layouts", [(PLANAR, PLANAR), (CHANNELS_LAST, CHANNELS_LAST)], ids=str)
@pytest.mark.parametrize("round_steps", [False, True])
def test_pointwise(
    dtype: str, layouts: tuple[Layout, Layout], round_steps: bool, tmp_path: Path
) -> None:
    """relu(x * scale + other), into a slice and not."""
    shape = (2, 16, 3, 4)
    scale = linearize(argument(0) * argument(1) + argument(2))
    steps = [
        PointStep(scale, (CHAIN, Argument("vector", 0), Argument("tensor", 1))),
        PointStep(linearize(ops.ReLU().expression()), (CHAIN,)),
    ]
    x, other = numbers_of(shape, dtype), numbers_of(shape, dtype)
    vector = numbers_of((16,), dtype)
    expected = rounded_to(dtype, np.maximum(x * vector[:, None, None] + other, 0))
    launches, results = [], []
    for source in slices(shape, dtype, layouts[0]):
        for target in slices(shape, dtype, layouts[1]):
            launch = print_pointwise(2, [source, source], target, [dtype], steps, round_steps)
            arguments = [memory_of(source, a, 2) for a in (x, other)]
            memory = memory_of(target, None, 2)
            launches.append((launch, [*arguments, stored(vector, dtype), memory]))
            results.append((memory, target))
    run_all(launches, tmp_path)
    for memory, target in results:
        np.testing.assert_array_equal(read(memory, target, 2), expected)


@pytest.mark.sampled(3)
@pytest.mark.race
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("plenty", [1, copy.PLENTY])
@pytest.mark.parametrize(("channels", "plane"), [(3, (5, 9)), (40, (5, 9)), (72, (8, 12))])
def test_copies_between_layouts(
    dtype: str,
    plenty: int,
    channels: int,
    plane: tuple[int, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By packs of every size, in tiles that do not fit."""
    monkeypatch.setattr(copy, "PLENTY", plenty)
    shape = (2, channels, *plane)
    launches, results = [], []
    for one in (PLANAR, CHANNELS_LAST):
        for other in (PLANAR, CHANNELS_LAST):
            x = numbers_of(shape, dtype)
            for source in slices(shape, dtype, one):
                for target in slices(shape, dtype, other):
                    memory = memory_of(target, None, 2)
                    launch = copy.print_copy(2, source, target)
                    launches.append((launch, [memory_of(source, x, 2), memory]))
                    results.append((memory, target, x))
    run_all(launches, tmp_path)
    for memory, target, x in results:
        np.testing.assert_array_equal(read(memory, target, 2), x)


def test_packs_are_as_wide_as_alignment_allows() -> None:
    def words(channels: int, plane: tuple[int, int], last: int) -> list[str]:
        type = TensorType((2, channels, *plane), "float16")
        wide = TensorType((2, last, *plane), "float16")
        source, target = tensor_of(type, PLANAR), tensor_of(type, CHANNELS_LAST, wide)
        text = copy.print_copy(2, source, target).source.text
        return sorted(set(re.findall(r"md_pack<(\d+)", text)))

    assert words(64, (8, 8), 64) == ["8"]
    assert words(64, (7, 7), 64) == ["1", "8"]
    assert words(64, (7, 14), 100) == ["2", "4"]
    assert words(63, (8, 8), 63) == ["1", "8"]


MOST_IN_X, MOST_ELSEWHERE = 2**31 - 1, 65535
"""Blocks that a launch may have."""


def check_blocks(launch: Launch, least: int) -> None:
    x, y, z = launch.grid
    assert x <= MOST_IN_X and max(y, z) <= MOST_ELSEWHERE and x * y * z >= least, launch.grid


@pytest.mark.parametrize(("rows", "columns"), [(2048, 2048), (4096, 4096)])
def test_planes_of_any_size_are_moved(rows: int, columns: int) -> None:
    type = TensorType((2, 16, rows, columns), "float16")
    planar, last = tensor_of(type, PLANAR), tensor_of(type, CHANNELS_LAST)
    for source, target in ((planar, last), (last, planar)):
        check_blocks(copy.print_copy(2, source, target), 2 * rows * columns // 64)


def test_any_number_of_matrices_is_multiplied() -> None:
    """As the windows of an attention that looks at few pixels: 64 of an image, of 8 heads each."""
    for dtype in ("float16", "float32"):
        sizes = ((49, 32), (32, 49))
        a, b = (
            Value(TensorType((256, 512, *size), dtype), "ab"[i]) for i, size in enumerate(sizes)
        )
        launches, _ = print_product(Node(ops.MatMul(), [a, b], "product"), H200)
        for launch in launches:
            check_blocks(launch, 256 * 512)


@pytest.mark.sampled(3)
@pytest.mark.race
@pytest.mark.parametrize("op", [ops.Softmax(1), ops.LogSoftmax(1), ops.Softmax(0), ops.Softmax(2)])
def test_softmax(op: ops.Softmax, tmp_path: Path) -> None:
    for shape in ((3, 70, 2), (2, 300)):
        if op.dim >= len(shape):
            continue
        x = numbers_of(shape, "float32")
        x[0, 0] = np.nan
        given = Value(TensorType(shape), "x")
        launch = print_softmax(op, given.type, strided_of(Annotations(), given))
        y = np.zeros(shape, np.float32)
        run(launch, [x, y], tmp_path)
        np.testing.assert_allclose(y, op.reference(x)[0], rtol=3e-6, atol=1e-6)


@pytest.mark.parametrize("layout", [PLANAR, CHANNELS_LAST], ids=str)
def test_adaptive_pooling(layout: Layout, tmp_path: Path) -> None:
    x = numbers_of((2, 9, 7, 10), "float32")
    op = ops.AdaptiveAvgPool2d((3, 4))
    (expected,) = op.reference(x)
    source = slices(x.shape, "float32", layout)[1]
    target = slices(expected.shape, "float32", layout)[1]
    memory = memory_of(target, None, 2)
    launch = Launch.of(region.lower_adaptive(2, source, target, SCHEDULE))
    run(launch, [memory_of(source, x, 2), memory], tmp_path)
    np.testing.assert_array_equal(read(memory, target, 2), expected)


AVERAGED = [
    *product(
        [(2, 24, 37, 9), (1, 33, 3, 5), (3, 136, 2, 1), (2, 5, 8, 16)], [PLANAR, CHANNELS_LAST]
    ),
    ((1, 2, 300, 4), PLANAR),
]


@pytest.mark.sampled(3)
@pytest.mark.race
@pytest.mark.parametrize(("of", "dtype"), mixed(3, AVERAGED, DTYPES), ids=str)
def test_averages_of_whole_planes(
    of: tuple[tuple[int, int, int, int], Layout], dtype: str, tmp_path: Path
) -> None:
    """The same bits as the reference, which adds row after row."""
    shape, layout = of
    x = numbers_of(shape, dtype)
    op = ops.AvgPool2d(shape[2:], shape[2:])
    expected = rounded_to(dtype, op.reference(x)[0]).astype(np.float32)
    for source, target in (
        [tensor_of(TensorType(s, dtype), layout) for s in (x.shape, expected.shape)],
        [slices(s, dtype, layout)[1] for s in (x.shape, expected.shape)],
    ):
        assert averages_images(shape[0], source)
        memory = memory_of(target, None, shape[0])
        launch = print_image_average(shape[0], source, target, H200)
        run(launch, [memory_of(source, x, shape[0]), memory], tmp_path)
        np.testing.assert_array_equal(read(memory, target, shape[0]), expected)


def test_planes_whose_sums_fit_no_shared_memory_are_averaged_otherwise() -> None:
    for layout, rows in ((PLANAR, 1 << 14), (CHANNELS_LAST, 1 << 10)):
        assert not averages_images(1, tensor_of(TensorType((1, 8, rows, 2)), layout))


def test_operands_broadcast_and_lie_in_slices(tmp_path: Path) -> None:
    a, b = Value(TensorType((2, 3, 4)), "a"), Value(TensorType((2, 1, 4)), "b")
    node = Node(ops.Sub(), [a, b], "sub")
    wide = Value(TensorType((2, 5, 4)), "wide")
    placed = Annotations(placements={a: BufferView(wide, 2)})
    whole, other = numbers_of((2, 5, 4), "float32"), numbers_of((2, 1, 4), "float32")
    y = np.zeros((2, 3, 4), np.float32)
    run(print_broadcast(placed, node), [whole, other, y], tmp_path)
    np.testing.assert_array_equal(y, whole[:, 2:] - other)


def test_places_of_giant_images_are_whole() -> None:
    """Their channels lie further apart than 32 bits count."""
    for size, wide in ((1 << 14, False), (1 << 15, True)):
        source = tensor_of(TensorType((1, 3, size, size), "float16"), PLANAR)
        how = Gathering((16, 16), (0, 0), 16)
        made = how.gathered(source, (size // 16, size // 16), (1, 1))
        text = print_gather(1, source, made, how).source.text
        assert (f"* (long long){size * size}" in text) == wide


@pytest.mark.sampled(3)
@pytest.mark.parametrize("geometry", [(7, 2, 3), (3, 1, 1), (11, 4, 2), (3, 2, 0)], ids=str)
@pytest.mark.parametrize("layout", [PLANAR, CHANNELS_LAST], ids=str)
@pytest.mark.parametrize("whole", [False, True])
def test_gathered_images_give_the_same_convolution(
    geometry: tuple[int, int, int], layout: Layout, whole: bool, tmp_path: Path
) -> None:
    kernel, stride, pad = geometry
    x = numbers_of((2, 3, 21, 25), "float16")
    weight = numbers_of((8, 3, kernel, kernel), "float16")
    conv = ops.Conv2d((stride, stride), ((pad, pad), (pad, pad)))
    (expected,) = conv.reference(x.astype(np.float64), weight.astype(np.float64))
    how = Gathering((stride, stride), (pad, pad), kernel if whole else stride)
    source = tensor_of(TensorType(x.shape, "float16"), layout)
    made = how.gathered(source, expected.shape[2:], how.taps((kernel, kernel)))
    memory = memory_of(made, None, 2)
    launch = print_gather(2, source, made, how)
    run(launch, [memory_of(source, x, 2), memory], tmp_path)
    blocks = read(memory, made, 2).astype(np.float64)
    filters = how.filter(weight, "float16").transpose(0, 3, 1, 2).astype(np.float64)
    (result,) = ops.Conv2d().reference(blocks, filters)
    np.testing.assert_allclose(result, expected, atol=1e-9)
