"""Arrays of any library as inputs of a GPU program, and its results in the same library.

CuPy and PyTorch arrays must be on the program's device; NumPy arrays (and lists) are copied there
and back; others with ``__dlpack__`` or ``__cuda_array_interface__`` go through CuPy.  An array of
another floating-point dtype, or one that is not contiguous, is converted by its own library first.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ..._cached_property import cached_property
from ...cudnn.graph.spec import ALIGNMENT
from ...errors import DeviceError, GraphError
from ...gpu import cupy
from ...graph.types import FLOATS, TensorType, numpy_dtype
from ...runtime.arrays import check_shape, from_bits, to_bits

HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE = 1, 2, 3  # cudaMemcpyKind


@dataclass(frozen=True)
class ArraySlot:
    """An input or output of a program: what arrays for it must be, and what errors call it."""

    what: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int

    @staticmethod
    def of(what: str, type: TensorType) -> ArraySlot:
        return ArraySlot(what, type.shape, type.dtype, type.bytes)

    @cached_property
    def stored(self) -> np.dtype:
        """The dtype in which NumPy and CuPy hold it: bfloat16 as its bits."""
        return np.dtype(np.uint16) if self.dtype == "bfloat16" else np.dtype(self.dtype)

    @cached_property
    def torch(self) -> tuple[tuple[int, ...], tuple[int, ...], Any]:
        """Shape, strides and dtype of a PyTorch tensor of it."""
        strides = tuple(math.prod(self.shape[axis + 1 :]) for axis in range(len(self.shape)))
        return self.shape, strides, getattr(sys.modules["torch"], self.dtype)

    def is_held(self, dtype: np.dtype) -> bool:
        """Whether an array of that dtype needs no conversion.  (NumPy computes a dtype's name anew
        each time, which takes longer than a launch.)"""
        if self.dtype == "bfloat16":
            return dtype.name == "bfloat16"
        return dtype == self.stored

    def check_shape(self, shape: Sequence[int]) -> None:
        check_shape(self.what, tuple(shape), self.shape)

    def check_dtype(self, dtype: str) -> None:
        if dtype != self.dtype and not (dtype in FLOATS and self.dtype in FLOATS):
            raise GraphError(f"{self.what} has dtype {dtype}; valid is {self.dtype}")

    def described(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclass(slots=True)
class CallerArray:
    """An array of a caller: its address, the library that results are made by, and what must stay
    alive until the copy is under way; ``kind`` is the ``cudaMemcpyKind`` of the copy.

    (Not frozen: calls make them, and a frozen one takes eight times as long to make.)
    """

    pointer: int
    library: ArrayLibrary
    kept: Any
    kind: int = DEVICE_TO_DEVICE


class ArrayLibrary:
    """How arrays of one library are allocated and addressed."""

    is_host = False
    #: The ``cudaMemcpyKind`` of a copy of a result to its arrays.
    written = DEVICE_TO_DEVICE

    def stream(self, device: int) -> int:
        """The handle of the stream that is current in this library."""
        return int(cupy().cuda.get_current_stream(device).ptr)

    def empty(self, slot: ArraySlot, device: int) -> Any:
        """An array for a result."""
        raise NotImplementedError

    def pointer(self, array: Any) -> int:
        return int(array.data.ptr)

    def finished(self, array: Any, slot: ArraySlot) -> Any:
        """A result in the form in which the caller receives it."""
        return array


class _Cupy(ArrayLibrary):
    def empty(self, slot: ArraySlot, device: int) -> Any:
        return cupy().ndarray(slot.shape, slot.stored)  # ``empty`` takes longer to ask for it

    def finished(self, array: Any, slot: ArraySlot) -> Any:
        if slot.dtype != "bfloat16":
            return array
        dtype = _bfloat16()
        if dtype is not None:
            return array.view(dtype)
        return (array.astype(cupy().uint32) << 16).view(cupy().float32)


@dataclass(frozen=True, eq=False)
class _Namespace(_Cupy):
    """A library that imports CuPy's arrays through DLPack."""

    from_dlpack: Any

    def finished(self, array: Any, slot: ArraySlot) -> Any:
        return self.from_dlpack(super().finished(array, slot))


class _Numpy(ArrayLibrary):
    is_host = True
    written = DEVICE_TO_HOST

    def empty(self, slot: ArraySlot, device: int) -> Any:
        return np.empty(slot.shape, slot.stored)

    def pointer(self, array: Any) -> int:
        return int(array.ctypes.data)

    def finished(self, array: Any, slot: ArraySlot) -> Any:
        return from_bits(array, slot.dtype)


