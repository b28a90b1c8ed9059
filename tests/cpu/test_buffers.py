"""Buffers: fresh, aligned, alive as long as needed, and guarded on demand."""

from __future__ import annotations

import ctypes
import gc

import numpy as np
import pytest

from minidnn.backends.cpu.execution.buffers import AlignedMemory, Guard
from minidnn.errors import OutOfMemoryError

from .conftest import run_python

STRAY = """
    import numpy as np
    from minidnn.backends.cpu.execution.buffers import AlignedMemory, Guard
    from minidnn.backends.cpu.compilers.kernels import Unit, compile_units
    from minidnn.backends.cpu.compilers.kernels import prelude
    from minidnn.backends.cpu.isa import AVX2
    from minidnn.backends.cpu.execution.program import BoundKernel, NativeProgram, Pool
    from minidnn.runtime.operand import Operand
    text = prelude(AVX2) + '''
    MD_KERNEL(touch) {{ MD_OUT(float, 0)[*MD_IN(int32, 1)] = 1; }}
    '''
    kernel = compile_units([Unit("touch", text, AVX2)])[0].kernel("touch")
    buffer = AlignedMemory(1000 * 4, Guard.{guard}, alignment=4)
    index = np.array([{index}], np.int32)
    program = NativeProgram([BoundKernel(kernel, (Operand(0), Operand(1)), 1)], 2, pool=Pool(1))
    program.run([buffer.address, index.ctypes.data])
    print("survived", buffer.array("f4", (1000,))[0] == 1)
    """


@pytest.mark.parametrize("size", [0, 1, 64, 4096, 4097, 3 << 20])
@pytest.mark.parametrize("guard", list(Guard))
def test_fresh_memory(size: int, guard: Guard) -> None:
    buffer = AlignedMemory(size, guard)
    assert buffer.address % 64 == 0
    data = buffer.array(np.uint8, (size,))
    assert (data == (0 if guard is Guard.NONE else 0xFF)).all()
    data[:] = 3
    assert buffer.stray_write() is None


def test_guarded_floats_are_nan() -> None:
    assert np.isnan(AlignedMemory(400, Guard.END).array(np.float32, (10, 10))).all()


def test_large_buffers_start_at_a_large_page() -> None:
    assert AlignedMemory(5 << 20).address % (2 << 20) == 0


def test_arrays_keep_the_memory() -> None:
    array = AlignedMemory(1 << 22).array(np.float32, (1 << 20,))
    gc.collect()
    array[:] = 2
    assert array.sum() == 2 << 20
    view = array[5:]
    del array
    gc.collect()
    assert view[-1] == 2


def test_array_with_offset() -> None:
    buffer = AlignedMemory(64)
    buffer.array(np.uint8, (64,))[:] = np.arange(64)
    assert buffer.array(np.uint8, (2, 3), offset=10).tolist() == [[10, 11, 12], [13, 14, 15]]
    with pytest.raises(ValueError, match=r"\(20,\) of float32 from offset 0 needs 80 bytes; the"):
        buffer.array(np.float32, (20,))


def test_stray_write_in_the_gap_is_told() -> None:
    buffer = AlignedMemory(100, Guard.END)
    beside = np.ctypeslib.as_array((ctypes.c_uint8 * 128).from_address(buffer.address))
    beside[110] = 1
    assert buffer.stray_write() == 110


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("guard", "index", "survives"),
    [
        ("END", 0, True),
        ("END", 1000, False),
        ("END", -1100, False),
        ("START", 0, True),
        ("START", -1, False),
        ("START", 1100, False),
        ("NONE", 0, True),
    ],
)
def test_access_outside_ends_the_process(guard: str, index: int, survives: bool) -> None:
    child = run_python(STRAY.format(guard=guard, index=index))
    out, err = child.communicate(timeout=30)
    if survives:
        assert (out, child.returncode) == ("survived True\n", 0), err
    else:
        assert child.returncode == -11, (out, err)


def test_refusals() -> None:
    with pytest.raises(OutOfMemoryError, match="a buffer of 4611686018427387904 bytes cannot be"):
        AlignedMemory(1 << 62)
    with pytest.raises(ValueError, match="size -1 is negative"):
        AlignedMemory(-1)
    with pytest.raises(ValueError, match="alignment 24 is not a power of two up to 4096"):
        AlignedMemory(10, alignment=24)
