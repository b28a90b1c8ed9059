"""Depthwise convolutions by our kernel: in the emulator, compiled, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cuda.constants import Data
from minidnn.backends.cuda.contraction import depthwise
from minidnn.backends.cuda.contraction.algorithms import algorithms_for
from minidnn.backends.cuda.contraction.problem import Address, ContractionProblem
from minidnn.backends.cuda.functions import compile_kernels
from minidnn.backends.cuda.lower import lower_plan
from minidnn.backends.cuda.task import Pointer
from minidnn.graph.evaluate import evaluate
from minidnn.graph.types import rounded_to
from minidnn.layers.build import to_graph
from minidnn.runtime.arrays import from_bits, to_bits
from tests.cuda.cards import A100, H200
from tests.sampling import some

from .arrays import STORED
from .contractions import DEPTHWISE, draw_weights
from .emulator.run import Emulated, guarded
from .lowered import planned, problems_of

pytestmark = pytest.mark.early

#: Half the distance of neighbouring numbers at 1, of what is in memory.
ROUNDING = {"tf32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
DTYPES = {"tf32": "float32", "float16": "float16", "bfloat16": "bfloat16"}


def layer(channels: int, *geometry: Any, filters: int = 0, **rest: Any) -> md.Layer:
    """A convolution with a group for each channel of the image."""
    return L.Conv2d(channels, filters or channels, *geometry, **{"groups": channels, **rest})


def residual(channels: int, kernel: int) -> md.Layer:
    x = md.Input((channels, 9, 11))
    return md.Model(x, L.ReLU()(layer(channels, kernel, padding=kernel // 2)(x) + x))


NETS: dict[str, tuple[Callable[[], md.Layer], tuple[int, ...]]] = {
    "3x3": (lambda: L.Sequential(layer(24, 3, 1, 1), L.ReLU6()), (2, 24, 9, 13)),
    "3x3-stride": (lambda: L.Sequential(layer(72, 3, 2, 1), L.Hardswish()), (2, 72, 11, 10)),
    "5x5": (lambda: L.Sequential(layer(16, 5, 1, 2), L.SiLU()), (1, 16, 10, 9)),
    "5x5-stride": (lambda: L.Sequential(layer(120, 5, 2, 2), L.Hardswish()), (1, 120, 9, 15)),
    "7x7": (lambda: layer(96, 7, 1, 3), (1, 96, 8, 9)),
    "7x7-gelu": (lambda: L.Sequential(layer(8, 7, 1, 3), L.GELU()), (3, 8, 7, 7)),
    "1x3-no-bias": (lambda: layer(12, (1, 3), (1, 2), bias=False), (2, 12, 5, 9)),
    "4x2-uneven": (lambda: layer(58, (4, 2), (3, 1), (2, 0)), (2, 58, 9, 6)),
    "dilated": (lambda: layer(40, 3, 1, 3, 3), (1, 40, 9, 8)),
    "dilated-stride": (lambda: layer(20, (3, 2), (2, 3), (2, 1), (2, 3)), (2, 20, 13, 14)),
    "odd-channels": (lambda: L.Sequential(layer(13, 3, 1, 1), L.ReLU()), (2, 13, 6, 7)),
    "double": (lambda: layer(20, 3, 1, 1, filters=40), (2, 20, 7, 6)),
    "triple": (lambda: layer(6, 3, 2, 1, filters=18), (1, 6, 7, 8)),
    "sixteen": (lambda: layer(3, 3, 1, 1, filters=48), (2, 3, 7, 5)),
    "1x1": (lambda: layer(32, 1), (2, 32, 3, 5)),
    "one-pixel": (lambda: layer(64, 3, 1, 1), (3, 64, 1, 1)),
    "residual": (lambda: residual(48, 3), (2, 48, 9, 11)),
    "residual-5x5": (lambda: residual(10, 5), (2, 10, 9, 11)),
    "21x21": (lambda: layer(4, 21, 1, 10), (1, 4, 12, 14)),
}


#: Each network in one precision, some in all.
CASES = [
    (name, precision)
    for i, name in enumerate(NETS)
    for k, precision in enumerate(DTYPES)
    if k == i % 3 or name in ("5x5-stride", "residual", "double")
]


def rounded_weights(net: md.Layer, dtype: str) -> None:
    """Weights that the precision's dtype has, so that only the kernel rounds."""
    draw_weights(net, np.random.default_rng(1))
    state = net.state_dict().items()
    net.load_state_dict({key: rounded_to(dtype, array).astype("f") for key, array in state})


