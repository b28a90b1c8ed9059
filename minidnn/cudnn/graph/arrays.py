"""GPU arrays as a plan sees them: address, shape, strides, dtype, device.

CuPy arrays, PyTorch tensors and everything with ``__cuda_array_interface__`` are understood
without importing their libraries.
"""

from __future__ import annotations

from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from minidnn.cudnn.arrays import packed_strides
from minidnn.cudnn.dtypes import element_type
from minidnn.cudnn.graph.spec import TensorSpec
from minidnn.errors import DeviceError, GraphError
from minidnn.gpu import cupy

if TYPE_CHECKING:
    import numpy as np


class View(NamedTuple):
    """``pointer`` is an address on ``device`` (None when not known), strides are in elements."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: int | None


def is_array(value: Any) -> bool:
    """Whether ``value`` is an array rather than a shape."""
    return hasattr(value, "shape") and hasattr(value, "dtype")


def view(array: Any, name: str) -> View:
    """The view of an array: its address, shape, strides, dtype and device.

    Raises:
        GraphError: it is not an array on a GPU.
    """
    if hasattr(array, "data_ptr"):  # PyTorch
        if not array.is_cuda:
            raise GraphError(f"{name} is a PyTorch tensor on {array.device}; it must be on a GPU")
        dtype = str(array.dtype).removeprefix("torch.")
        shape, strides = tuple(array.shape), tuple(array.stride())
        return View(array.data_ptr(), shape, strides, dtype, array.device.index)
    memory = getattr(array, "data", None)
    if memory is not None and hasattr(memory, "ptr"):  # CuPy
        size = array.itemsize
        strides = tuple(stride // size for stride in array.strides)
        return View(memory.ptr, array.shape, strides, array.dtype.name, array.device.id)
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is None:
        raise GraphError(
            f"{name} is a {type(array).__module__}.{type(array).__qualname__}, not an array on a "
            "GPU; valid are CuPy arrays and PyTorch tensors (cupy.asarray copies from NumPy)"
        )
    return _from_interface(interface)


def room(memory: Any, name: str) -> tuple[int, int, int | None]:
    """The address, size in bytes and device of CuPy memory or of a contiguous array.

    Raises:
        GraphError: an array that is not on a GPU, or not contiguous.
    """
    if hasattr(memory, "ptr"):
        return memory.ptr, memory.mem.size - (memory.ptr - memory.mem.ptr), memory.device_id
    seen = view(memory, name)
    if any(
        size > 1 and have != dense
        for size, have, dense in zip(
            seen.shape, seen.strides, packed_strides(seen.shape), strict=True
        )
    ):
        raise GraphError(f"{name} of shape {seen.shape} has strides {seen.strides}, not contiguous")
    return seen.pointer, prod(seen.shape) * element_type(seen.dtype).size, seen.device


def _from_interface(interface: dict[str, Any]) -> View:
    kind, size = interface["typestr"][1], int(interface["typestr"][2:])
    names = {"f": "float", "i": "int", "u": "uint", "b": "bool"}
    name = names.get(kind, kind)
    dtype = name if kind == "b" else f"{name}{8 * size}"
    shape = tuple(interface["shape"])
    if interface.get("strides"):
        strides = tuple(stride // size for stride in interface["strides"])
    else:
        strides = packed_strides(shape)
    return View(interface["data"][0], shape, strides, dtype, None)


def checked_pointer(array: Any, spec: TensorSpec, name: str, device: int | None) -> int:
    """The address of an array, after checks that the plan was built for such an array.

    Raises:
        GraphError: its shape, dtype, strides or alignment differ.
        DeviceError: its device differs.
    """
    seen = view(array, name)
    if seen.shape != spec.shape:
        raise GraphError(f"{name} has shape {seen.shape}; the plan was built for {spec.shape}")
    if seen.dtype != spec.dtype:
        raise GraphError(f"{name} has dtype {seen.dtype}; the plan was built for {spec.dtype}")
    if seen.strides != spec.strides and any(
        a != b for n, a, b in zip(seen.shape, seen.strides, spec.strides, strict=True) if n > 1
    ):
        raise GraphError(
            f"{name} has strides {seen.strides} (in elements); the plan was built for "
            f"{spec.strides}; copy it into that layout, or describe the graph with this array"
        )
    if device is not None and seen.device is not None and seen.device != device:
        raise DeviceError(f"{name} is on device {seen.device}; the plan was built on {device}")
    if seen.pointer % spec.alignment:
        raise GraphError(
            f"{name} begins at {seen.pointer:#x}, which is not a multiple of {spec.alignment}; "
            "describe the tensor with a smaller alignment, or copy it"
        )
    return seen.pointer


def empty(spec: TensorSpec) -> Any:
    """A new CuPy array of that shape, dtype and strides, not initialised."""
    cp = cupy()
    size = element_type(spec.dtype).size
    memory = cp.cuda.alloc(spec.nbytes)
    return cp.ndarray(
        spec.shape, _cupy_dtype(spec.dtype), memory, tuple(step * size for step in spec.strides)
    )


def _cupy_dtype(name: str) -> Any:
    cp = cupy()
    if name == "bfloat16":
        try:
            from ml_dtypes import bfloat16  # type: ignore[import-not-found,import-untyped,unused-ignore]
        except ImportError:
            raise GraphError(
                "CuPy makes no bfloat16 arrays without the package ml_dtypes; install it, or "
                "give out="
            ) from None
        return cp.dtype(bfloat16)
    return cp.dtype(name)


_BLOCK = 128 * 7817
"""The number of random elements, which larger tensors repeat: 128 times a prime, so that hardly any
two rows of a tensor hold the same numbers."""


def random_like(spec: TensorSpec, seed: int) -> Any:
    """Device memory for one tensor, filled with realistic values: timings on zeros mislead.

    The values are normal numbers for floating-point types (small ones, so that sums stay finite)
    and small integers for the others.  Returns an object that owns the memory; its address is
    ``.ptr``.  The values come from NumPy and are copied on the current stream: cuRAND, which need
    not be installed, cannot be used by several threads that compile.
    """
    import numpy as np

    size = spec.span * element_type(spec.dtype).size
    memory = allocate(size)
    block = _random_block(spec.dtype)
    begin = 4099 * seed % len(block)
    first = np.concatenate([block[begin:], block[:begin]])[: spec.span]
    stream = cupy().cuda.get_current_stream()
    memory.copy_from_host_async(first.ctypes.data, first.nbytes, stream)
    stream.synchronize()  # the host buffer may be freed
    done = first.nbytes
    while done < size:
        length = min(done, size - done)
        (memory + done).copy_from_device_async(memory, length, stream)
        done += length
    return memory


@cache
def _random_block(dtype: str) -> np.ndarray:
    """``_BLOCK`` random elements in their memory representation; bfloat16 as uint16."""
    import numpy as np

    rng = np.random.default_rng(0)
    if dtype not in ("float32", "float64", "float16", "bfloat16"):
        return rng.integers(0, 3, _BLOCK).astype(dtype)
    values = rng.standard_normal(_BLOCK, np.float32) * np.float32(0.1)
    if dtype == "bfloat16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(dtype)


def allocate(nbytes: int) -> Any:
    """``nbytes`` of device memory from CuPy's pool; the address is ``.ptr``."""
    return cupy().cuda.alloc(nbytes)
