"""Arrays that callers give, as far as no GPU is needed: a stand-in for CuPy's."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from minidnn.backends.cuda.arrays import (
    CUPY,
    DEVICE_TO_DEVICE,
    DEVICE_TO_HOST,
    NUMPY,
    ArraySlot,
    CallerArray,
    as_it_is,
    check_aligned,
    outputs_of,
    read,
)
from minidnn.errors import DeviceError, GraphError

SLOT = ArraySlot("input 'x'", (2, 3), "float16", 12)


class Array:
    """What is read of an array on a GPU."""

    def __init__(
        self, shape: tuple[int, ...] = (2, 3), dtype: str = "float16", device: int = 1
    ) -> None:
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self.data = SimpleNamespace(device_id=device, ptr=0x5000)
        self.device = f"<CUDA Device {device}>"
        self.flags = SimpleNamespace(c_contiguous=True)

    def astype(self, dtype: Any, copy: bool) -> Array:
        made = Array(self.shape, np.dtype(dtype).name)
        made.data.ptr = 0x9000
        return made


@pytest.fixture(autouse=True)
def _cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(ndarray=Array)
    monkeypatch.setitem(sys.modules, "cupy", module)  # type: ignore[arg-type]
    monkeypatch.setattr("minidnn.backends.cuda.arrays.cupy", lambda: module)


def test_what_fits_is_taken_as_it_is() -> None:
    array = Array()
    given = read(SLOT, array, 1)
    assert (given.pointer, given.library, given.kind) == (0x5000, CUPY, DEVICE_TO_DEVICE)
    assert given.kept is array


class ByDlpack:
    """An array that has nothing but DLPack."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.array.data.device_id


class ByInterface:
    """An array that has nothing but its address."""

    def __init__(self, array: Array) -> None:
        self.array = array

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"data": (self.array.data.ptr, False)}


@pytest.mark.parametrize("kind", [ByDlpack, ByInterface])
def test_bare_arrays_are_taken_as_they_are(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("from_dlpack", "asarray"):
        monkeypatch.setattr(sys.modules["cupy"], name, lambda one: one.array, raising=False)
    bare = kind(Array())
    given = read(SLOT, bare, 1)
    assert (given.pointer, given.library) == (0x5000, CUPY) and as_it_is(bare, given)
    other = kind(Array(dtype="float32"))
    given = read(SLOT, other, 1)
    assert given.pointer == 0x9000 and not as_it_is(other, given)
    with pytest.raises(DeviceError, match=r"input 'x' is on device cuda:0; valid is cuda:1"):
        read(SLOT, kind(Array(device=0)), 1)


@pytest.mark.parametrize("dtype", ["float32", "float64", ">f2"])
def test_other_floats_are_converted(dtype: str) -> None:
    given = read(SLOT, Array(dtype=dtype), 1)
    assert given.pointer == 0x9000 and given.kept.dtype == np.float16


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(DeviceError, match=r"input 'x' is on device cuda:2; valid is cuda:1"):
        read(SLOT, Array(device=2), 1)
    with pytest.raises(GraphError, match=r"input 'x' has shape \(3, 2\), but the network was comp"):
        read(SLOT, Array((3, 2)), 1)
    for dtype in ("int32", "bool", "uint16"):
        with pytest.raises(GraphError, match=f"input 'x' has dtype {dtype}; valid is float16"):
            read(SLOT, Array(dtype=dtype), 1)
    bits = ArraySlot("input 'x'", (2, 3), "bfloat16", 12)
    with pytest.raises(GraphError, match="input 'x' has dtype uint16; valid is bfloat16"):
        read(bits, Array(dtype="uint16"), 1)  # numbers, not another's bits


def test_kernels_work_on_aligned_arrays_only() -> None:
    check_aligned(SLOT, CallerArray(0x5000, CUPY, None))
    with pytest.raises(GraphError, match=r"input 'x' begins at 0x5004, so .* multiple of 16"):
        check_aligned(SLOT, CallerArray(0x5004, CUPY, None))


def test_out_may_be_what_fits() -> None:
    (given,) = outputs_of(Array(), [SLOT], 1)
    assert (given.pointer, given.library, given.kind) == (0x5000, CUPY, DEVICE_TO_DEVICE)
    host = np.empty((2, 3), np.float16)
    (given,) = outputs_of([host], [SLOT], 1)
    assert given.pointer == host.ctypes.data and given.library is NUMPY
    assert given.kind == DEVICE_TO_HOST


def test_out_that_does_not_fit_is_refused() -> None:
    with pytest.raises(DeviceError, match=r"input 'x' is on device <CUDA Device 2>; valid is cu"):
        outputs_of(Array(device=2), [SLOT], 1)
    strided = Array()
    strided.flags.c_contiguous = False
    for array, found in (
        (Array((3, 2)), r"float16\[3, 2\]"),
        (Array(dtype="float32"), r"float32\[2, 3\]"),
        (strided, r"float16\[2, 3\], not contiguous"),
        (np.empty((2, 3), np.float32), r"float32\[2, 3\]"),
        (np.broadcast_to(np.float16(1), (2, 3)), r"float16\[2, 3\], not contiguous"),
    ):
        text = rf"input 'x' is {found}; valid is a contiguous, writable array float16\[2, 3\]"
        with pytest.raises(GraphError, match=text):
            outputs_of(array, [SLOT], 1)
    bits = ArraySlot("out[0]", (2, 3), "bfloat16", 12)
    for dtype, text in (("float32", "NumPy has no bfloat16"), ("uint16", r"is uint16\[2, 3\]")):
        with pytest.raises(GraphError, match=text):
            outputs_of(np.empty((2, 3), dtype), [bits], 1)
    with pytest.raises(GraphError, match="share memory"):
        outputs_of([Array(), Array()], [SLOT, SLOT], 1)


def test_results_have_the_dtype_in_which_they_lie() -> None:
    for dtype, stored in (("float16", np.float16), ("bfloat16", np.uint16), ("bool", np.bool_)):
        made = NUMPY.empty(ArraySlot("out[0]", (2, 3), dtype, 12), 0)
        assert made.dtype == stored and made.shape == (2, 3)