def choices_of(problem: ContractionProblem) -> list[int]:
    """The first of each width, and some of the others, each time the same."""
    possible = depthwise.strips_for(problem, H200)
    first = {depthwise.STRIPS[i].lanes: i for i in reversed(possible)}.values()
    rest = [i for i in possible if i not in first]
    return [*first, *map(int, np.random.default_rng(len(possible)).permutation(rest)[:3])]


class Strips:
    """A network of one convolution, by each of some strips on arrays of its own."""

    def __init__(self, net: md.Layer, shape: tuple[int, ...], precision: str, folder: Path) -> None:
        plan = planned(net, shape, precision)
        tasks = lower_plan(plan, H200, precision == "tf32")
        (task,) = (task for task in tasks if isinstance(task.work, ContractionProblem))
        assert isinstance(task.work, ContractionProblem)
        self.problem, self.dtype = task.work, DTYPES[precision]
        _, weight, _, *self.rest = task.pointers
        self.weight = self._laid(weight)
        self.launches = {
            choice: DEPTHWISE.launches(self.problem, choice, H200)[0]
            for choice in choices_of(self.problem)
        }
        self.emulated = Emulated([launch.source for launch in self.launches.values()], folder)

    def _laid(self, pointer: Pointer) -> np.ndarray:
        assert isinstance(pointer, Data)
        return np.ascontiguousarray(to_bits(pointer.make(), pointer.dtype))

    def __call__(self, x: np.ndarray, choice: int, backwards: bool = False) -> np.ndarray:
        problem = self.problem
        _, image = guarded(x.size, STORED[self.dtype])
        image[:] = to_bits(x.transpose(0, 2, 3, 1), self.dtype).view(image.dtype).ravel()
        # A residual is the image itself.
        rest = [image if isinstance(one, Address) else self._laid(one) for one in self.rest]
        y = problem.y
        whole, made = guarded(problem.batch * y.rows * y.columns * y.channels, image.dtype)
        sizes = DEPTHWISE.numbers(problem, choice, H200)
        numbers = [np.array([size]) for size in sizes]
        arguments = [image, self.weight, *rest, made, *numbers]
        self.emulated.launch(self.launches[choice], arguments, backwards)
        begin = (made.ctypes.data - whole.ctypes.data) // made.itemsize
        beside = np.concatenate([whole[:begin], whole[begin + made.size :]])
        assert (beside.view(np.uint8) == 0xFF).all(), "something was written beside the result"
        result = from_bits(made.reshape(problem.batch, y.rows, y.columns, y.channels), self.dtype)
        return result.transpose(0, 3, 1, 2).astype(np.float64)


@pytest.mark.sampled(4)
@pytest.mark.race
@pytest.mark.parametrize(("name", "precision"), CASES)
def test_every_strip_gives_the_same_numbers(name: str, precision: str, tmp_path: Path) -> None:
    (make, shape), dtype = NETS[name], DTYPES[precision]
    net = make()
    rounded_weights(net, dtype)
    drawn = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    x = rounded_to(dtype, drawn).astype(np.float32)
    (expected,) = evaluate(to_graph(net, shape), [x], "float64")
    strips = Strips(net, shape, precision, tmp_path)
    taps = strips.problem.w.shape[2] * strips.problem.w.shape[3]
    allowed = ROUNDING[precision] * np.abs(expected) + 2.0**-22 * np.sqrt(taps) * 4
    first = None
    for choice in strips.launches:
        y = strips(x, choice)
        assert (np.abs(y - expected) <= allowed).all()
        np.testing.assert_array_equal(strips(x, choice, backwards=True), y)
        first = y if first is None else first
        np.testing.assert_array_equal(y, first)


def test_what_is_not_finite_stays_so(tmp_path: Path) -> None:
    """In the windows that see it, and there alone; padding is zero, not absent."""
    net = layer(8, 3, 1, 1)
    rounded_weights(net, "float16")
    x = np.ones((1, 8, 6, 7), np.float32)
    x[0, 2, 1, 1], x[0, 5, 4, 6] = np.nan, np.inf
    strips = Strips(net, x.shape, "float16", tmp_path)
    bad = np.zeros(x.shape, bool)
    bad[0, 2, 0:3, 0:3] = bad[0, 5, 3:6, 5:7] = True
    for choice in strips.launches:
        y = strips(x, choice)
        np.testing.assert_array_equal(~np.isfinite(y), bad)
        assert np.isnan(y[0, 2, 0:3, 0:3]).all()


