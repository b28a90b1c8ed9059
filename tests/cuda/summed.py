"""Gradients of convolutions with sums behind them: a network that has all kinds, their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cuda.contraction.kernel import ContractionKernel
from minidnn.backends.cuda.contraction.kernel_registry import KERNELS
from minidnn.backends.cuda.contraction.problem import Address, Addresses, ContractionProblem
from minidnn.backends.cuda.lower import lower_plan
from minidnn.backends.cuda.task import InWorkspace, Task
from minidnn.fusion.region import FusedGradient
from minidnn.graph.ir import Value
from minidnn.graph.types import rounded_to
from minidnn.runtime.arrays import from_bits, to_bits

from .cards import H200
from .contractions import EPSILON
from .test_statistics import planned


class Bottleneck(L.Layer):
    """Two blocks of a residual network, the first with a convolution beside it."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.first = _branch(channels, inner)
        self.beside = L.Sequential(L.Conv2d(channels, channels, 1), L.BatchNorm2d(channels))
        self.second = _branch(channels, inner)
        self.last = L.Sequential(L.AdaptiveAvgPool2d(1), L.Flatten(), L.Linear(channels, 3))

    def forward(self, x: Any) -> Any:
        relu = L.ReLU()
        x = relu(self.first(x) + self.beside(x))
        return self.last(relu(self.second(x) + x))


class Windows(L.Layer):
    """A block of two windows with its input added, behind windows of several sizes, of which some
    make images smaller."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        geometries = (((5, 3), (2, 0)), ((1, 4), (0, 1)), ((2, 2), (1, 0)), ((3, 3), (1, 1)))
        widths = (channels, 8, 136, 24, 64)
        self.first = L.Sequential(
            *(
                _normalized(L.Conv2d(few, many, window, padding=padding, bias=False), many)
                for few, many, (window, padding) in zip(
                    widths, widths[1:], geometries, strict=False
                )
            )
        )
        self.block = L.Sequential(
            *(_normalized(_window(64, 40), 40), _window(40, 64), L.BatchNorm2d(64))
        )
        self.last = L.Sequential(L.AdaptiveAvgPool2d(1), L.Flatten(), L.Linear(64, 3))

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        return self.last(L.ReLU()(self.block(x) + x))


def _window(channels: int, filters: int) -> md.Layer:
    return L.Conv2d(channels, filters, 3, padding=1, bias=False)


def _normalized(layer: md.Layer, channels: int) -> md.Layer:
    return L.Sequential(layer, L.BatchNorm2d(channels), L.ReLU())


def _branch(channels: int, inner: int) -> md.Layer:
    return L.Sequential(
        *(L.Conv2d(channels, inner, 1, bias=False), L.BatchNorm2d(inner), L.ReLU()),
        *(L.Conv2d(inner, inner, 3, padding=1, bias=False), L.BatchNorm2d(inner), L.ReLU()),
        *(L.Conv2d(inner, channels, 1, bias=False), L.BatchNorm2d(channels)),
    )


def tasks_of(shape: tuple[int, ...], inner: int, dtype: str) -> list[Task]:
    """The summed gradients of a step, those of equal problems once; without ``inner`` channels, of
    windows alone."""
    stem = L.Sequential(L.Conv2d(3, shape[1], 3, padding=1), L.BatchNorm2d(shape[1]), L.ReLU())
    net = L.Sequential(stem, Bottleneck(shape[1], inner) if inner else Windows(shape[1]))
    plan = planned(net, (shape[0], 3, *shape[2:]), dtype)
    tasks = lower_plan(plan, H200, tf32=False)
    found = [task for task in tasks if isinstance(task.node.op, FusedGradient)]
    return list({task.work: task for task in found}.values())


def kernel_of(task: Task) -> ContractionKernel:
    """That which adds up."""
    pointwise = problem_of(task).is_pointwise
    return KERNELS["backward stream" if pointwise else "backward halo"]


def problem_of(task: Task) -> ContractionProblem:
    assert isinstance(task.work, ContractionProblem)
    return task.work


def drawn(task: Task, seed: int = 0) -> list[np.ndarray]:
    """Operands of a task's node; variances and scales stay positive."""
    random = np.random.default_rng(seed)
    arrays = (random.standard_normal(v.shape).astype(np.float32) for v in task.node.inputs)
    return [
        rounded_to(v.dtype, array).astype(np.float32)
        for v, array in zip(task.node.inputs, arrays, strict=True)
    ]


