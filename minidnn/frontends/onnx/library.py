"""The ``onnx`` package, imported when it is needed, and what a model may ask for.

A small file must not take all memory.  A file is read once and parsed, which takes at most some 64
times its size.  The limits are of what is computed beside that.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from types import ModuleType

from minidnn.errors import DeviceError, GraphError

#: The oldest opset whose operators are known.  ONNX's rules for broadcasting begin with 7; 6 is
#: what its own tests of converted models use.
OLDEST_OPSET = 6


def import_onnx() -> ModuleType:
    """The package; DeviceError says how to install it where it is missing."""
    try:
        import onnx
    except ImportError as error:
        raise DeviceError(
            f"ONNX models need the package onnx, which cannot be imported ({error}); "
            "pip install 'minidnn[onnx]'"
        ) from error
    return onnx


def newest_opset() -> int:
    """The newest opset that the installed ``onnx`` knows."""
    return int(import_onnx().defs.onnx_opset_version())


#: Bytes of constants that reading a model may compute (beside 4 times what its file holds).
COMPUTED_BYTES = 256 << 20
#: Elements of one value of a graph, and of one of its axes.
MOST_ELEMENTS = 1 << 36
LONGEST_AXIS = 1 << 31
HIGHEST_RANK = 32
#: Nodes, and outputs of one node.
MOST_NODES = 1 << 18
MOST_OUTPUTS = 1 << 14
#: Functions that call each other, and branches within branches.
DEEPEST = 32
#: Taps of a window along an axis, and padding before and behind it.
LARGEST_WINDOW = 1 << 16
#: Elements of a padded plane: these, and so many for each that is not padded.
PADDED_ELEMENTS = 1 << 20
PADDED_TIMES = 16
#: Indices along an axis that are made to a table, as Resize does.
LONGEST_TABLE = 1 << 20


def check_shape(what: str, shape: Sequence[int]) -> tuple[int, ...]:
    """The shape; GraphError if it is larger than any value may be."""
    found = tuple(int(size) for size in shape)
    if len(found) > HIGHEST_RANK:
        raise GraphError(f"{what} has rank {len(found)}; valid is at most {HIGHEST_RANK}")
    if any(not 0 <= size < LONGEST_AXIS for size in found) or prod(found) > MOST_ELEMENTS:
        raise GraphError(
            f"{what} has shape {found}; valid are sizes from 0 to {LONGEST_AXIS - 1} and at most "
            f"{MOST_ELEMENTS} elements"
        )
    return found


class Budget:
    """Counts the bytes of constants that are computed while a model is read."""

    def __init__(self, model_bytes: int) -> None:
        self.left = COMPUTED_BYTES + 4 * model_bytes

    def spend(self, what: str, bytes: int) -> None:
        self.left -= bytes
        if self.left < 0:
            raise GraphError(
                f"{what} makes {bytes} bytes of constants; valid are, in all, {COMPUTED_BYTES} and "
                "4 times the model's size"
            )