BUDGET = (
    ((96, 7, 1, 3), (4, 96, 56, 56)),
    ((240, 5, 1, 2), (4, 240, 28, 28)),
    ((72, 5, 2, 2), (4, 72, 56, 56)),
    ((144, 3, 1, 1), (4, 144, 56, 56)),
    ((58, 3, 2, 1), (4, 58, 56, 56)),
)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("precision", ["float16", pytest.param("tf32", marks=pytest.mark.full)])
@pytest.mark.parametrize(("geometry", "shape"), BUDGET)
def test_kernels_keep_to_the_budget(
    geometry: tuple[int, ...], shape: tuple[int, ...], precision: str
) -> None:
    """They compile without spills, with registers for all threads of a block."""
    (problem,) = problems_of(L.Sequential(layer(*geometry), L.SiLU()), shape, precision)
    launches = [DEPTHWISE.launches(problem, i, H200)[0] for i in DEPTHWISE.choices(problem, H200)]
    for machine, step in ((A100, 12), (H200, 6)):
        chosen = some(launches, step)
        kernels = compile_kernels([launch.source for launch in chosen], machine.arch)
        for launch, kernel in zip(chosen, kernels, strict=True):
            taken = kernel.resources
            assert taken.spill_bytes == taken.stack_bytes == 0, launch.source.text
            assert taken.registers * launch.block[0] <= 65536
            assert launch.shared_bytes <= machine.shared_bytes


def first_of(
    net: md.Layer, shape: tuple[int, ...], precision: str = "float16"
) -> ContractionProblem:
    return problems_of(net, shape, precision)[0]


def test_it_comes_first_where_it_can() -> None:
    problem = first_of(layer(32, 3, 1, 1), (8, 32, 28, 28))
    assert algorithms_for(problem, H200)[0].core == DEPTHWISE.name
    assert algorithms_for(problem, A100)[0].core == DEPTHWISE.name
    assert {depthwise.STRIPS[i].lanes for i in depthwise.strips_for(problem, H200)} == {1, 2, 4, 8}
    assert min(depthwise.STRIPS[i].lanes for i in DEPTHWISE.choices(problem, H200)) > 1
    large = first_of(layer(32, 3, 1, 1), (512, 32, 28, 28))
    assert min(depthwise.STRIPS[i].lanes for i in DEPTHWISE.choices(large, H200)) > 2
    odd = first_of(layer(33, 3, 1, 1), (8, 33, 28, 28))
    assert {depthwise.STRIPS[i].lanes for i in DEPTHWISE.choices(odd, H200)} == {1}
    float32 = first_of(layer(32, 3, 1, 1), (8, 32, 28, 28), "tf32")
    assert {depthwise.STRIPS[i].lanes for i in depthwise.strips_for(float32, H200)} == {1, 2, 4}


def test_what_it_refuses() -> None:
    problem = first_of(layer(32, 3, 1, 1), (8, 32, 28, 28))
    many = first_of(L.Conv2d(32, 32, 3, groups=4), (8, 32, 28, 28))
    tall = replace(problem, y=replace(problem.y, row=problem.y.row + 32))
    aside = replace(problem, x=replace(problem.x, offset=4))
    wide = first_of(layer(32, (3, 151), padding=(1, 75)), (8, 32, 28, 160))
    for other, reason in (
        (many, "its groups have more than one input channel"),
        (first_of(layer(32, 3), (8, 32, 28, 28), "float32"), "its images are planar"),
        (tall, "pixels of its result are not at regular strides"),
        (aside, "its tensors are not aligned to vectors"),
        (wide, "its windows do not fit registers and shared memory"),
    ):
        assert DEPTHWISE.why_not(other, H200) == reason, other.describe()
        assert DEPTHWISE.name not in {algorithm.core for algorithm in algorithms_for(other, H200)}


def test_slices_are_read_and_written_in_place() -> None:
    """Accesses are as wide as the slice's distances allow."""
    problem = first_of(layer(32, 3, 1, 1), (8, 32, 28, 28))
    size = 28 * 28 * 36
    sliced = replace(problem.x, image=size, row=28 * 36, pixel=36)
    for changed in (replace(problem, x=sliced), replace(problem, y=sliced)):
        lanes = {depthwise.STRIPS[i].lanes for i in depthwise.strips_for(changed, H200)}
        assert lanes == {1, 2, 4}
