"""The names of CuPy 13's ``cupy.cuda.cudnn``: ``available``, ``getVersion``, ``CUDNN_...``.

``from minidnn.cudnn import constants as libcudnn`` replaces ``from cupy.cuda import cudnn as
libcudnn``.  The values are those of cuDNN 9.  ``available`` is found out when it is asked for,
and :func:`minidnn.cudnn.why_unavailable` tells the reason when it is False.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from minidnn.cudnn import _constants_old, enums, library
from minidnn.cudnn.errors import CuDNNError, check_status

__all__ = ["CuDNNError", "check_status", "getVersion", "get_build_version"]


def getVersion() -> int:
    """Return cuDNN's version number, 91900 for 9.19.0."""
    return library.version()


def get_build_version() -> int:
    """Return the version of the loaded library; this binding is not built against one."""
    return library.version()


def _names() -> dict[str, int]:
    found: dict[str, int] = {}
    for kind in vars(enums).values():
        if isinstance(kind, type) and issubclass(kind, IntEnum) and kind is not IntEnum:
            found.update({name: int(member) for name, member in kind.__members__.items()})
    found.update(_constants_old.OLD)
    return found


_CONSTANTS = _names()
globals().update(_CONSTANTS)
__all__ += sorted(_CONSTANTS)


def __getattr__(name: str) -> Any:
    # Not in __all__: "import *" would ask for it, and that loads CuPy and cuDNN.
    if name == "available":
        from minidnn.cudnn import why_unavailable

        return why_unavailable() is None
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
