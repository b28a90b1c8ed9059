"""Sums over all but channels in the emulator: both layouts, slices of joins, parts, dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cuda.sums import SumsLaunches, print_sums
from minidnn.backends.cuda.target import CudaTarget
from minidnn.backends.cuda.tensor import Tensor, tensor_of
from minidnn.fusion.region import FusedSums
from minidnn.graph import operators as ops
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Graph, Value
from minidnn.graph.layout import CHANNELS_LAST, PLANAR, Layout
from minidnn.graph.trace import apply
from minidnn.graph.types import HALF_DTYPES, TensorType, rounded_to
from minidnn.layers.build import to_graph
from minidnn.passes.infrastructure import Context
from minidnn.passes.pipeline import optimize
from minidnn.runtime.arrays import from_bits, to_bits
from minidnn.training.step import Objective, step_graph
from tests.cuda.cards import H200

from .arrays import STORED
from .emulator.run import Emulated

AXES = (0, 2, 3)


class Statistics(L.Layer):
    """What normalization over the batch adds up, forwards and backwards."""

    def forward(self, x: Any, g: Any, scale: Any) -> Any:
        mean = x.mean(AXES, keepdims=True)
        apart = x - mean
        masked = g * np.maximum(x * scale, 0.0)
        return (
            *(mean, (apart * apart).mean(AXES)),
            *(masked.sum(AXES), (masked * apart).sum(AXES), np.exp(-np.abs(g)).mean(AXES)),
            *moments(g - 40.0 * scale),
        )


def moments(x: Any) -> tuple[Any, ...]:
    """Mean and variance, in one sweep; the latter once more, around a mean that is given."""
    mean = apply(ops.Reduce("mean", AXES), x)
    given = x.mean(AXES, keepdims=True).reshape(x.shape[1])
    return mean, apply(ops.Variance(), x, mean), apply(ops.Variance(), x, given)


SHAPES = [
    *((2, 3, 5, 7), (1, 8, 1, 1), (5, 16, 3, 3), (3, 40, 4, 4), (2, 130, 2, 2), (9, 1, 6, 5)),
    *((4, 2, 96, 96), (64, 24, 12, 12)),
]


def regions(shape: tuple[int, ...]) -> tuple[Graph, list[FusedSums]]:
    graph = to_graph(Statistics(), (shape, shape, (1, shape[1], 1, 1)))
    optimized = optimize(graph, Context(CudaTarget()), verify=True)
    return graph, [node.op for node in optimized.nodes if isinstance(node.op, FusedSums)]


def test_sums_of_the_same_tensors_are_one_region() -> None:
    """Means by themselves, as squares need them; a mean with its variance; what reads x and g."""
    _, found = regions((2, 3, 5, 7))
    assert sorted(len(op.reductions) for op in found) == [1, 1, 3, 4]


def laid_out(array: np.ndarray, tensor: Tensor, dtype: str) -> np.ndarray:
    """Memory, NaN but for the value, in which it lies as ``tensor`` says."""
    memory = np.full(array.shape[0] * tensor.image + 64, np.nan, np.float32)
    memory[places_of(array.shape, tensor).ravel()] = array.ravel()
    return to_bits(memory, dtype)


def places_of(shape: tuple[int, ...], tensor: Tensor) -> np.ndarray:
    """Where the elements of a value lie."""
    n, c, h, w = shape
    return (
        tensor.offset
        + np.arange(n).reshape(-1, 1, 1, 1) * tensor.image
        + np.arange(c).reshape(-1, 1, 1) * tensor.channel
        + np.arange(h).reshape(-1, 1) * tensor.row
        + np.arange(w) * tensor.pixel
    )


def launched(
    sums: SumsLaunches,
    emulated: Emulated,
    given: Sequence[np.ndarray],
    op: FusedSums,
    places: dict[Value, Tensor],
) -> list[np.ndarray]:
    """The results; whatever lies around those that are stored stays as it was."""
    results = {i: np.full(v.type.size + 4, 77, STORED[v.dtype]) for i, v in sums_of(op).items()}
    stored = {
        i: laid_out(np.full(v.shape, 5.0, np.float32), places[v], v.dtype)
        for i, v in op.stored.items()
    }
    before = {i: array.copy() for i, array in stored.items()}
    given = [*given, *stored.values()]
    if sums.parts is None:
        emulated.launch(sums.first, [*given, *results.values()])
    else:
        room = np.full(sums.bytes // 4, np.float32(np.nan))
        emulated.launch(sums.first, [*given, room])
        emulated.launch(sums.parts, [room, *results.values()])
    found = {
        i: from_bits(a[:-4], op.body.outputs[i].dtype).reshape(op.body.outputs[i].shape)
        for i, a in results.items()
    }
    assert all((a[-4:] == np.full(4, 77, a.dtype)).all() for a in results.values())
    for i, value in op.stored.items():
        where = places_of(value.shape, places[value])
        found[i] = from_bits(stored[i], value.dtype)[where]
        outside = np.ones(len(stored[i]), bool)
        outside[where.ravel()] = False
        np.testing.assert_array_equal(stored[i][outside], before[i][outside])
    return [found[i] for i in range(len(found))]


def sums_of(op: FusedSums) -> dict[int, Value]:
    return {i: node.output for i, node in op.reductions.items()}


def tensors(op: FusedSums, layout: Layout, before: int, reduction: int) -> dict[Value, Tensor]:
    """Where tensors lie: in the middle of wider values."""
    found = {}
    for value in (*op.body.inputs, *op.body.outputs):
        if value.shape == op.shape:
            n, c, *plane = value.shape
            buffer = TensorType((n, before + c + reduction, *plane), value.dtype)
            found[value] = tensor_of(value.type, layout, buffer, before)
    return found | {value: tensor_of(value.type, layout) for value in op.plane_numbers}


class Gated(L.Layer):
    """Channels that are squeezed to averages of planes, and scaled by what is computed of them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.squeeze = L.AdaptiveAvgPool2d(1)
        self.excite = L.Sequential(L.Conv2d(channels, channels, 1), L.Sigmoid())

    def forward(self, x: Any) -> Any:
        return x * self.excite(self.squeeze(x))


