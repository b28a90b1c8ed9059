"""One convolution by one of our kernels alone: in the emulator, and on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cuda.constants import Data
from minidnn.backends.cuda.contraction import tune
from minidnn.backends.cuda.contraction.config import CudaAlgorithm
from minidnn.backends.cuda.contraction.kernel_registry import KERNELS, LoadedContraction
from minidnn.backends.cuda.contraction.problem import Address, Addresses, ContractionProblem
from minidnn.backends.cuda.functions import Loaded
from minidnn.backends.cuda.kernels import Launch
from minidnn.backends.cuda.lower import lower_plan
from minidnn.backends.cuda.machine import Machine
from minidnn.backends.cuda.task import Pointer
from minidnn.graph.evaluate import evaluate
from minidnn.layers.build import to_graph
from tests.cuda.cards import H200

from .contractions import Forgetful, draw_weights
from .emulator.run import Emulated, guarded
from .lowered import planned

Network = tuple[Callable[[], md.Layer], tuple[int, ...]]
_NUMBER = "const long long P_"


def residual_network(channels: int, rows: int, columns: int) -> md.Layer:
    """A 3x3 convolution without bias, its input added, and a ReLU."""
    x = md.Input((channels, rows, columns))
    convolution = L.Conv2d(channels, channels, 3, padding=1, bias=False)
    return md.Model(x, L.ReLU()(convolution(x) + x))


def normalized(channels: int, filters: int) -> md.Layer:
    """A normalization and a ReLU in front of a 1x1 convolution, and another ReLU."""
    before = L.Sequential(L.BatchNorm2d(channels), L.ReLU())
    return L.Sequential(before, L.Conv2d(channels, filters, 1), L.ReLU())


def convolution(net: md.Layer, shape: tuple[int, ...]) -> tuple[ContractionProblem, list[Pointer]]:
    """The problem of a network of one convolution, and what it is computed on."""
    tasks = lower_plan(planned(net, shape, "float32"), H200, False)
    (task,) = (task for task in tasks if isinstance(task.work, ContractionProblem))
    assert isinstance(task.work, ContractionProblem)
    return task.work, list(task.pointers)


@dataclass(frozen=True)
class EmulatedLaunch:
    """What :class:`Loaded` is on a device."""

    launch: Launch
    kernels: Emulated
    backwards: bool
    arrays: list[np.ndarray]
    """To which addresses lead."""

    def bind(self, arguments: Sequence[int]) -> Callable[[], None]:
        count = self.launch.source.text.count(_NUMBER)
        split = len(arguments) - count
        every = [self._array(address) for address in arguments[:split]]
        every += [np.array([n]) for n in arguments[split:]]
        return lambda: self.kernels.launch(self.launch, every, self.backwards)

    def _array(self, address: int) -> np.ndarray:
        for array in self.arrays:
            reduction = address - array.ctypes.data
            if 0 <= reduction < array.nbytes:
                return array.reshape(-1).view(np.uint8)[reduction:]
        raise AssertionError("a kernel is given an address of nothing")


def _laid(pointer: Pointer) -> np.ndarray:
    assert isinstance(pointer, Data)
    return np.ascontiguousarray(pointer.make(), np.float32)


def emulated(
    net: md.Layer,
    x: np.ndarray,
    core: str,
    choice: int,
    backwards: bool,
    folder: Path,
    wide: int = 0,
) -> np.ndarray:
    """The result, written between ``wide`` channels on either side that must stay as they are, as
    what lies behind image, workspace and result."""
    problem, (_, weight, _, *rest) = convolution(net, x.shape)
    y = problem.y
    plane = y.rows * y.columns
    channels = y.channels + 2 * wide
    problem = replace(problem, y=replace(y, image=channels * plane, offset=wide * plane))
    kernel = KERNELS[core]
    launches = kernel.launches(problem, choice, H200)
    kernels = Emulated([launch.source for launch in launches], folder)
    arrays: list[np.ndarray] = []
    loaded = [EmulatedLaunch(launch, kernels, backwards, arrays) for launch in launches]
    computed = LoadedContraction(problem, kernel, choice, H200, cast(Sequence[Loaded], loaded))
    _, image = guarded(x.size, np.dtype("f"))
    image[:] = x.ravel()
    read = [image if isinstance(one, Address) else _laid(one) for one in rest]
    whole_room, room = guarded(computed.workspace // 4, np.dtype("f"))
    whole, made = guarded(problem.batch * channels * plane, np.dtype("f"))
    filters = _laid(weight)
    arrays += [image, filters, *read, room, made]
    pointers = [array.ctypes.data for array in read]
    others, vectors = len(problem.others), len(problem.others) + len(problem.vectors)
    at = Addresses(
        image.ctypes.data,
        filters.ctypes.data,
        made.ctypes.data,
        tuple(pointers[:others]),
        tuple(pointers[others:vectors]),
        tuple(pointers[vectors:]),
        room.ctypes.data,
    )
    for row in computed.rows(at):
        row.bind(())()
    margins = whole_room.size - room.size
    assert np.isnan(whole_room).sum() - np.isnan(room).sum() == margins
    result = made.reshape(problem.batch, channels, y.rows, y.columns)
    written = result[:, wide : wide + y.channels]
    made_there = written.copy()
    written[:] = np.nan
    assert np.isnan(whole).all(), "something else was written"
    return made_there


def check_emulated(
    network: Network, core: str, choices: Sequence[int], folder: Path, wide: int = 0
) -> None:
    """Each choice beside float64, and the same bits when blocks' threads take turns backwards."""
    make, size = network
    net = make()
    random = np.random.default_rng(0)
    draw_weights(net, random)
    x = random.standard_normal(size).astype(np.float32)
    (expected,) = evaluate(to_graph(net, size), [x], "float64")
    for choice in choices:
        y = emulated(net, x, core, choice, False, folder, wide)
        np.testing.assert_allclose(y, expected, rtol=0, atol=2e-6 * np.abs(expected).max())
        np.testing.assert_array_equal(emulated(net, x, core, choice, True, folder, wide), y)


def only(monkeypatch: pytest.MonkeyPatch, wanted: Callable[[CudaAlgorithm], bool]) -> None:
    """Contractions that have such forms have no others, and nothing is remembered of them."""
    usual = tune.algorithms_for

    def algorithms(problem: ContractionProblem, machine: Machine) -> list[CudaAlgorithm]:
        every = usual(problem, machine)
        return [algorithm for algorithm in every if wanted(algorithm)] or every

    monkeypatch.setattr(tune, "algorithms_for", algorithms)
    monkeypatch.setattr(tune, "_store", Forgetful())


def check_on_gpu(network: Network, algorithm: str, **options: Any) -> None:
    """The network, which must be computed by that algorithm, beside float64: the first images and
    the last; and a second call beside the bits of the first."""
    make, size = network
    net = make()
    random = np.random.default_rng(0)
    draw_weights(net, random)
    x = random.standard_normal(size).astype(np.float32)
    few = np.unique([0, 1 % size[0], size[0] - 1])
    (expected,) = evaluate(to_graph(net, (len(few), *size[1:])), [x[few]], "float64")
    exe = md.compile(net, size, device="cuda", precision="float32", **options)
    assert algorithm in exe.explain(measure=True)
    result = np.asarray(exe(x), np.float64)
    assert np.isfinite(result).all()
    assert np.abs(result[few] - expected).max() <= 3e-6 * np.abs(expected).max()
    np.testing.assert_array_equal(np.asarray(exe(x), np.float64), result)
