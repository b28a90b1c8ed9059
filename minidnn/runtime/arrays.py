"""Arrays of any library in, and of the same library out.

NumPy arrays pass as they are.  Anything with ``__dlpack__`` on the CPU (PyTorch tensors, for
example) is viewed without a copy.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from minidnn.errors import GraphError

#: Turns a NumPy result into the kind of array that came in.
Wrap = Callable[[np.ndarray], Any]

_CPU_DEVICES = (1, 3)  # DLPack's kDLCPU and kDLCUDAHost

CACHE_LINE = 64
LARGE_BYTES = 1 << 20


def empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array to be filled.  A large one begins with a cache line, which NumPy's own do not:
    only then can it be written past the caches, whole lines at a time."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if size < LARGE_BYTES:
        return np.empty(shape, dtype)
    memory = np.empty(size + CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    return memory[start : start + size].view(dtype).reshape(shape)


def to_numpy(what: str, array: Any) -> tuple[np.ndarray, Wrap]:
    """A NumPy view of an array, and how results are given back in its kind.

    GraphError names the argument if it is no array, or lies on another device.
    """
    if isinstance(array, np.ndarray):
        return array, lambda result: result
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        if array.device.type != "cpu":
            raise GraphError(f"{what} lies on device {array.device}; valid is the CPU")
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
            raise GraphError(f"{what} lies on DLPack device type {int(device)}; valid is the CPU")
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


def random_array(
    random: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype
) -> np.ndarray:
    """Normally distributed numbers of a dtype; evenly distributed ones of uint8, which has none
    below 0."""
    if dtype == np.uint8:
        return random.integers(0, 256, shape, np.uint8)
    return random.standard_normal(shape, np.float32).astype(dtype, copy=False)


def check_shape(what: str, given: tuple[int, ...], compiled: tuple[int, ...]) -> None:
    """GraphError, with what to do about it, if an argument has not the compiled shape."""
    if given == compiled:
        return
    if 0 in given:
        advice = "what has no elements cannot be computed"
    elif given == compiled[1:]:
        advice = f"the first size is the batch, so that a single sample has shape {(1, *given)}"
    elif (last := _channels_last(given, compiled)) is not None:
        advice = last
    elif len(given) != len(compiled):
        advice = f"valid are {len(compiled)} sizes, the batch first"
    else:
        advice = f"call minidnn.compile(network, {given}) for this size"
    raise GraphError(
        f"{what} has shape {given}, but the network was compiled for {compiled}; {advice}"
    )


def _channels_last(given: tuple[int, ...], compiled: tuple[int, ...]) -> str | None:
    """What to do about pictures whose channels lie last, as image libraries give them; None for
    anything else."""
    if len(compiled) != 4 or len(given) not in (3, 4) or given[-1] != compiled[1]:
        return None
    if len(given) == 4 and given[1] != compiled[1]:
        how = "x.transpose(0, 3, 1, 2), of a PyTorch tensor x.permute(0, 3, 1, 2),"
        turned = (given[0], given[3], *given[1:3])
    elif len(given) == 3 and given[0] != compiled[1]:
        how = "x.transpose(2, 0, 1)[None], of a PyTorch tensor x.permute(2, 0, 1)[None],"
        turned = (1, given[2], *given[:2])
    else:
        return None
    size = "" if turned == compiled else ", which is another size than was compiled"
    return f"its channels seem to lie last: {how} has shape {turned}{size}"


def _like(array: Any) -> Wrap:
    namespace = getattr(array, "__array_namespace__", None)
    if namespace is None or not hasattr(namespace(), "from_dlpack"):
        return lambda result: result
    return namespace().from_dlpack
