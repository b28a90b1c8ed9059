"""The ``onnx`` package, imported when it is needed, and limits on what a model may ask for.

A small hostile file must not take all memory.  Reading and parsing a file takes at most about 64
times its size.  The limits here bound what is computed in addition.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from types import ModuleType

from minidnn.errors import DeviceError, GraphError

#: The oldest opset that is imported.  ONNX's broadcasting rules begin with 7; ONNX's own tests of
#: converted models use 6.
OLDEST_OPSET = 6


def import_onnx() -> ModuleType:
    """Returns the package; DeviceError says how to install it where it is missing."""
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


#: Bytes of constants that importing a model may compute, in addition to 4 times the file's size.
COMPUTED_BYTES = 256 << 20
#: Elements of one value of a graph, the exclusive bound of an axis's size, and the rank.
MOST_ELEMENTS = 1 << 36
LONGEST_AXIS = 1 << 31
HIGHEST_RANK = 32
#: Nodes of a model with its functions inlined, and outputs of one node.
MOST_NODES = 1 << 18
MOST_OUTPUTS = 1 << 14
#: The nesting depth of function calls, and of branches.
DEEPEST = 32
#: Taps of a window along an axis, and padding on each side of an axis.
LARGEST_WINDOW = 1 << 16
#: Elements of a padded plane: ``PADDED_ELEMENTS + PADDED_TIMES * elements without padding``.
PADDED_ELEMENTS = 1 << 20
PADDED_TIMES = 16
#: Entries of an index table along an axis, such as Resize's.
LONGEST_TABLE = 1 << 20


def check_shape(what: str, shape: Sequence[int]) -> tuple[int, ...]:
    """Returns a shape as a tuple of ints; GraphError if it is larger than any value may be."""
    sizes = tuple(int(size) for size in shape)
    if len(sizes) > HIGHEST_RANK:
        raise GraphError(f"{what} has rank {len(sizes)}; valid is at most {HIGHEST_RANK}")
    if any(not 0 <= size < LONGEST_AXIS for size in sizes) or prod(sizes) > MOST_ELEMENTS:
        raise GraphError(
            f"{what} has shape {sizes}; valid are sizes from 0 to {LONGEST_AXIS - 1} and at most "
            f"{MOST_ELEMENTS} elements"
        )
    return sizes


class Budget:
    """The budget for the bytes of constants that are computed while a model is imported."""

    def __init__(self, model_bytes: int) -> None:
        self.left = COMPUTED_BYTES + 4 * model_bytes

    def spend(self, what: str, bytes: int) -> None:
        """Counts bytes; GraphError, which names ``what``, if the budget is exceeded."""
        self.left -= bytes
        if self.left < 0:
            raise GraphError(
                f"{what} makes {bytes} bytes of constants; valid are, in all, {COMPUTED_BYTES} and "
                "4 times the model's size"
            )