class _Torch(ArrayLibrary):
    @cached_property
    def _raw_stream(self) -> Any:
        from ..._torch_streams import raw_stream

        return raw_stream

    def stream(self, device: int) -> int:
        return int(self._raw_stream(device))

    def empty(self, slot: ArraySlot, device: int) -> Any:
        # Strides are the shortest way to an array: without them PyTorch looks for a memory format.
        shape, strides, dtype = slot.torch
        torch = sys.modules["torch"]
        return torch.empty_strided(shape, strides, dtype=dtype, device=_torch_device(device))

    def pointer(self, array: Any) -> int:
        return int(array.data_ptr())


CUPY, NUMPY, TORCH = _Cupy(), _Numpy(), _Torch()


def read(slot: ArraySlot, array: Any, device: int) -> CallerArray:
    """Takes an array for an input of a program.

    GraphError if it does not fit the slot, DeviceError if it lies on another device.
    """
    modules = sys.modules
    if (module := modules.get("cupy")) is not None and isinstance(array, module.ndarray):
        return _cupy(slot, array, device, CUPY)
    if (module := modules.get("torch")) is not None and isinstance(array, module.Tensor):
        return _torch(slot, array, device)
    if isinstance(array, (np.ndarray, np.generic, list, tuple, int, float)):
        return _numpy(slot, array)
    if hasattr(array, "__dlpack_device__") or hasattr(array, "__cuda_array_interface__"):
        return _other(slot, array, device)
    raise GraphError(
        f"{slot.what} is a {type(array).__name__}; valid are CuPy and NumPy arrays, PyTorch "
        "tensors and other arrays with __dlpack__"
    )


def _torch(slot: ArraySlot, tensor: Any, device: int) -> CallerArray:
    """A PyTorch tensor as an input, converted by PyTorch if need be."""
    if not tensor.is_cuda or tensor.device.index != device:
        raise DeviceError(
            f"{slot.what} is on device {tensor.device}; valid is cuda:{device} (NumPy arrays "
            "are copied there)"
        )
    if tensor.shape != slot.shape:
        slot.check_shape(tensor.shape)
    dtype = slot.torch[2]
    if tensor.dtype is not dtype or not tensor.is_contiguous() or tensor.is_neg():
        torch = sys.modules["torch"]
        slot.check_dtype(str(tensor.dtype).removeprefix("torch."))
        if tensor.layout != torch.strided:
            raise GraphError(
                f"{slot.what} has layout {tensor.layout}; valid is torch.strided, dense"
            )
        tensor = tensor.detach().resolve_neg().to(dtype).contiguous()
    return CallerArray(tensor.data_ptr(), TORCH, tensor)


def _numpy(slot: ArraySlot, given: Any) -> CallerArray:
    """An array on the host as an input, converted by NumPy if need be."""
    try:
        array = np.asarray(given)
    except ValueError as error:
        raise GraphError(f"{slot.what} is no regular array: {error}") from None
    slot.check_shape(array.shape)
    if array.dtype.name != slot.dtype:
        slot.check_dtype(array.dtype.name)
        with np.errstate(all="ignore"):
            wide = array.astype(np.float32) if array.dtype.name == "bfloat16" else array
            array = to_bits(wide, slot.dtype)
    array = np.ascontiguousarray(array)
    return CallerArray(array.ctypes.data, NUMPY, array, HOST_TO_DEVICE)


def _cupy(slot: ArraySlot, array: Any, device: int, library: ArrayLibrary) -> CallerArray:
    """A CuPy array as an input, converted by CuPy if need be; results are made by ``library``."""
    data = array.data
    if data.device_id != device:
        raise DeviceError(f"{slot.what} is on device cuda:{data.device_id}; valid is cuda:{device}")
    if array.shape != slot.shape:
        slot.check_shape(array.shape)
    if not slot.is_held(array.dtype):
        name = array.dtype.name
        slot.check_dtype(name)
        array = _converted(array, name, slot.dtype)
    if not array.flags.c_contiguous:
        array = cupy().ascontiguousarray(array)
    return CallerArray(array.data.ptr, library, array)


