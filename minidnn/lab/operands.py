"""Numbers that a kernel is given, what should come of them, and where a result is wrong."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from .step import Ladder

RESULT = "y"
"""The operand that kernels write."""
_EPSILON = float(np.finfo(np.float32).eps)
_HALF_EPSILON = float(np.finfo(np.float16).eps)
_OF_TENSOR_CORES = 8


def tolerance(shape: Any, halves: Collection[str] = ()) -> float:
    """How far a result may be off, beside its largest element: two roundings, and those of the
    sum, which add up like steps of a random walk.  A sum that grows to S in n steps has a deviation
    of S √n ε / 6, and of some millions of elements one is five to six deviations off.

    A result in float16 is rounded to that, and its sums may be those of tensor cores, which cut
    off instead of rounding, once for each eight products or more: these errors all add up.
    """
    if RESULT in halves:
        return _HALF_EPSILON / 2 + _EPSILON * (2 + shape.terms / _OF_TENSOR_CORES)
    return _EPSILON * (2 + sqrt(shape.terms))


def draw(names: Sequence[str], shape: Any, halves: Collection[str] = ()) -> dict[str, np.ndarray]:
    """Operands of a shape, those in ``halves`` in float16; the result is left out."""
    random = np.random.default_rng(0)
    drawn = {
        name: random.standard_normal(shape.operands[name], np.float32)
        for name in names
        if name != RESULT
    }
    return {
        name: array.astype(np.float16) if name in halves else array for name, array in drawn.items()
    }


@dataclass(frozen=True)
class Operands:
    """Files of operands and of what should come of them, and how far a result may be off."""

    files: dict[str, Path]
    expected: Path
    tolerance: float


class OperandFolder:
    """Operands and results in files, which processes share; each is made once, when it is asked
    for, and gone with this."""

    def __init__(self, ladder: Ladder) -> None:
        self._ladder = ladder
        self._folder = TemporaryDirectory(prefix="minidnn-lab-")
        self._made: dict[tuple[Any, tuple[str, ...], frozenset[str]], Operands] = {}

    def of(self, names: Sequence[str], shape: Any, halves: Collection[str] = ()) -> Operands:
        """What a step with these operands, some of them in float16, is given for a shape."""
        given = tuple(sorted(name for name in names if name != RESULT))
        key = (shape, given, frozenset(halves))
        if key not in self._made:
            operands = draw(given, shape, halves)
            expected = self._ladder.reference(shape, operands).astype(np.float32)
            files = {name: self._save(name, array) for name, array in operands.items()}
            kept = self._save(RESULT, expected)
            self._made[key] = Operands(files, kept, tolerance(shape, halves))
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
    """A kernel computes something else; it is not timed."""


def first_wrong(found: Any, expected: Any, tolerance: float) -> str | None:
    """Where a result is wrong first, and in how many places; None if it is right.

    ``found`` is flat; both are arrays of NumPy, or both of CuPy; ``tolerance`` is that of
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
