"""Arrays, indexable sources and known datasets: what they give, and what they refuse."""

from __future__ import annotations

import gzip
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minidnn.data import (
    Arrays,
    DataError,
    Dataset,
    Samples,
    Subset,
    digits,
    fashion_mnist,
    read_idx,
)
from minidnn.errors import UnsupportedError

NUMBERS = np.array([4, 0, 2])


def of(dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    return dataset.batch(NUMBERS, 0, 0)


@pytest.mark.parametrize("dtype", ["uint8", "int32", "float16", "float64", "bool"])
def test_arrays_give_float32_and_int64(dtype: str) -> None:
    x = (np.arange(40).reshape(5, 2, 2, 2) % 255).astype(dtype)
    got, target = of(Arrays(x, np.arange(5, dtype=np.int16)))
    expected = x[NUMBERS].astype(np.float32) / np.float32(255 if dtype == "uint8" else 1)
    assert got.dtype == np.float32 and target.dtype == np.int64
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(target, NUMBERS)


def test_arrays_keep_what_is_theirs() -> None:
    x = np.ones((5, 3), np.float32)

    def clear(batch: np.ndarray, draws: Any) -> np.ndarray:
        batch[:] = 0
        return batch

    got, target = of(Arrays(x, np.full((5, 2), 0.5), [clear]))
    assert x.all() and not got.any()
    assert target.dtype == np.float32 and target.shape == (3, 2)


def test_arrays_may_be_memory_mapped(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(10, dtype=np.float32).reshape(5, 2))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    dataset = Arrays(mapped, np.arange(5))
    assert dataset.x is mapped and len(dataset.classes) == 5
    np.testing.assert_array_equal(of(dataset)[0], mapped[NUMBERS])


@pytest.mark.parametrize(
    ("x", "y", "text"),
    [
        (np.zeros((3, 2)), np.zeros(4, int), "x has 3 samples and y has 4; valid are equal"),
        (np.zeros((0, 2)), np.zeros(0, int), "x has shape (0, 2); valid is at least one sample"),
        (np.zeros(()), np.zeros(1), "x has shape ()"),
        (np.array(["a"]), np.zeros(1), "x has dtype <U1; valid are numbers"),
        (np.zeros(1), np.array([None]), "y has dtype object; valid are numbers"),
    ],
)
def test_arrays_that_are_no_data(x: np.ndarray, y: np.ndarray, text: str) -> None:
    with pytest.raises(DataError, match=re.escape(text)):
        Arrays(x, y)


def test_a_subset_has_the_samples_of_these_numbers() -> None:
    def doubled(x: np.ndarray, draws: Any) -> np.ndarray:
        return 2 * x

    whole = Arrays(np.arange(9), np.arange(9) % 3, [doubled])
    part = Subset(whole, np.array([7, 1, 2, 8, 5]))
    x, target = of(part)
    assert (x.tolist(), target.tolist()) == ([10, 14, 4], [2, 1, 2])
    assert (len(part), part.classes, part.name(3)) == (5, whole.classes, "sample 8")
    for wrong in ([9], [-1], [], [0.5], [[1]]):
        with pytest.raises(DataError, match="valid are integers from 0 to 8"):
            Subset(whole, np.array(wrong))


def test_a_step_must_be_a_function() -> None:
    with pytest.raises(DataError, match=r"augment has 3; valid are functions \(x, draws\) -> x"):
        Arrays(np.zeros(1), np.zeros(1), [3])  # type: ignore[list-item]


@pytest.mark.parametrize("classes", ["abc", -1])
def test_classes_are_a_number_or_names(classes: Any) -> None:
    with pytest.raises(DataError, match=f"classes={classes!r}; valid is a number of at least 0, o"):
        Arrays(np.zeros((2, 3)), np.arange(2), classes=classes)
    two: Any = np.int64(2)
    assert Arrays(np.zeros((2, 3)), np.arange(2), classes=two).classes == ("0", "1")


def test_a_step_that_fails_is_named() -> None:
    def broken(x: np.ndarray, draws: Any) -> np.ndarray:
        raise ZeroDivisionError("oh")

    with pytest.raises(DataError, match=r"step .*broken.* failed on samples 4, 0, 2: Zero.*: oh"):
        of(Arrays(np.zeros(5), np.zeros(5), [broken]))


def test_pytorch_datasets_are_samples() -> None:
    torch = pytest.importorskip("torch")
    x, y = torch.rand(5, 1, 2, 2), torch.arange(5)
    got, target = of(Samples(torch.utils.data.TensorDataset(x, y)))
    np.testing.assert_array_equal(got, x.numpy()[NUMBERS])
    np.testing.assert_array_equal(target, NUMBERS)
    assert target.dtype == np.int64


def test_samples_that_fail_are_named() -> None:
    good, other = (np.zeros((1, 2)), 1), (np.zeros((1, 3)), 1)
    with pytest.raises(DataError, match=r"sample 0: x has shape \(1, 3\), and that of sample 4 in"):
        of(Samples([other, good, good, good, good]))
    with pytest.raises(DataError, match="sample 2 cannot be read: TypeError: cannot unpack"):
        of(Samples([good, good, None, good, good]))
    with pytest.raises(DataError, match="the source has no samples"):
        Samples([])


def test_digits() -> None:
    pytest.importorskip("sklearn")
    train, test = digits(train=True), digits(train=False)
    assert (len(train), len(test), len(train.classes)) == (1437, 360, 10)
    assert train.x.shape[1:] == (1, 8, 8) and train.x.min() == 0 and train.x.max() == 1


def test_digits_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sklearn.datasets", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'minidnn\[demo\]'"):
        digits(train=True)