def _converted(array: Any, old: str, new: str) -> Any:
    """A CuPy array in another dtype, bfloat16 as its bits."""
    cp = cupy()
    if old == "bfloat16":
        array = (array.view(cp.uint16).astype(cp.uint32) << 16).view(cp.float32)
    if new != "bfloat16":
        return array.astype(numpy_dtype(new), copy=False)
    floats = cp.ascontiguousarray(array, cp.float32)
    bits = floats.view(cp.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return cp.where(cp.isnan(floats), bits >> 16 | 0x40, rounded).astype(cp.uint16)


def _other(slot: ArraySlot, array: Any, device: int) -> CallerArray:
    """An array of another library as an input, imported by CuPy or NumPy."""
    if hasattr(array, "__cuda_array_interface__"):
        return _cupy(slot, cupy().asarray(array), device, CUPY)
    device_type, index = array.__dlpack_device__()
    if int(device_type) in (1, 3):  # kDLCPU, kDLCUDAHost
        return _numpy(slot, np.from_dlpack(array))
    if int(device_type) not in (2, 13):  # kDLCUDA, kDLCUDAManaged
        raise DeviceError(
            f"{slot.what} is on DLPack device type {int(device_type)}; valid is cuda:{device}"
        )
    if int(index) != device:
        raise DeviceError(f"{slot.what} is on device cuda:{int(index)}; valid is cuda:{device}")
    namespace = getattr(array, "__array_namespace__", None)
    maker = getattr(namespace(), "from_dlpack", None) if namespace is not None else None
    library = CUPY if maker is None else _Namespace(maker)
    return _cupy(slot, cupy().from_dlpack(array), device, library)


def as_it_is(array: Any, given: CallerArray) -> bool:
    """Whether an array on the device is used in place, without a conversion."""
    if hasattr(array, "data_ptr"):
        return bool(given.pointer == array.data_ptr())
    if (pointer := getattr(getattr(array, "data", None), "ptr", None)) is not None:
        return given.pointer == pointer
    if hasattr(array, "__cuda_array_interface__"):
        return bool(given.pointer == array.__cuda_array_interface__["data"][0])
    return given.pointer == cupy().from_dlpack(array).data.ptr


def outputs_of(given: Any, slots: Sequence[ArraySlot], device: int) -> list[CallerArray]:
    """The arrays of ``out=``: contiguous, of the right type, on the device or NumPy's."""
    arrays = list(given) if isinstance(given, (list, tuple)) else [given]
    if len(arrays) != len(slots):
        raise GraphError(f"out gives {len(arrays)} arrays; valid are {len(slots)}")
    outputs = [_output(slot, array, device) for slot, array in zip(slots, arrays, strict=True)]
    for j, one in enumerate(outputs):
        for i in range(j):
            check_no_overlap(slots[i], outputs[i], slots[j], one)
    return outputs


def check_aligned(slot: ArraySlot, one: CallerArray) -> None:
    """GraphError if the address of an array is not aligned as kernels need it."""
    if one.pointer % ALIGNMENT:
        raise GraphError(
            f"{slot.what} begins at {one.pointer:#x}, so it cannot be bound; valid is a multiple "
            f"of {ALIGNMENT} (it may be given to a call, which copies it)"
        )


def check_no_overlap(slot: ArraySlot, one: CallerArray, other: ArraySlot, two: CallerArray) -> None:
    """GraphError if two arrays overlap."""
    if overlap(slot, one, other, two):
        raise GraphError(f"{slot.what} and {other.what} share memory; valid are arrays that do not")


def overlap(slot: ArraySlot, one: CallerArray, other: ArraySlot, two: CallerArray) -> bool:
    """Whether two arrays share memory."""
    return one.pointer < two.pointer + other.bytes and two.pointer < one.pointer + slot.bytes


def _output(slot: ArraySlot, array: Any, device: int) -> CallerArray:
    """An array of ``out=``, into which a result is written."""
    modules = sys.modules
    library: ArrayLibrary
    if (module := modules.get("cupy")) is not None and isinstance(array, module.ndarray):
        has_dtype, dense = slot.is_held(array.dtype), array.flags.c_contiguous
        array_device, library, writable = array.data.device_id, CUPY, True
    elif (module := modules.get("torch")) is not None and isinstance(array, module.Tensor):
        has_dtype, dense = array.dtype == getattr(module, slot.dtype), array.is_contiguous()
        array_device, library = (array.device.index if array.is_cuda else None), TORCH
        writable = not array.requires_grad
    elif isinstance(array, np.ndarray):
        has_dtype, dense, array_device = slot.is_held(array.dtype), array.flags.c_contiguous, device
        library, writable = NUMPY, array.flags.writeable
        if slot.dtype == "bfloat16" and array.dtype == np.float32:
            raise GraphError(
                f"{slot.what} is a float32 NumPy array; NumPy has no bfloat16: leave out= away"
            )
    else:
        raise GraphError(
            f"{slot.what} is a {type(array).__name__}; valid is a CuPy or NumPy array or a "
            f"PyTorch tensor, {slot.described()}, contiguous"
        )
    if array_device != device:
        raise DeviceError(f"{slot.what} is on device {array.device}; valid is cuda:{device}")
    if not has_dtype or tuple(array.shape) != slot.shape or not dense or not writable:
        dtype = str(array.dtype).removeprefix("torch.")
        dense_text = "" if dense else ", not contiguous"
        raise GraphError(
            f"{slot.what} is {dtype}{list(array.shape)}{dense_text}; valid is a contiguous, "
            f"writable array {slot.described()}"
        )
    return CallerArray(library.pointer(array), library, array, library.written)


@cache
def _torch_device(index: int) -> Any:
    return sys.modules["torch"].device("cuda", index)


def _bfloat16() -> Any:
    """The dtype of package ml_dtypes, or None."""
    try:
        import ml_dtypes  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        return None
    return np.dtype(ml_dtypes.bfloat16)
