"""The ``onnx`` package, imported when it is needed."""

from __future__ import annotations

from types import ModuleType

from minidnn.errors import DeviceError

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