def idx(array: np.ndarray) -> bytes:
    code = {"u1": 8, "i1": 9, "i2": 11, "i4": 12, "f4": 13, "f8": 14}[array.dtype.str[1:]]
    head = struct.pack(f">HBB{array.ndim}I", 0, code, array.ndim, *array.shape)
    return head + array.astype(array.dtype.newbyteorder(">")).tobytes()


@pytest.mark.parametrize("dtype", ["u1", "i1", "i2", "i4", "f4", "f8"])
@pytest.mark.parametrize("zipped", [False, True])
def test_idx_files(dtype: str, zipped: bool, tmp_path: Path) -> None:
    array = np.arange(-12, 12).reshape(2, 3, 4).astype(dtype)
    data = gzip.compress(idx(array)) if zipped else idx(array)
    (tmp_path / "a").write_bytes(data)
    found = read_idx(tmp_path / "a")
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


GOOD = idx(np.zeros((3, 4), np.uint8))
ZIPPED = gzip.compress(GOOD, mtime=0)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "cannot be read"),
        (GOOD[:7], "cannot be read"),
        (b"\x89PNG" + GOOD, "is no IDX file"),
        (b"\0\0\x07\x01" + GOOD, "is no IDX file"),
        (b"\0\0\x08\0", "is no IDX file"),
        (GOOD[:-1], "has less than the 12 bytes of (3, 4) uint8"),
        (GOOD + b"\0", "has more than the 12 bytes"),
        (b"\0\0\x0e\x04" + b"\xff" * 16, "cannot be read"),
        (ZIPPED[:-9], "cannot be read"),
        (ZIPPED[:10] + b"\xff" * 20, "cannot be read"),
    ],
    ids=range(10),
)
def test_what_is_no_idx_file(data: bytes, text: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(DataError, match=re.escape(text)) as caught:
        read_idx(tmp_path / "a")
    assert str(tmp_path / "a") in str(caught.value)


def test_fashion_mnist(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (5, 28, 28), np.uint8)
    y = np.array([9, 0, 1, 2, 3], np.uint8)
    for name, array in (("images-idx3", x), ("labels-idx1", y)):
        (tmp_path / f"t10k-{name}-ubyte").write_bytes(idx(array))
        (tmp_path / f"train-{name}-ubyte.gz").write_bytes(gzip.compress(idx(array[1:])))
    train, test = fashion_mnist(tmp_path, train=True), fashion_mnist(tmp_path, train=False)
    assert (len(train), len(test), train.classes[9]) == (4, 5, "Ankle boot")
    got, target = of(test)
    np.testing.assert_array_equal(got, x[NUMBERS, None] / np.float32(255))
    np.testing.assert_array_equal(target, y[NUMBERS])


def test_fashion_mnist_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"neither .*train-images-idx3-ubyte nor .*ubyte\.gz"):
        fashion_mnist(tmp_path, train=True)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(np.zeros((2, 2, 2), np.uint8)))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(np.full(2, 10, np.uint8)))
    with pytest.raises(DataError, match=r"labels uint8 \(2,\); valid are .* from 0 to 9"):
        fashion_mnist(tmp_path, train=True)
