"""Arrays that results are written to."""

from __future__ import annotations

import numpy as np
import pytest

from minidnn.runtime.arrays import CACHE_LINE, LARGE_BYTES, empty


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("count", [0, 1, 1000, LARGE_BYTES // 2 + 1, LARGE_BYTES])
def test_large_arrays_begin_with_a_cache_line(dtype: str, count: int) -> None:
    array = empty((1, count, 1), np.dtype(dtype))
    assert (array.shape, array.dtype) == ((1, count, 1), np.dtype(dtype))
    assert array.flags.c_contiguous and array.flags.writeable
    if array.nbytes >= LARGE_BYTES:
        assert array.ctypes.data % CACHE_LINE == 0
    array[:] = 1
    assert (array == 1).all()
