"""Owning backend descriptors: created, filled, finalized, destroyed exactly once.

A :class:`BackendDescriptor` owns one ``cudnnBackendDescriptor_t``.  It is destroyed by
``close()``, at the end of a ``with`` block, or with its last reference, whichever comes first; it
keeps the descriptors that it refers to alive until then.

Source: cuDNN's documentation of the backend API, ``cudnn_graph.h``.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

from minidnn.cudnn import errors, library
from minidnn.cudnn.descriptor import (
    count_created,
    count_destroyed,
    created_descriptors,
    live_descriptors,
)
from minidnn.cudnn.graph.attributes import Attribute
from minidnn.cudnn.graph.enums import AttributeType, DescriptorType
from minidnn.errors import GraphError

_INT = ctypes.c_int
_ELEMENT: dict[AttributeType, Any] = {
    AttributeType.CUDNN_TYPE_BOOLEAN: ctypes.c_bool,
    AttributeType.CUDNN_TYPE_INT64: ctypes.c_int64,
    AttributeType.CUDNN_TYPE_INT32: ctypes.c_int32,
    AttributeType.CUDNN_TYPE_FLOAT: ctypes.c_float,
    AttributeType.CUDNN_TYPE_DOUBLE: ctypes.c_double,
    AttributeType.CUDNN_TYPE_CHAR: ctypes.c_char,
    AttributeType.CUDNN_TYPE_VOID_PTR: ctypes.c_void_p,
    AttributeType.CUDNN_TYPE_HANDLE: ctypes.c_void_p,
    AttributeType.CUDNN_TYPE_BACKEND_DESCRIPTOR: ctypes.c_void_p,
}
"""The C type of one element; every other attribute type is an enumeration, a C int."""

_KIND = "Backend"
"""The kind under which :func:`minidnn.cudnn.descriptor.live_descriptors` counts them."""


def counts() -> tuple[int, int]:
    """How many backend descriptors this process has created and destroyed so far."""
    created = created_descriptors().get(_KIND, 0)
    return created, created - live_descriptors().get(_KIND, 0)


_FEW = 16
"""The number of descriptors that are created first where cuDNN does not tell how many it will fill.
Creating and destroying one takes longer than reading everything else about an engine."""


class BackendDescriptor:
    """One backend descriptor of the given type.

    Raises:
        CuDNNError: the library refused to create it, an attribute, or to finalize it.
    """

    __slots__ = ("_destroy", "_keep", "_library", "pointer", "type")

    def __init__(self, kind: DescriptorType) -> None:
        self.pointer: int | None = None
        self.type = kind
        self._keep: list[object] = []
        self._library = library.load()
        self._destroy: Callable[[int], int] = self._library.cudnnBackendDestroyDescriptor
        made = ctypes.c_void_p()
        status = self._library.cudnnBackendCreateDescriptor(int(kind), ctypes.byref(made))
        errors.check(status, "cudnnBackendCreateDescriptor", descriptor=kind.name)
        self.pointer = made.value
        count_created(_KIND)

    def set(self, name: Attribute, kind: AttributeType, *values: Any) -> BackendDescriptor:
        """Sets an attribute; ``values`` are numbers, enumeration members or descriptors."""
        element = _ELEMENT.get(kind, _INT)
        raw = [
            value._address() if isinstance(value, BackendDescriptor) else value for value in values
        ]
        self._keep += [value for value in values if isinstance(value, BackendDescriptor)]
        array = (element * len(raw))(*raw)
        status = self._library.cudnnBackendSetAttribute(
            self._address(), int(name), int(kind), len(raw), array
        )
        if status:
            shown = [v.type.name if isinstance(v, BackendDescriptor) else v for v in values]
            self._fail(status, "cudnnBackendSetAttribute", attribute=name.name, values=shown)
        return self

    def set_text(self, name: Attribute, text: str) -> BackendDescriptor:
        """Sets an attribute of type ``CUDNN_TYPE_CHAR``."""
        data = text.encode()
        status = self._library.cudnnBackendSetAttribute(
            self._address(), int(name), int(AttributeType.CUDNN_TYPE_CHAR), len(data), data
        )
        if status:
            self._fail(status, "cudnnBackendSetAttribute", attribute=name.name, values=text)
        return self

    def finalize(self) -> BackendDescriptor:
        """Makes the descriptor usable and its attributes final; returns it."""
        status = self._library.cudnnBackendFinalize(self._address())
        if status:
            self._fail(status, "cudnnBackendFinalize")
        return self

    def get(self, name: Attribute, kind: AttributeType, limit: int = 1) -> list[Any]:
        """Up to ``limit`` values of an attribute (numbers; enumerations as plain integers)."""
        array = (_ELEMENT.get(kind, _INT) * limit)()
        count = self._get(name, kind, limit, array)
        return list(array[: min(count, limit)])

    def get_text(self, name: Attribute) -> str:
        """The text of an attribute of type ``CUDNN_TYPE_CHAR``."""
        kind = AttributeType.CUDNN_TYPE_CHAR
        size = self._get(name, kind, 0, None)
        buffer = ctypes.create_string_buffer(size)
        self._get(name, kind, size, buffer)
        return buffer.value.decode()

    def get_descriptors(
        self, name: Attribute, kind: DescriptorType, limit: int
    ) -> list[BackendDescriptor]:
        """Up to ``limit`` descriptors that an attribute consists of, as new owned descriptors.

        cuDNN fills descriptors that exist, and of most attributes it does not tell how many.
        ``_FEW`` are created first, and ``limit`` if it fills all of those.
        """
        element = AttributeType.CUDNN_TYPE_BACKEND_DESCRIPTOR
        reported = self._get(name, element, 0, None) if limit > 1 else limit
        size = min(reported or _FEW, limit)
        while True:
            made = [BackendDescriptor(kind) for _ in range(size)]
            array = (ctypes.c_void_p * size)(*[item.pointer for item in made])
            count = self._get(name, element, size, array)
            if reported or count < size or size == limit:
                break
            for item in made:
                item.close()
            size = limit
        for item in made[count:]:
            item.close()
        return made[:count]

    def _get(self, name: Attribute, kind: AttributeType, limit: int, array: Any) -> int:
        count = ctypes.c_int64()
        status = self._library.cudnnBackendGetAttribute(
            self._address(), int(name), int(kind), limit, ctypes.byref(count), array
        )
        if status:
            self._fail(status, "cudnnBackendGetAttribute", attribute=name.name)
        return count.value

    def _address(self) -> int:
        if self.pointer is None:
            raise GraphError(f"{self.type.name} is closed and cannot be used any more")
        return self.pointer

    def _fail(self, status: int, function: str, **context: object) -> None:
        errors.check(status, function, descriptor=self.type.name, **context)

    def close(self) -> None:
        """Destroys the descriptor now; doing so again does nothing."""
        pointer, self.pointer = self.pointer, None
        if pointer is not None:
            self._destroy(pointer)
            count_destroyed(_KIND)
            self._keep.clear()

    def __enter__(self) -> BackendDescriptor:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # An instance whose __init__ failed early has no pointer attribute.  At interpreter exit
        # modules are being torn down; an argument's default outlives their names.
        if getattr(self, "pointer", None) is not None and not finalizing():
            self.close()

    def __repr__(self) -> str:
        state = "closed" if self.pointer is None else f"at {self.pointer:#x}"
        return f"<{self.type.name} {state}>"
