"""Kernels that pick channels, in both layouts, from values and slices of joins, by the emulator."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minidnn import layers as L
from minidnn.backends.cuda.copy import print_take_channels
from minidnn.backends.cuda.functions import compile_kernels
from minidnn.backends.cuda.kernels import Launch
from minidnn.backends.cuda.machine import Machine
from minidnn.backends.cuda.tensor import Tensor, tensor_of
from minidnn.graph import operators as ops
from minidnn.graph.layout import CHANNELS_LAST, PLANAR, Layout
from minidnn.graph.operators import TakeChannels
from minidnn.graph.trace import apply
from minidnn.graph.types import TensorType
from tests.cuda.cards import A100, H200, on_each

from .emulator.run import Emulated
from .lowered import check_numbers, planned
from .test_moved_channels import own

STORED = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}
#: Batch, rows and columns; channels of each source; how many are picked.
SHAPES = (
    ((2, 7, 9), (6,), 5),
    ((3, 8, 8), (58, 58), 58),
    ((1, 5, 5), (1, 3, 16, 2, 1), 24),
    ((2, 1, 1), (300, 212), 512),
    ((2, 3, 3), (1500, 9), 2500),
    ((1, 37, 41), (2, 1), 3),
    ((2, 5, 4), (7, 9), 1),
    ((2, 5, 4), (1,), 2),
)
#: Channels in front of a value and behind it in a wider one.
AROUND = ((0, 0), (3, 2), (8, 16))


class Made:
    """A kernel for one of the shapes, its operands and what it must give."""

    def __init__(self, number: int, dtype: str, layout: Layout) -> None:
        (batch, rows, columns), sources, count = SHAPES[number]
        random = np.random.default_rng(number)
        self.layout = layout
        self.dtype = STORED[dtype]
        self.memory: list[np.ndarray] = []
        tensors: list[Tensor] = []
        values = []
        for k, channels in enumerate((*sources, count)):
            before, reduction = AROUND[(number + k) % len(AROUND)]
            shape = (batch, before + channels + reduction, rows, columns)
            type = TensorType((batch, channels, rows, columns), dtype)
            tensors.append(tensor_of(type, layout, TensorType(shape, dtype), before))
            whole = random.integers(0, 2000, shape).astype(self.dtype)
            values.append(whole[:, before : before + channels])
            self.memory.append(self.laid(whole))
        of = random.integers(0, len(sources), count)
        picks = tuple((int(k), int(random.integers(0, sources[k]))) for k in of)
        batched = print_take_channels(TakeChannels(picks), batch, tensors[:-1], tensors[-1])
        self.launch: Launch = batched[0]
        self.table = batched[1]
        self.before, self.count = AROUND[(number + len(sources)) % len(AROUND)][0], count
        self.whole = whole
        (self.expected,) = TakeChannels(picks).reference(*values[:-1])

    def laid(self, whole: np.ndarray) -> np.ndarray:
        turned = whole if self.layout == PLANAR else whole.transpose(0, 2, 3, 1)
        return np.ascontiguousarray(turned).ravel()


MADE = [
    Made(number, dtype, layout)
    for number, dtype, layout in product(range(len(SHAPES)), STORED, (PLANAR, CHANNELS_LAST))
]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Emulated:
    return Emulated([made.launch.source for made in MADE], tmp_path_factory.mktemp("channels"))


@pytest.mark.sampled(3)
@pytest.mark.race
@pytest.mark.parametrize("made", MADE, ids=lambda made: made.launch.source.name[:14])
def test_channels_are_picked_and_nothing_else_is_written(made: Made, kernels: Emulated) -> None:
    *sources, given = made.memory
    whole = made.whole.copy()
    whole[:, made.before : made.before + made.count] = made.expected
    for backwards in (False, True):
        result = given.copy()
        kernels.launch(made.launch, [*sources, made.table, result], backwards)
        np.testing.assert_array_equal(result, made.laid(whole))


class Units(L.Layer):
    """Units of a ShuffleNet; the last one's join is read as it is."""

    CHANNELS = 32

    def __init__(self, count: int) -> None:
        half = self.CHANNELS // 2
        self.windows = L.LayerList(
            *(L.Conv2d(half, half, 3, padding=1, groups=half) for _ in range(count))
        )
        self.mixes = L.LayerList(*(L.Conv2d(half, half, 1) for _ in range(count)))
        self.last = L.Conv2d(self.CHANNELS, half, 1)

    def forward(self, x: Any) -> Any:
        n, channels, rows, columns = x.shape
        half = channels // 2
        for window, mix in zip(self.windows, self.mixes, strict=True):
            apart = apply(ops.View((n, 2, half, rows, columns)), x)
            x = apply(ops.View(x.shape), apply(ops.Transpose((0, 2, 1, 3, 4)), apart))
            sizes, steps = (n, half, rows, columns), (1, 1, 1, 1)
            kept, taken = (apply(ops.Slice((0, c, 0, 0), sizes, steps), x) for c in (0, half))
            x = apply(ops.Concat(1), kept, apply(ops.ReLU(), mix(window(taken))))
        return self.last(x)


SHAPE = (2, Units.CHANNELS, 6, 7)


@pytest.mark.race
@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_units_of_a_shufflenet(precision: str, tmp_path: Path) -> None:
    check_numbers(Units(3), SHAPE, precision, own, tmp_path)


@pytest.mark.parametrize(("precision", "layout"), [("float16", CHANNELS_LAST), ("float32", PLANAR)])
def test_channels_are_picked_where_convolutions_want_them(precision: str, layout: Layout) -> None:
    """One kernel for a unit, in the layout of the others; what is joined is written in place."""
    plan = planned(Units(3), SHAPE, precision)
    taken = [node.output for node in plan.graph.nodes if isinstance(node.op, TakeChannels)]
    assert len(taken) == 4 and {plan.layout(value) for value in taken} == {layout}
    (joined,) = (node for node in plan.graph.nodes if isinstance(node.op, ops.Concat))
    assert all(value in plan.annotations.placements for value in joined.inputs)
    moves = (ops.Transpose, ops.Slice)
    assert not any(isinstance(node.op, moves) for node in plan.graph.nodes)


@pytest.mark.sampled(3)
@on_each(A100, H200)
def test_kernels_keep_to_the_budget(
    machine: Machine, warm_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINIDNN_CACHE", str(warm_cache))
    for kernel in compile_kernels([made.launch.source for made in MADE], machine.arch):
        taken = kernel.resources
        assert taken.spill_bytes == taken.stack_bytes == 0, taken
        assert taken.registers <= 64, taken  # four blocks of 256 threads side by side
