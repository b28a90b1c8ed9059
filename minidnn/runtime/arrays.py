"""Arrays of other libraries: inputs become NumPy arrays, and results the caller's kind of array.

NumPy arrays pass unchanged.  Anything with ``__dlpack__`` on the CPU (PyTorch tensors, for example)
is viewed without a copy.  NumPy has no bfloat16: in memory its bits are uint16, elsewhere it is
float32 (:func:`to_bits`, :func:`from_bits`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from minidnn.errors import GraphError, OutOfMemoryError
from minidnn.graph.types import rounded_to


def to_bits(array: np.ndarray, dtype: str) -> np.ndarray:
    """An array as ``dtype`` stores it in memory: for bfloat16 as uint16."""
    if dtype == "bfloat16":
        rounded = np.ascontiguousarray(rounded_to(dtype, array))
        bits = (rounded.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        # The upper half of a NaN may be that of infinity: a bit keeps it a NaN.
        return np.where(np.isnan(rounded), bits | np.uint16(0x40), bits)
    return np.ascontiguousarray(array, dtype)


def from_bits(array: np.ndarray, dtype: str) -> np.ndarray:
    """The inverse of :func:`to_bits`: the bits of bfloat16 become float32."""
    if dtype == "bfloat16":
        return (array.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    return array


#: Converts a NumPy result to the kind of array that the caller passed.
Wrap = Callable[[np.ndarray], Any]

_CPU_DEVICES = (1, 3)  # DLPack's kDLCPU and kDLCUDAHost

CACHE_LINE = 64
LARGE_BYTES = 1 << 20


def empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An uninitialized array.  A large one is aligned to a cache line, which NumPy's own are not:
    only then can streaming stores write whole lines past the caches."""
    size = prod(shape) * dtype.itemsize
    if size < LARGE_BYTES:
        return np.empty(shape, dtype)
    try:
        memory = np.empty(size + CACHE_LINE, np.uint8)
    except MemoryError as error:
        raise OutOfMemoryError(
            f"there is no memory for a result of {size} bytes, {dtype}{list(shape)}"
        ) from error
    start = -memory.ctypes.data % CACHE_LINE
    return memory[start : start + size].view(dtype).reshape(shape)


def to_numpy(what: str, array: Any) -> tuple[np.ndarray, Wrap]:
    """A NumPy view of an array, and the function that converts results to its kind.

    GraphError names the argument if it is no array, or is on another device.
    """
    if isinstance(array, np.ndarray):
        return array, lambda result: result
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        if array.device.type != "cpu":
            raise GraphError(f"{what} is on device {array.device}; valid is the CPU")
        if array.layout != torch.strided:
            raise GraphError(f"{what} has layout {array.layout}; valid is torch.strided, dense")
        if array.dtype == torch.bfloat16:
            array = array.float()  # NumPy has no bfloat16
        try:
            return array.detach().resolve_conj().resolve_neg().numpy(), torch.from_numpy
        except TypeError:
            raise GraphError(f"{what} has dtype {array.dtype}, which NumPy lacks") from None
    if hasattr(array, "__dlpack__"):
        device = array.__dlpack_device__()[0]
        if int(device) not in _CPU_DEVICES:
            raise GraphError(f"{what} is on DLPack device type {int(device)}; valid is the CPU")
        return np.from_dlpack(array), _like(array)
    if isinstance(array, (np.generic, list, tuple, int, float)):
        try:
            return np.asarray(array), lambda result: result
        except ValueError as error:
            raise GraphError(f"{what} is no regular array: {error}") from None
    raise GraphError(
        f"{what} is a {type(array).__name__}; valid are NumPy arrays, PyTorch tensors and "
        "other arrays with __dlpack__"
    )


def apart(array: np.ndarray, outputs: Sequence[np.ndarray]) -> np.ndarray:
    """The input, or a copy if an output overlaps it: results may be written before all of it is
    read."""
    if any(np.may_share_memory(array, output) for output in outputs):
        return array.copy()
    return array


def random_array(
    random: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype
) -> np.ndarray:
    """Normally distributed numbers of a dtype; for 8-bit integers uniformly distributed ones, since
    normally distributed ones would all be near 0."""
    try:
        if dtype.itemsize == 1 and dtype.kind in "iu":
            bounds = np.iinfo(dtype)
            return random.integers(bounds.min, bounds.max, shape, dtype, endpoint=True)
        return random.standard_normal(shape, np.float32).astype(dtype, copy=False)
    except MemoryError as error:
        raise OutOfMemoryError(f"there is no memory for an input: {error}") from error


def checked(what: str, array: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """The input as a contiguous array of the compiled dtype; GraphError if it has another shape, or
    a dtype that is not converted."""
    check_shape(what, array.shape, shape)
    if array.dtype != dtype and (array.dtype.kind, dtype.kind) != ("f", "f"):
        others = ", or another floating-point dtype, which is converted"
        if array.dtype == np.uint8:
            others += (
                "; a picture's bytes become numbers by layers.Preprocess in the network, or by "
                "x.astype(np.float32) / 255"
            )
        raise GraphError(
            f"{what} has dtype {array.dtype}; valid is {dtype}{others if dtype.kind == 'f' else ''}"
        )
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite
        return np.ascontiguousarray(array, dtype)


def check_shape(what: str, given: tuple[int, ...], compiled: tuple[int, ...]) -> None:
    """GraphError, with advice, if an argument does not have the compiled shape."""
    if given == compiled:
        return
    if 0 in given:
        advice = "what has no elements cannot be computed"
    elif given == compiled[1:]:
        advice = f"the first size is the batch, so that a single sample has shape {(1, *given)}"
    elif (transposition := _transpose_advice(given, compiled)) is not None:
        advice = transposition
    elif len(given) != len(compiled):
        advice = f"valid are {len(compiled)} sizes, the batch first"
    else:
        advice = f"call minidnn.compile(network, {given}) for this size"
    raise GraphError(
        f"{what} has shape {given}, but the network was compiled for {compiled}; {advice}"
    )


def _transpose_advice(given: tuple[int, ...], compiled: tuple[int, ...]) -> str | None:
    """Advice on pictures in NHWC where NCHW is expected, as image libraries return them, or the
    other way round; None for anything else."""
    rank = len(given)
    if len(compiled) != 4 or rank not in (3, 4):
        return None
    single, channel = "[None]" if rank == 3 else "", rank - 3
    candidates: list[tuple[int, str]] = []
    for position, wrong, right in (("last", rank - 1, 1), ("first", channel, 3)):
        axes = [axis for axis in range(rank) if axis != wrong]
        axes.insert(right - 4 + rank, wrong)
        transposed = (*(1,) * (4 - rank), *(given[axis] for axis in axes))
        if transposed[right] != compiled[right] or given[right - 4 + rank] == compiled[right]:
            continue
        listed = ", ".join(map(str, axes))
        others = sum(a != b for a, b in zip(transposed, compiled, strict=True))
        size = ", which is another size than was compiled" if others else ""
        candidates.append(
            (
                others,
                f"its channels seem to be {position}: x.transpose({listed}){single}, of a PyTorch "
                f"tensor x.permute({listed}){single}, has shape {transposed}{size}",
            )
        )
    return min(candidates)[1] if candidates else None


def _like(array: Any) -> Wrap:
    namespace = getattr(array, "__array_namespace__", None)
    if namespace is None or not hasattr(namespace(), "from_dlpack"):
        return lambda result: result
    return namespace().from_dlpack
