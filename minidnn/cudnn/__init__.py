"""A binding of cuDNN 9 for CuPy arrays.

    from minidnn import cudnn

    y = cudnn.convolution.forward(x, w, padding=1, algorithm="find_ex")
    y = cudnn.pooling.forward(y, window=2)

One module per family of functions (``tensor``, ``convolution``, ``activation``, ``pooling``,
``softmax``, ``dropout``, ``batch_norm``, ``lrn``, ``reduction``, ``op_tensor``, ``transform``), the
backend (graph) API in ``graph``, and everything that CuPy 13 had in ``cupy.cudnn``: in ``compat``,
and by its own name here, so that ``from minidnn import cudnn`` takes the place of ``from cupyx
import cudnn``.  ``constants`` replaces ``cupy.cuda.cudnn``.

Importing this needs neither CuPy, cuDNN nor a GPU; using it says what is missing.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from minidnn.cudnn.errors import ArgumentError, CuDNNError, DTypeError
from minidnn.errors import DeviceError

_MODULES = (
    "activation",
    "batch_norm",
    "compat",
    "constants",
    "convolution",
    "dropout",
    "enums",
    "graph",
    "handle",
    "library",
    "lrn",
    "op_tensor",
    "pooling",
    "reduction",
    "softmax",
    "tensor",
    "transform",
    "workspace",
)

__all__ = [
    "ArgumentError",
    "CuDNNError",
    "DTypeError",
    "path",
    "version",
    "why_unavailable",
    *_MODULES,
]


def why_unavailable() -> str | None:
    """Return why cuDNN cannot be used here and what to do about it, or None when it can."""
    from minidnn.cudnn import library
    from minidnn.gpu import cupy

    try:
        cupy()
        library.load()
    except DeviceError as error:
        return str(error)
    return None


def version() -> int:
    """Return cuDNN's version number, 91900 for 9.19.0; loads the library."""
    from minidnn.cudnn import library

    return library.version()


def path() -> str:
    """Return the file that cuDNN was loaded from; loads the library."""
    from minidnn.cudnn import library

    return library.path()


def __getattr__(name: str) -> Any:
    # "from minidnn.cudnn import x" asks here first: CuPy's names must not be looked for then, since
    # that would import much of the package in the middle of an import.
    if importlib.util.find_spec(f"{__name__}.{name}") is not None:
        return importlib.import_module(f"{__name__}.{name}")
    if not name.startswith("_"):
        compat = importlib.import_module("minidnn.cudnn.compat")
        if name in compat.__all__:
            globals()[name] = getattr(compat, name)  # later look-ups do not come here
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    compat = importlib.import_module("minidnn.cudnn.compat")
    return sorted({*globals(), *_MODULES, *compat.__all__})
