"""The exceptions of this binding; CuDNNError carries all that helps to understand a failure."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from minidnn.cudnn.enums import Status
from minidnn.errors import DeviceError, MiniDNNError


def status_name(status: int) -> str:
    """Return cuDNN's name of a status code."""
    try:
        return Status(status).name
    except ValueError:
        return f"unknown cuDNN status {status}"


NOT_SUPPORTED = range(3000, 4000)
"""The status codes of the category NOT_SUPPORTED: not this way, rather than broken."""


class CuDNNError(DeviceError):
    """A cuDNN function returned an error status.

    Attributes: ``status`` (the code), ``function`` (the C function, or None), ``last_error``
    (cuDNN's own explanation, may be empty) and ``context`` (what was passed, printed: shapes,
    dtypes, layouts, padding, ...).  It can be pickled, and it has CuPy's ``add_info``.
    """

    def __init__(
        self,
        status: int,
        function: str | None = None,
        last_error: str = "",
        context: dict[str, Any] | None = None,
    ) -> None:
        self.status = int(status)
        self.function = function
        self.last_error = last_error
        # Printed now: an exception that is kept must not keep arrays alive.
        self.context = {key: describe(value) for key, value in (context or {}).items()}
        self._infos: list[str] = []
        super().__init__(self.status)

    @property
    def unsupported(self) -> bool:
        """Whether cuDNN cannot do it this way, rather than that something is broken."""
        return self.status in NOT_SUPPORTED

    def add_info(self, info: str) -> None:
        """Append a line to the message."""
        self._infos.append(info)

    def add_infos(self, infos: list[str]) -> None:
        """Append lines to the message."""
        self._infos.extend(infos)

    def __str__(self) -> str:
        text = f"cuDNN Error: {status_name(self.status)} ({self.status})"
        if self.function:
            text += f" in {self.function}"
        if self.last_error:
            text += f": {self.last_error}"
        lines = [f"{key}: {value}" for key, value in self.context.items()]
        return "".join([text, *(f"\n  {line}" for line in [*lines, *self._infos])])

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = (self.status, self.function, self.last_error, self.context)
        return (type(self), arguments, {"_infos": list(self._infos)})


def describe(value: Any) -> str:
    """Print one argument for a message; arrays by shape, dtype, strides in elements and device."""
    if isinstance(value, str):
        return value
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    is_array = hasattr(dtype, "itemsize")  # a TensorInfo has a shape and a dtype, too
    if isinstance(shape, tuple) and dtype is not None and is_array:
        strides = tuple(stride // dtype.itemsize for stride in value.strides)
        device = getattr(getattr(value, "device", None), "id", None)
        return f"shape={shape}, dtype={dtype.name}, strides={strides}, device={device}"
    name = getattr(value, "name", None)
    return name if isinstance(name, str) else repr(value)


def last_error_text() -> str:
    """Return cuDNN's explanation of the calling thread's last error; empty if there is none."""
    from minidnn.cudnn import library

    loaded = library.loaded()
    if loaded is None:
        return ""
    buffer = ctypes.create_string_buffer(8192)
    loaded.cudnnGetLastErrorString(buffer, len(buffer))
    return buffer.value.decode("utf-8", errors="replace").strip()


def check(
    status: int,
    function: str,
    context: dict[str, Any] | Callable[[], dict[str, Any]] | None = None,
    /,
    **more: Any,
) -> None:
    """Raise :class:`CuDNNError` unless ``status`` is success.

    ``context`` is a mapping, or a function that makes one (called only on failure).
    """
    if status:
        details = context() if callable(context) else context
        raise CuDNNError(status, function, last_error_text(), {**(details or {}), **more})


class ArgumentError(MiniDNNError, ValueError):
    """An argument cannot work; found before cuDNN was called.  Names argument, value and remedy."""


class DTypeError(MiniDNNError, TypeError):
    """An array has a dtype that cuDNN does not take here."""


def check_status(status: int) -> None:
    """Raise :class:`CuDNNError` unless ``status`` is success; CuPy's name."""
    if status:
        raise CuDNNError(status, None, last_error_text())


class NoAlgorithmError(MiniDNNError, RuntimeError):
    """No algorithm of cuDNN fits what was asked for: workspace, determinism, math type."""