def mixed(dtype: str, size: int = 9, channels: int = 16) -> list[FusedSums]:
    """The regions of a training step: halves and float32 in one, gradients that are stored, sums
    of planes, and numbers of planes."""
    net = L.Sequential(
        *(L.Conv2d(8, 16, 3, padding=1, bias=False), L.BatchNorm2d(16), L.ReLU()),
        *(L.Conv2d(16, channels, 3, padding=1, bias=False), L.BatchNorm2d(channels), L.SiLU()),
        *(Gated(channels), L.Conv2d(channels, 8, 3), L.BatchNorm2d(8), L.ReLU()),
        *(L.AdaptiveAvgPool2d(1), L.Flatten(), L.Linear(8, 3)),
    ).initialize(0)
    objective = Objective(md.losses.CrossEntropy(), {})
    graph = step_graph(net, ((3, 8, size, size),), objective, md.optim.SGD(0.1))
    context = Context(CudaTarget(H200.device(dtype), dtype), stored=True)
    nodes = optimize(graph, context, verify=True).nodes
    found = [node.op for node in nodes if isinstance(node.op, FusedSums)]
    return [op for op in found if len(op.shape) == 4]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Every region in both layouts, dense and in slices, all kernels compiled at once."""
    found = []
    sources = [*(regions(shape)[1] for shape in SHAPES), *map(mixed, ("float32", *HALF_DTYPES))]
    # Packs of odd channels, of which some are no whole block, and planes of several parts.
    sources += [mixed("bfloat16", 6, 27), mixed("float16", 5, 72), mixed("bfloat16", 70, 8)]
    for source in sources:
        for op in source:
            for layout in (PLANAR, CHANNELS_LAST):
                for before, reduction in ((0, 0), (4, 4), (3, 2)):
                    places = tensors(op, layout, before, reduction)
                    found.append((op, places, print_sums(op, places.__getitem__)))
    launches = [each for *_, sums in found for each in (sums.first, sums.parts) if each]
    emulated = Emulated([each.source for each in launches], tmp_path_factory.mktemp("sums"))
    return found, emulated


def test_numbers(cases: Any) -> None:
    found, emulated = cases
    assert any(sums.parts is None for *_, sums in found)
    assert any(sums.parts is not None for *_, sums in found)
    assert {len(op.stored) for op, *_ in found} == {0, 1}
    assert {len(op.plane_numbers) for op, *_ in found} >= {0, 2}
    by_plane = [sums.parts is None for op, _, sums in found if op.by_plane]
    assert {*by_plane} == {True, False}
    random = np.random.default_rng(0)
    for op, places, sums in found:
        arrays = {
            v: rounded_to(v.dtype, np.abs(random.standard_normal(v.shape))).astype(np.float32)
            * (random.choice([-1, 1], v.shape) if v in places else 1)
            for v in op.body.inputs
        }
        for node in op.body.nodes:
            if isinstance(node.op, ops.Variance) and node.inputs[1] in arrays:
                made = Graph(op.body.inputs, [node.inputs[0]], op.body.nodes)
                (x,) = evaluate(made, list(arrays.values()))
                arrays[node.inputs[1]] = x.mean(AXES)
        given = [
            laid_out(arrays[v], places[v], v.dtype)
            if v in places
            else to_bits(arrays[v].ravel(), v.dtype)
            for v in sums.operands
            if v in arrays
        ]
        halves = any(v.dtype in HALF_DTYPES for v in op.body.values)
        error = 2e-2 if halves else 3e-6
        expected = evaluate(op.body, list(arrays.values()), "float64")
        results = launched(sums, emulated, given, op, places)
        for got, wanted in zip(results, expected, strict=True):
            np.testing.assert_allclose(got, wanted, error, error * np.abs(wanted).max() + 1e-6)
