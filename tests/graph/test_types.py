"""Tensor types."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from minidnn.errors import GraphError
from minidnn.graph.types import FLOATS, ITEMSIZE, TensorType, numpy_dtype, rounded_to


@pytest.mark.parametrize(
    ("shape", "plane"),
    [
        ((), (1, 1, 1, 1)),
        ((5,), (1, 5, 1, 1)),
        ((2, 5), (2, 5, 1, 1)),
        ((2, 5, 7), (2, 5, 1, 7)),
        ((2, 5, 3, 7), (2, 5, 3, 7)),
        ((2, 5, 3, 4, 7), (2, 5, 12, 7)),
    ],
)
def test_plane(shape: tuple[int, ...], plane: tuple[int, ...]) -> None:
    assert TensorType(shape).plane == plane


@pytest.mark.parametrize("dtype", FLOATS)
def test_rounding_keeps_every_shape(dtype: str) -> None:
    """A factor of a whole tensor has rank 0, where NumPy's functions like to give rank 1."""
    for shape in ((), (1,), (0, 2), (2, 3)):
        array = np.full(shape, 1 + 2.0**-20, np.float32)
        rounded = rounded_to(dtype, array)
        assert isinstance(rounded, np.ndarray) and rounded.shape == shape
        assert rounded.dtype == numpy_dtype(dtype)
        expected = 1.0 if dtype in ("float16", "bfloat16") else array
        assert (rounded == expected).all()
    turned = np.arange(6, dtype=np.float32).reshape(2, 3).T
    np.testing.assert_array_equal(rounded_to(dtype, turned), turned)


def test_size_and_bytes() -> None:
    for dtype, itemsize in ITEMSIZE.items():
        type = TensorType((2, 3, 5), dtype)
        assert (type.rank, type.size, type.bytes) == (3, 30, 30 * itemsize)
        if dtype != "bfloat16":
            assert numpy_dtype(dtype).itemsize == itemsize
    assert numpy_dtype("bfloat16") == np.float32
    assert str(TensorType((2, 3))) == "float32[2, 3]"
    assert TensorType((2, 3), "float16").with_shape((4,)) == TensorType((4,), "float16")


@pytest.mark.parametrize(
    ("shape", "dtype", "text"),
    [
        (
            (1, 2),
            "float8",
            "dtype='float8' is not one of float16, bfloat16, float32, float64, int32, int64, bool, "
            "uint8, int8",
        ),
        ((1, -2), "float32", "shape=(1, -2): every size must be a non-negative int, got -2"),
        ((1, 2.0), "float32", "shape=(1, 2.0): every size must be a non-negative int, got 2.0"),
        ((True,), "float32", "shape=(True,): every size must be a non-negative int, got True"),
    ],
)
def test_errors(shape: Any, dtype: str, text: str) -> None:
    with pytest.raises(GraphError, match=f"^{re.escape(text)}$"):
        TensorType(shape, dtype)