def laid(value: Value, array: np.ndarray) -> np.ndarray:
    """Bits of an array, the channels of images last."""
    last = array.transpose(0, 2, 3, 1) if array.ndim == 4 else array
    return to_bits(np.ascontiguousarray(last, np.float32), value.dtype)


def read(value: Value, bits: np.ndarray) -> np.ndarray:
    """The array again."""
    found = from_bits(bits, value.dtype)
    if len(value.shape) != 4:
        return np.asarray(found.reshape(value.shape))
    n, c, h, w = value.shape
    return np.asarray(found.reshape(n, h, w, c).transpose(0, 3, 1, 2))


def addresses(task: Task, places: Mapping[Value, int], room: int) -> Addresses:
    """Where a task's tensors are, by the addresses of its values."""

    def place(pointer: Any) -> int:
        if isinstance(pointer, InWorkspace):
            return room
        if isinstance(pointer, Address):
            return places[pointer.value] + pointer.bytes
        return places[pointer]

    x, w, y, *rest = map(place, task.pointers)
    producer = problem_of(task).producer
    first = 0 if producer is None else len(producer.read)
    return Addresses(
        x, w, y, workspace=room, reduction=tuple(rest[first:]), producer=tuple(rest[:first])
    )


def expected(
    task: Task, given: list[np.ndarray], found: Sequence[np.ndarray] = ()
) -> dict[Value, np.ndarray]:
    """What the nodes of a region compute one by one, each rounded as its dtype says, and of what
    was ``found`` of tensors, if it was."""
    op = task.node.op
    assert isinstance(op, FusedGradient)
    values = dict(zip(op.body.inputs, given, strict=True))
    stored = dict(zip(op.body.outputs, found, strict=False))
    results = {}
    for node in op.body.nodes:
        made = node.op.reference(*(values[value] for value in node.inputs))
        for value, array in zip(node.outputs, made, strict=True):
            results[value] = rounded_to(value.dtype, array).astype(np.float32)
            values[value] = stored.get(value, results[value])
    return results


def check(task: Task, given: list[np.ndarray], found: list[np.ndarray]) -> None:
    """Holds results to those of the nodes one by one.

    Some gradients are rounded the other way, as products are added up in another order, so what
    follows from stored ones is held to what was found of them.  Of those that are not stored, nine
    of ten channels' sums do not differ for it, and the others little.
    """
    op = task.node.op
    assert isinstance(op, FusedGradient)
    values, error = expected(task, given, found), EPSILON[problem_of(task).x.dtype]
    for value, one in zip(op.body.outputs, found, strict=True):
        right = values[value]
        assert one.shape == right.shape
        if one.ndim == 1:
            most = np.abs(right).max()
            np.testing.assert_allclose(one, right, 0, error * most)
            assert np.quantile(np.abs(one - right), 0.9) <= 2e-5 * most
        else:
            # What a gradient is added to may leave less of it than its own rounding.
            apart, gradient = np.abs(one - right), values[op.core.output]
            beside = np.abs(gradient) if gradient.shape == right.shape else 0.0
            bound = error * (np.abs(right) + beside) + _slack(op, right, given)
            assert (apart > 1e-6).mean() <= 1e-2
            assert (apart <= bound).all(), f"{value}: {(apart - bound).max()} beyond the bound"


def _slack(op: FusedGradient, right: np.ndarray, given: list[np.ndarray]) -> float | np.ndarray:
    """How far a result may be off where products cancel: of windows there are many, so by the sum
    of what they are without their signs."""
    known = dict(zip(op.body.inputs, given, strict=True))
    y, w = op.core.inputs
    if w.shape[2:] == (1, 1) or right.shape != op.core.output.shape:
        return 1e-5
    return 1e-5 + np.float32(1e-6) * op.core.op.reference(abs(known[y]), abs(known[w]))[0]
