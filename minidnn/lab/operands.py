"""Shapes of convolutions and products, their operands and references, and the check of a result.

Operands are drawn once for each shape and kept in files, which measuring processes read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod, sqrt
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np

from ..errors import UnsupportedError
from .step import Block, Ladder


@dataclass(frozen=True)
class ConvolutionShape:
    """The sizes of a convolution; stride, padding and dilation are the same along both axes."""

    batch: int
    channels: int
    height: int
    width: int
    filters: int
    window_height: int = 3
    window_width: int = 3
    stride: int = 1
    padding: int = 0
    dilation: int = 1

    def __post_init__(self) -> None:
        for name, number in vars(self).items():
            if number < (least := 0 if name == "padding" else 1):
                raise UnsupportedError(f"{name}={number}; valid are {least} and more")
        if min(self.out_height, self.out_width) < 1:
            raise UnsupportedError(f"the window is larger than the padded image: {self}")

    @property
    def out_height(self) -> int:
        return self._positions(self.height, self.window_height)

    @property
    def out_width(self) -> int:
        return self._positions(self.width, self.window_width)

    def _positions(self, size: int, window: int) -> int:
        return (size + 2 * self.padding - (window - 1) * self.dilation - 1) // self.stride + 1

    @property
    def image_shape(self) -> tuple[int, int, int, int]:
        return self.batch, self.channels, self.height, self.width

    @property
    def filter_shape(self) -> tuple[int, int, int, int]:
        return self.filters, self.channels, self.window_height, self.window_width

    @property
    def result_shape(self) -> tuple[int, int, int, int]:
        return self.batch, self.filters, self.out_height, self.out_width

    @property
    def taps(self) -> int:
        """Elements of the window: height by width."""
        return self.window_height * self.window_width

    @property
    def terms(self) -> int:
        """Products that are summed for an element of the result."""
        return self.channels * self.taps

    @property
    def operands(self) -> dict[str, int]:
        """How many elements each operand has; a step reads or writes some of them."""
        return {
            "x": prod(self.image_shape),
            "w": prod(self.filter_shape),
            "bias": self.filters,
            "y": prod(self.result_shape),
        }

    @property
    def operations(self) -> int:
        """Floating-point operations: two for each multiply-add, those with padding included."""
        return 2 * self.operands["y"] * self.terms

    def tiles(self, block: Block) -> tuple[int, int]:
        """How many blocks cover the output plane, across and down."""
        return -(-self.out_width // block[0]), -(-self.out_height // block[1])

    def halo(self, block: Block) -> tuple[int, int]:
        """Extents of the input tile that the outputs of a block need: columns and rows."""
        return (
            (block[0] - 1) * self.stride + (self.window_width - 1) * self.dilation + 1,
            (block[1] - 1) * self.stride + (self.window_height - 1) * self.dilation + 1,
        )


def convolve(shape: ConvolutionShape, operands: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns the reference result in float64; a bias, if there is one, is followed by a ReLU."""
    border = (shape.padding, shape.padding)
    images = operands["x"].reshape(shape.image_shape).astype(np.float64)
    x = np.pad(images, [(0, 0), (0, 0), border, border])
    w = operands["w"].reshape(shape.filter_shape).astype(np.float64)
    y = np.zeros(shape.result_shape)
    step, extent = shape.stride, shape.stride * np.array(y.shape[2:])
    for i, j in np.ndindex(*w.shape[2:]):
        top, left = i * shape.dilation, j * shape.dilation
        pixels = x[:, :, top : top + extent[0] : step, left : left + extent[1] : step]
        y += (w[:, :, i, j] @ pixels.reshape(*pixels.shape[:2], -1)).reshape(y.shape)
    if "bias" in operands:
        y = np.maximum(y + operands["bias"].reshape(-1, 1, 1), 0.0)
    return y


@dataclass(frozen=True)
class PositiveSizes:
    """A shape whose sizes are all 1 or more."""

    def __post_init__(self) -> None:
        for name, number in vars(self).items():
            if number < 1:
                raise UnsupportedError(f"{name}={number}; valid are 1 and more")


@dataclass(frozen=True)
class MovementShape(PositiveSizes):
    """A shape of kernels that move elements: there is no arithmetic, and nothing is rounded."""

    operations: ClassVar[int] = 0
    terms: ClassVar[int] = 0


