"""Sums over all but channels in the emulator: both layouts, slices of joins, parts, dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from minidnn import layers as L
from minidnn.backends.cuda.bits import from_bits, to_bits
from minidnn.backends.cuda.sums import SumsLaunches, print_sums
from minidnn.backends.cuda.target import CudaTarget
from minidnn.backends.cuda.tensor import Tensor, tensor_of
from minidnn.fusion.region import FusedSums
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Graph, Value
from minidnn.graph.layout import CHANNELS_LAST, PLANAR, Layout
from minidnn.graph.types import TensorType
from minidnn.layers.build import to_graph
from minidnn.passes.infrastructure import Context
from minidnn.passes.pipeline import optimize

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
        )


SHAPES = [
    *((2, 3, 5, 7), (1, 8, 1, 1), (5, 16, 3, 3), (3, 40, 4, 4), (2, 130, 2, 2), (9, 1, 6, 5)),
    *((4, 2, 96, 96), (64, 24, 12, 12)),
]


def regions(shape: tuple[int, ...]) -> tuple[Graph, list[FusedSums]]:
    graph = to_graph(Statistics(), (shape, shape, (1, shape[1], 1, 1)))
    optimized = optimize(graph, Context(CudaTarget()), verify=True)
    return graph, [node.op for node in optimized.nodes if isinstance(node.op, FusedSums)]


def test_sums_of_the_same_tensors_are_one_region() -> None:
    """The mean by itself, as the variance needs it; all that reads x and g; no more."""
    _, found = regions((2, 3, 5, 7))
    assert sorted(len(op.reductions) for op in found) == [1, 4]


def laid_out(array: np.ndarray, tensor: Tensor, dtype: str) -> np.ndarray:
    """Memory, NaN but for the value, in which it lies as ``tensor`` says."""
    n, c, h, w = array.shape
    places = (
        tensor.offset
        + np.arange(n).reshape(-1, 1, 1, 1) * tensor.image
        + np.arange(c).reshape(-1, 1, 1) * tensor.channel
        + np.arange(h).reshape(-1, 1) * tensor.row
        + np.arange(w) * tensor.pixel
    )
    memory = np.full(n * tensor.image + 64, np.nan, np.float32)
    memory[places.ravel()] = array.ravel()
    return to_bits(memory, dtype)


def launched(
    sums: SumsLaunches, emulated: Emulated, given: Sequence[np.ndarray], op: FusedSums
) -> list[np.ndarray]:
    outputs = [np.full(v.type.size + 4, -77, STORED[v.dtype]) for v in op.body.outputs]
    if sums.parts is None:
        emulated.launch(sums.first, [*given, *outputs])
    else:
        room = np.full(sums.bytes // 4, np.float32(np.nan))
        emulated.launch(sums.first, [*given, room])
        emulated.launch(sums.parts, [room, *outputs])
    return [
        from_bits(array[:-4], v.dtype) for array, v in zip(outputs, op.body.outputs, strict=True)
    ]


def tensors(op: FusedSums, layout: Layout, before: int, behind: int) -> dict[Value, Tensor]:
    """Where operands lie: in the middle of wider values."""
    found = {}
    for value in op.body.inputs:
        n, c, *plane = value.shape
        wide = before + c + behind if value.shape == op.shape else c
        buffer = TensorType((n, wide, *plane), value.dtype)
        first = before if value.shape == op.shape else 0
        found[value] = tensor_of(value.type, layout, buffer, first)
    return found


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Every region in both layouts, dense and in slices, all kernels compiled at once."""
    found = []
    for shape in SHAPES:
        _, ops = regions(shape)
        for op in ops:
            for layout in (PLANAR, CHANNELS_LAST):
                for before, behind in ((0, 0), (4, 4), (3, 2)):
                    places = tensors(op, layout, before, behind)
                    found.append((op, places, print_sums(op, places.__getitem__)))
    launches = [each for *_, sums in found for each in (sums.first, sums.parts) if each]
    emulated = Emulated([each.source for each in launches], tmp_path_factory.mktemp("sums"))
    return found, emulated


def test_numbers(cases: Any) -> None:
    found, emulated = cases
    assert any(sums.parts is None for *_, sums in found)
    assert any(sums.parts is not None for *_, sums in found)
    random = np.random.default_rng(0)
    for op, places, sums in found:
        arrays = {v: random.standard_normal(v.shape).astype(np.float32) for v in op.body.inputs}
        given = [
            laid_out(arrays[v].reshape(v.type.plane), places[v], "float32") for v in sums.operands
        ]
        expected = evaluate(op.body, list(arrays.values()), "float64")
        for got, wanted in zip(launched(sums, emulated, given, op), expected, strict=True):
            np.testing.assert_allclose(got, wanted, 3e-6, 3e-6 * np.abs(wanted).max() + 1e-6)
