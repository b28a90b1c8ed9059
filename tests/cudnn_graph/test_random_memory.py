"""The numbers that candidates are timed on, in memory of the host that stands for the device's."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import minidnn
from minidnn.cudnn.graph import arrays
from minidnn.cudnn.graph.spec import TensorSpec


class Memory:
    """What CuPy calls a memory pointer."""

    def __init__(self, array: np.ndarray, offset: int = 0) -> None:
        self.array, self.offset = array, offset

    @property
    def ptr(self) -> int:
        return int(self.array.ctypes.data) + self.offset

    def __add__(self, offset: int) -> Memory:
        return Memory(self.array, self.offset + offset)

    def copy_from_host_async(self, address: int, size: int, stream: object) -> None:
        assert 0 < size <= self.array.nbytes - self.offset
        ctypes.memmove(self.ptr, address, size)

    def copy_from_device_async(self, other: Memory, size: int, stream: object) -> None:
        assert other.ptr + size <= self.ptr
        self.copy_from_host_async(other.ptr, size, stream)


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    stream = SimpleNamespace(synchronize=lambda: None)
    cuda = SimpleNamespace(
        get_current_stream=lambda: stream,
        alloc=lambda size: Memory(np.full(size, 0xFF, np.uint8)),
    )
    monkeypatch.setattr(arrays, "cupy", lambda: SimpleNamespace(cuda=cuda))
    yield


def made(count: int, dtype: str, seed: int = 0) -> np.ndarray:
    memory: Memory = arrays.random_like(TensorSpec((count,), (1,), dtype), seed)
    found: np.ndarray = memory.array.view("uint16" if dtype == "bfloat16" else dtype)
    return found


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_floating_point_numbers_are_normal_and_small(dtype: str) -> None:
    values = made(3_000_000, dtype).astype(np.float64)
    assert abs(values.mean()) < 1e-3 and abs(values.std() - 0.1) < 1e-3
    assert np.mean(values == 0) < 1e-3


def test_bfloat16_is_the_upper_half_of_float32() -> None:
    bits = made(5000, "bfloat16").astype(np.uint32) << 16
    error = np.abs(bits.view(np.float32) / made(5000, "float32") - 1)
    assert error.max() < 1 / 128


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
def test_whole_numbers_are_0_1_and_2(dtype: str) -> None:
    assert sorted(set(made(1000, dtype).tolist())) == [0, 1, 2]


@pytest.mark.parametrize("count", [1, 7, arrays._BLOCK - 1, arrays._BLOCK, 3 * arrays._BLOCK + 5])
def test_all_of_a_tensor_is_filled_with_the_block_again_and_again(count: int) -> None:
    values = made(count, "float32", seed=3)
    assert np.isfinite(values).all()
    rest = values[arrays._BLOCK :]
    np.testing.assert_array_equal(rest, values[: len(rest)])


def test_another_seed_is_another_part() -> None:
    one, other = made(1000, "float32", 0), made(1000, "float32", 1)
    assert not np.isin(one, other).any()
    np.testing.assert_array_equal(one, made(1000, "float32", 0))


def test_rows_of_powers_of_two_do_not_repeat() -> None:
    rows = made(8 * arrays._BLOCK // 4096 * 4096, "float32").reshape(-1, 4096)
    assert len(np.unique(rows[:, 0])) > 0.3 * len(rows)


def test_nothing_needs_curand() -> None:
    root = Path(minidnn.__file__).parent
    using = [
        p.name
        for p in root.rglob("*.py")
        if re.search(r"\b(cp|cupy(\(\))?)\.random\b", p.read_text())
    ]
    assert using == []
