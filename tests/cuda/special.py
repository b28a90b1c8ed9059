"""NaN and infinities at single places of what a convolution or a gradient reads: cases of every
kernel of ours, what must not be finite then, and a run in the emulator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import numpy as np

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cuda.contraction.config import CudaAlgorithm, prepare_of, workspace_bytes
from minidnn.backends.cuda.contraction.kernel import ContractionKernel
from minidnn.backends.cuda.contraction.kernel_registry import KERNELS, LoadedContraction
from minidnn.backends.cuda.contraction.problem import (
    FILTER_GRADIENT,
    IMAGE_GRADIENT,
    Addresses,
    ContractionProblem,
    Direction,
)
from minidnn.backends.cuda.functions import Loaded
from minidnn.backends.cuda.kernels import Launch
from minidnn.backends.cuda.machine import Machine
from minidnn.graph import operators as ops
from minidnn.graph.types import TensorType
from minidnn.runtime.arrays import from_bits, to_bits

from .arrays import STORED, strided
from .emulator.run import Emulated, guarded
from .gradients import Convolved, Gradient
from .lowered import FEW
from .single import EmulatedLaunch

FORWARD: Direction = "forward"
DIRECTIONS = (FORWARD, IMAGE_GRADIENT, FILTER_GRADIENT)
SPREADS = "winograd"
"""The kernel that spreads what is not finite over a tile, as is documented."""
OF_BYTES = "dp4a"
"""The kernel that multiplies integers alone."""
CASES = {
    "one chunk": Gradient(FORWARD, Convolved((2, 8, 7, 5), 16, (3, 3), padding=(1, 1)), "float16"),
    "5 chunks": Gradient(FORWARD, Convolved((1, 40, 6, 9), 72, (2, 3), padding=(1, 0)), "bfloat16"),
    "column": Gradient(FORWARD, Convolved((2, 24, 8, 5), 8, (3, 1), padding=(1, 0)), "float16"),
    "even columns": Gradient(FORWARD, Convolved((1, 24, 6, 7), 8, (1, 4)), "bfloat16"),
    "even chunks": Gradient(
        FORWARD, Convolved((2, 16, 5, 7), 8, (3, 3), padding=(1, 1)), "float16"
    ),
    "few channels": Gradient(
        FORWARD, Convolved((1, 3, 9, 11), 8, (3, 5), (2, 2), (1, 2)), "float16"
    ),
    "pointwise": Gradient(FORWARD, Convolved((2, 56, 5, 7), 24, (1, 1)), "bfloat16"),
    "steps": Gradient(FORWARD, Convolved((2, 40, 7, 6), 8, (3, 3), (2, 2), (1, 1)), "float16"),
    "exact": Gradient(FORWARD, Convolved((2, 5, 7, 6), 9, (3, 2), (2, 1), (1, 1))),
    "one pixel": Gradient(FORWARD, Convolved((5, 24, 1, 1), 17, (1, 1))),
    "depthwise": Gradient(
        FORWARD, Convolved((2, 24, 7, 6), 24, (3, 3), (1, 2), (1, 1), groups=24), "float16"
    ),
    "depthwise NCHW": Gradient(
        FORWARD, Convolved((2, 3, 7, 6), 3, (3, 3), padding=(1, 1), groups=3)
    ),
    "image": Gradient(
        IMAGE_GRADIENT, Convolved((2, 16, 7, 6), 24, (3, 3), padding=(1, 1)), "float16"
    ),
    "image, even": Gradient(
        IMAGE_GRADIENT, Convolved((1, 8, 6, 9), 16, (3, 3), padding=(1, 1)), "bfloat16"
    ),
    "image, pointwise": Gradient(IMAGE_GRADIENT, Convolved((2, 16, 5, 7), 40, (1, 1)), "bfloat16"),
    "image, exact": Gradient(IMAGE_GRADIENT, Convolved((2, 5, 7, 6), 9, (3, 2), padding=(1, 1))),
    "image, depthwise": Gradient(
        IMAGE_GRADIENT, Convolved((1, 8, 7, 6), 8, (3, 3), padding=(1, 1), groups=8), "float16"
    ),
    "image, depthwise, steps": Gradient(
        IMAGE_GRADIENT, Convolved((1, 8, 7, 6), 8, (3, 3), (2, 2), (1, 1), groups=8), "bfloat16"
    ),
    "image, planes": Gradient(
        IMAGE_GRADIENT, Convolved((1, 3, 7, 6), 3, (3, 3), (2, 1), (1, 1), groups=3)
    ),
    "filter": Gradient(FILTER_GRADIENT, Convolved((2, 5, 7, 6), 9, (3, 2), (1, 2), (1, 1))),
    "filter, few channels": Gradient(
        FILTER_GRADIENT, Convolved((2, 3, 9, 7), 16, (5, 3), (2, 2), (2, 1)), "float16"
    ),
    "filter, depthwise": Gradient(
        FILTER_GRADIENT, Convolved((2, 16, 7, 9), 16, (3, 5), (1, 2), (1, 2), groups=16), "float16"
    ),
    "filter, planes": Gradient(
        FILTER_GRADIENT, Convolved((2, 3, 7, 6), 3, (3, 3), (1, 2), (1, 1), groups=3)
    ),
}
"""By every kernel but those two, and by halos with every way to end a row of the window."""
_PLACES = 3
"""That are tried of each operand, beside the first number and the last."""

Computes = Callable[[Sequence[np.ndarray]], np.ndarray]


@dataclass(frozen=True)
class Single:
    """A convolution or a gradient by one choice of a kernel of ours."""

    gradient: Gradient
    kernel: ContractionKernel
    choice: int

    @property
    def algorithm(self) -> CudaAlgorithm:
        return CudaAlgorithm(self.kernel.name, 0)

    @property
    def launches(self) -> list[Launch]:
        """What gathers an image of few channels, and the kernel's."""
        problem = self.gradient.problem
        before = prepare_of(problem, self.algorithm, FEW)
        own = self.kernel.launches(problem, self.choice, FEW)
        return [*own] if before is None else [before, *own]

    def __str__(self) -> str:
        return f"{self.kernel.describe(self.choice)}: {self.gradient}"

    def emulated(self, given: Sequence[np.ndarray], kernels: Emulated) -> np.ndarray:
        """What the emulator makes of operands, which lie between NaN."""
        problem, precision = self.gradient.problem, self.gradient.precision
        launches = self.launches
        x, w, y = (self._laid(one, given) for one in ("image", "filter", "result"))
        image = x
        if problem.gather is not None:
            _, image = guarded(workspace_bytes(problem, self.algorithm, 0) // x.itemsize, x.dtype)
            kernels.launch(launches.pop(0), [x, image])
        workspace = self.kernel.workspace(problem, self.choice, FEW)
        _, own = guarded(workspace // 4, np.dtype("f"))
        arrays = [image, w, y, own]
        loaded: list[Any] = [EmulatedLaunch(one, kernels, False, arrays) for one in launches]
        computed = LoadedContraction(
            problem, self.kernel, self.choice, FEW, cast(Sequence[Loaded], loaded)
        )
        first, second, third, scratch = (array.ctypes.data for array in arrays)
        for row in computed.rows(Addresses(first, second, third, workspace=scratch)):
            row.bind(())()
        if self.gradient.of == FILTER_GRADIENT:
            order = _filter_order(problem)
            shape = self.gradient.graph.outputs[0].shape
            found = from_bits(w, precision).reshape([shape[i] for i in order])
            return np.asarray(found.transpose(np.argsort(order)), np.float32)
        made, lies = (x, problem.x) if self.gradient.of == IMAGE_GRADIENT else (y, problem.y)
        return np.asarray(strided(from_bits(made, precision), lies, problem.batch), np.float32)

    def _laid(self, what: str, given: Sequence[np.ndarray]) -> np.ndarray:
        """The image, the filter or the result as they lie, between NaN; NaN, if it is what is
        computed."""
        problem, precision = self.gradient.problem, self.gradient.precision
        read = {
            FORWARD: ("image", "filter"),
            IMAGE_GRADIENT: ("result", "filter"),
            FILTER_GRADIENT: ("image", "result"),
        }[self.gradient.of]
        array = given[read.index(what)] if what in read else None
        if what == "filter":
            if array is None:
                return guarded(int(np.prod(problem.w.shape)), STORED[precision])[1]
            order: Sequence[int] = _filter_order(problem)
            if problem.gather is not None:
                array, order = problem.gather.filter(array, precision), range(4)
            bits = to_bits(np.ascontiguousarray(array.transpose(order)), precision)
            _, found = guarded(bits.size, STORED[precision])
            found[:] = bits.ravel()
            return found
        lies = problem.x if what == "image" else problem.y
        _, found = guarded(problem.batch * lies.image, STORED[precision])
        if array is not None:
            strided(found, lies, problem.batch)[:] = to_bits(array, precision)
        return found

    def expected(self, given: Sequence[np.ndarray]) -> np.ndarray:
        """In float64, with the zeros that a kernel multiplies by design."""
        if self.gradient.problem.gather is not None:
            return _blocks(self.gradient, given)
        is_convolution = self.kernel.name.startswith("backward")
        if is_convolution and self.gradient.case.stride == (1, 1):
            return _around(self.gradient, given)
        return self.gradient.reference(given)


def _around(gradient: Gradient, given: Sequence[np.ndarray]) -> np.ndarray:
    """An image's gradient as a convolution of the incoming one: filters are multiplied by the zeros
    around that, too."""
    case = gradient.case
    batch, channels, rows, columns = case.images
    down, across = ((k - 1) * d for k, d in zip(case.window, case.dilation, strict=True))
    images = (batch, channels, rows + 2 * down, columns + 2 * across)
    wide = replace(gradient, case=replace(case, images=images))
    dy = np.pad(given[0], ((0, 0), (0, 0), (down, down), (across, across)))
    return wide.reference([dy, given[1]])[:, :, down : down + rows, across : across + columns]


def _blocks(gradient: Gradient, given: Sequence[np.ndarray]) -> np.ndarray:
    """A convolution of an image that is gathered in blocks: windows end where a block does, and are
    zeros there."""
    x, w = (one.astype(np.float64) for one in given)
    case, how = gradient.case, gradient.problem.gather
    assert how is not None
    (y,) = case.convolution.infer(TensorType(x.shape), TensorType(w.shape))
    steps = zip(how.taps(case.window), (how.stride[0], how.columns), strict=True)
    whole = [taps * side for taps, side in steps]
    more = [(0, n - k) for n, k in zip(whole, case.window, strict=True)]
    pads = [
        (pad, max(0, (made - 1) * stride + n - size - pad))
        for pad, made, stride, n, size in zip(
            case.padding, y.shape[2:], case.stride, whole, x.shape[2:], strict=True
        )
    ]
    padded = np.pad(x, [(0, 0), (0, 0), *pads])
    (found,) = ops.Conv2d(case.stride).reference(padded, np.pad(w, [(0, 0), (0, 0), *more]))
    return found[:, :, : y.shape[2], : y.shape[3]]


def _filter_order(problem: ContractionProblem) -> tuple[int, int, int, int]:
    return (0, 1, 2, 3) if problem.planar else (0, 2, 3, 1)


KINDS = ("window", "window", "any", "pointwise", "one pixel", "depthwise", "few channels")


def drawn(seed: int) -> Gradient:
    """A convolution or a gradient of any geometry, of an odd or an even number of chunks of 8
    channels or of few channels."""
    random = np.random.default_rng(seed)
    kind, of = str(random.choice(KINDS)), DIRECTIONS[seed % 3]
    precision = ("float16", "bfloat16", "float32")[seed // 3 % 3]
    channels = int(random.choice([8, 16, 24, 40, 56]))
    if kind == "few channels":
        channels = int(random.integers(1, 5))
    filters = channels if kind == "depthwise" else 8 * int(random.integers(1, 6))
    window, stride, dilation = (tuple(random.integers(1, n, 2).tolist()) for n in (6, 4, 3))
    if kind in ("pointwise", "one pixel"):
        window = stride = (1, 1)
    if kind == "window" or (of == IMAGE_GRADIENT and kind != "depthwise"):
        stride = (1, 1)
    if kind != "any":
        dilation = (1, 1)
    reach = [(k - 1) * d for k, d in zip(window, dilation, strict=True)]
    padding = [int(random.integers(0, one + 1)) for one in reach]
    rows, columns = (
        max(1, far + 1 - 2 * pad) + int(random.integers(0, 1 if kind == "one pixel" else 9))
        for far, pad in zip(reach, padding, strict=True)
    )
    images = (int(random.integers(1, 3)), channels, rows, columns)
    groups = channels if kind == "depthwise" else 1
    case = Convolved(images, filters, window, stride, (padding[0], padding[1]), dilation, groups)
    return Gradient(of, case, precision)


def singles(gradient: Gradient, machine: Machine, every: bool = False) -> list[Single]:
    """The kernels that can compute it, also where they would not be tried, by the first of their
    choices or by all."""
    problem = gradient.problem
    return [
        Single(gradient, kernel, choice)
        for kernel in KERNELS.values()
        if problem.direction in kernel.directions
        and kernel.name != SPREADS
        and kernel.why_not(problem, machine) is None
        for choice in kernel.choices(problem, machine)[: None if every else 1]
    ]


def reciprocal(channels: int) -> md.Layer:
    """1 / x, of which the zeros behind the last channel would make infinities."""
    x = md.Input((channels, 5, 6))
    return md.Model(x, L.Conv2d(channels, 16, 1)(1.0 / x))


def positive(channels: int = 24) -> np.ndarray:
    random = np.random.default_rng(0)
    return (0.5 + np.abs(random.standard_normal((2, channels, 5, 6)))).astype(np.float32)


def placed(
    given: Sequence[np.ndarray], seed: int, among: Sequence[int] = (0, 1)
) -> Iterator[tuple[str, list[np.ndarray]]]:
    """Operands with one number that is not finite in one ``among`` them, and where it is."""
    random = np.random.default_rng(seed)
    for i in among:
        operand = given[i]
        places = [0, operand.size - 1, *map(int, random.integers(0, operand.size, _PLACES))]
        for count, place in enumerate(places):
            value = (np.nan, np.inf, -np.inf)[(count + i) % 3]
            changed = operand.copy()
            changed.flat[place] = value
            at = tuple(map(int, np.unravel_index(place, operand.shape)))
            yield f"{value} at {at} of operand {i}", [*given[:i], changed, *given[i + 1 :]]


class Expects(Protocol):
    """A convolution or a gradient, and what must come of its operands."""

    @property
    def gradient(self) -> Gradient: ...

    def expected(self, given: Sequence[np.ndarray]) -> np.ndarray: ...


def check(
    single: Expects, computes: Computes, seed: int = 0, among: Sequence[int] = (0, 1)
) -> None:
    """Results are not finite exactly where float64's are not, and elsewhere have the bits that they
    have without the number that is not finite."""
    given = single.gradient.drawn(seed)
    usual = computes(given)
    assert np.isfinite(usual).all(), f"{single}: finite operands"
    for where, operands in placed(given, seed, among):
        found, right = computes(operands), single.expected(operands)
        wrong = np.isnan(found) != np.isnan(right)
        wrong |= np.where(np.isinf(right) | np.isinf(found), found != right, False)
        wrong |= np.isfinite(right) & (found != usual)
        assert not wrong.any(), (
            f"{single}, {where}: {int(wrong.sum())} of {wrong.size} are wrong, the first at "
            f"{tuple(map(int, np.argwhere(wrong)[0]))}"
        )