@dataclass(frozen=True)
class ProductShape(PositiveSizes):
    """The M (rows), N (columns) and K (depth) extents of a matrix product."""

    rows: int = 4096
    columns: int = 4096
    depth: int = 4096

    @property
    def operands(self) -> dict[str, int]:
        """How many elements both factors and the result have."""
        rows, columns, depth = self.rows, self.columns, self.depth
        return {"a": rows * depth, "b": depth * columns, "y": rows * columns}

    @property
    def terms(self) -> int:
        """Products that are summed for an element of the result."""
        return self.depth

    @property
    def operations(self) -> int:
        """Floating-point operations: two for each multiply-add."""
        return 2 * self.rows * self.columns * self.depth


def multiply(shape: ProductShape, operands: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns the reference result in float64."""
    a = operands["a"].reshape(shape.rows, shape.depth).astype(np.float64)
    return a @ operands["b"].reshape(shape.depth, shape.columns).astype(np.float64)


RESULT = "y"
"""The name of the operand that kernels write."""
_EPSILON = float(np.finfo(np.float32).eps)
_HALF_EPSILON = float(np.finfo(np.float16).eps)
_OF_TENSOR_CORES = 8


def tolerance(shape: Any, in_float16: Collection[str] = ()) -> float:
    """The largest error of a result that is accepted, relative to its largest element.

    It allows two roundings and those of the sum, which add up like steps of a random walk.  A sum
    that grows to S in n steps has a standard deviation of S √n ε / 6, and among some millions of
    elements one is off by five to six deviations.

    A result in float16 is rounded to that dtype, and tensor cores may have truncated its sums
    instead of rounding them, once for every eight products or more: these errors add up linearly.
    """
    if RESULT in in_float16:
        return _HALF_EPSILON / 2 + _EPSILON * (2 + shape.terms / _OF_TENSOR_CORES)
    return _EPSILON * (2 + sqrt(shape.terms))


def draw(
    names: Sequence[str], shape: Any, in_float16: Collection[str] = ()
) -> dict[str, np.ndarray]:
    """Draws random operands of a shape, those ``in_float16`` in float16; the result is left out."""
    random = np.random.default_rng(0)
    drawn = {
        name: random.standard_normal(shape.operands[name], np.float32)
        for name in names
        if name != RESULT
    }
    return {
        name: array.astype(np.float16) if name in in_float16 else array
        for name, array in drawn.items()
    }


@dataclass(frozen=True)
class Operands:
    """Files of operands and of the expected result, and the tolerance of the latter."""

    files: dict[str, Path]
    expected: Path
    tolerance: float


class OperandFolder:
    """A temporary folder of operands and expected results, which processes share.  Each file is
    made on first use; :meth:`close` removes all."""

    def __init__(self, ladder: Ladder) -> None:
        self._ladder = ladder
        self._folder = TemporaryDirectory(prefix="minidnn-lab-")
        self._made: dict[tuple[Any, tuple[str, ...], frozenset[str]], Operands] = {}

    def of(self, names: Sequence[str], shape: Any, in_float16: Collection[str] = ()) -> Operands:
        """The operands ``names`` of a step on a shape, of which ``in_float16`` are in float16."""
        inputs = tuple(sorted(name for name in names if name != RESULT))
        key = (shape, inputs, frozenset(in_float16))
        if key not in self._made:
            operands = draw(inputs, shape, in_float16)
            expected = self._ladder.reference(shape, operands).astype(np.float32)
            files = {name: self._save(name, array) for name, array in operands.items()}
            expected_file = self._save(RESULT, expected)
            self._made[key] = Operands(files, expected_file, tolerance(shape, in_float16))
        return self._made[key]

    def _save(self, name: str, array: np.ndarray) -> Path:
        path = Path(self._folder.name) / f"{len(self._made)}-{name}.npy"
        np.save(path, array)
        return path

    def close(self) -> None:
        """Removes the files.  May be called again."""
        self._folder.cleanup()

    def __enter__(self) -> OperandFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class WrongResultError(Exception):
    """The result of a kernel is wrong, so that it is not timed."""


def first_wrong(found: Any, expected: Any, tolerance: float) -> str | None:
    """Describes the first wrong element and counts all of them; None if the result is right.

    ``found`` is flat.  Both arrays are NumPy's, or both are CuPy's.  ``tolerance`` is that of
    :func:`tolerance`.
    """
    atol = tolerance * max(1.0, float(abs(expected).max()))
    wrong = ~(abs(found.astype(expected.dtype) - expected.ravel()) <= atol)  # NaN is wrong, too
    count = int(wrong.sum())
    if not count:
        return None
    first = int(wrong.argmax())
    at = ", ".join(str(int(index)) for index in np.unravel_index(first, expected.shape))
    return (
        f"y[{at}] is {float(found[first]):.7g} and should be {float(expected.ravel()[first]):.7g}; "
        f"{count} of {found.size} elements are wrong"
    )
