"""CuPy, imported on first use, with an error that says how to install it."""

from __future__ import annotations

from typing import Any

from minidnn.errors import DeviceError

_module: Any = None


def cupy() -> Any:
    """Returns the module ``cupy``.

    Raises :class:`~minidnn.errors.DeviceError`: with how to install CuPy if it is missing, or with
    the reason why no GPU can be used.
    """
    global _module
    if _module is None:
        try:
            import cupy as module  # type: ignore[import-not-found,import-untyped,unused-ignore]
        except ImportError as error:
            raise DeviceError(
                f"minidnn.cudnn needs CuPy, and importing it failed ({error}); install it with "
                "'pip install cupy-cuda13x' (CUDA 13) or 'pip install cupy-cuda12x' (CUDA 12)"
            ) from error
        try:
            count = module.cuda.runtime.getDeviceCount()
        except module.cuda.runtime.CUDARuntimeError as error:
            raise DeviceError(
                f"minidnn.cudnn needs an NVIDIA GPU and its driver, and CUDA says: {error}; "
                "see whether 'nvidia-smi' works"
            ) from error
        if count == 0:
            raise DeviceError("minidnn.cudnn needs an NVIDIA GPU, and CUDA sees none")
        _module = module
    return _module
