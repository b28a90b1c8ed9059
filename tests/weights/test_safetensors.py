from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

from minidnn.errors import WeightsError
from minidnn.weights import load_weights, save_weights
from minidnn.weights._file import MappedFile
from minidnn.weights.safetensors import MAX_HEADER, read_metadata

Arrays = dict[str, np.ndarray[Any, Any]]


def same(found: Arrays, expected: Arrays) -> None:
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()  # NaN and -0.0 included


def make(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_round_trip(tmp_path: Path, tensors: Arrays) -> None:
    save_weights(tensors, tmp_path / "w.safetensors", {"author": "me"})
    same(load_weights(tmp_path / "w.safetensors"), tensors)
    assert read_metadata(MappedFile(tmp_path / "w.safetensors")) == {"author": "me"}


def test_reads_what_safetensors_writes(tmp_path: Path, tensors: Arrays) -> None:
    path = tmp_path / "theirs"
    safetensors.numpy.save_file(tensors, path, {"a": "b"})
    found = load_weights(path)
    same({name: found[name] for name in tensors}, tensors)


def test_safetensors_reads_what_is_written(tmp_path: Path, tensors: Arrays) -> None:
    path = tmp_path / "ours"
    save_weights(tensors, path, {"a": "b"})
    found = safetensors.numpy.load_file(path)
    same({name: found[name] for name in tensors}, tensors)


@pytest.mark.parametrize("place", ["missing/w", "folder"])
def test_errors_of_writing_name_the_file(tmp_path: Path, place: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError) as caught:
        save_weights({"x": np.zeros(3)}, tmp_path / place)
    assert str(caught.value).endswith(f": '{tmp_path / place}'")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_bfloat16_is_exact(tmp_path: Path) -> None:
    bits = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    safetensors.torch.save_file({"x": bits}, tmp_path / "x")
    found = load_weights(tmp_path / "x")["x"]
    assert found.dtype == np.float32
    expected = np.arange(2**16, dtype=np.uint32) << 16
    assert np.array_equal(found.view(np.uint32), expected)


def test_non_contiguous_and_foreign_byte_order(tmp_path: Path) -> None:
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    given = {"t": base.T, "s": base[::2, 1::3], "big": base.astype(">f4"), "neg": base[::-1]}
    save_weights(given, tmp_path / "x.safetensors")
    found = load_weights(tmp_path / "x.safetensors")
    for name, array in given.items():
        assert np.array_equal(found[name], array)
        assert found[name].dtype == np.float32


def test_every_tensor_is_aligned_and_a_view_of_the_file(tmp_path: Path) -> None:
    given = {"b": np.ones(3, bool), "d": np.ones(3), "h": np.ones(1, np.float16)}
    save_weights(given, tmp_path / "x.safetensors")
    for array in load_weights(tmp_path / "x.safetensors").values():
        assert array.flags.aligned
        assert not array.flags.writeable
        assert not array.flags.owndata
    copied = load_weights(tmp_path / "x.safetensors", copy=True)
    copied["d"][0] = 2
    assert load_weights(tmp_path / "x.safetensors")["d"][0] == 1


def test_reading_is_lazy(tmp_path: Path) -> None:
    size = 4 << 30  # a sparse file: the disk holds none of it
    text = json.dumps({"x": entry("F32", (size // 4,), (0, size))}).encode()
    path = make(tmp_path / "big.safetensors", text + b" " * (-len(text) % 8))
    os.truncate(path, path.stat().st_size + size)
    tracemalloc.start()
    found = load_weights(path)["x"]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found[-1] == 0
    assert peak < 1 << 20


def test_unaligned_data_are_copied(tmp_path: Path) -> None:
    data = np.array([1.5, 2.5], np.float32).tobytes()
    text = json.dumps({"x": entry()}).encode()
    text += b" " * (9 - len(text) % 8)
    found = load_weights(make(tmp_path / "x.safetensors", text, data))["x"]
    assert found.flags.aligned
    assert found.tolist() == [1.5, 2.5]


def test_replacing_is_atomic(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_weights({"x": np.zeros(1000)}, path)
    mapped = load_weights(path)
    save_weights({"x": np.ones(1000)}, path)
    assert mapped["x"].sum() == 0  # still the old file
    with pytest.raises(WeightsError):
        save_weights({"x": np.ones(2), "y": np.ones(2, complex)}, path)
    assert load_weights(path)["x"].sum() == 1000
    assert os.listdir(tmp_path) == ["x.safetensors"]


def test_file_is_byte_identical_every_time(tmp_path: Path, tensors: Arrays) -> None:
    for name in "ab":
        save_weights(tensors, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        ([], b"", "begins with"),
        ({"x": 1}, b"", "tensor 'x' is described by 1; valid is an object with dtype, shape and"),
        ({"x": {"dtype": "F32"}}, b"", "tensor 'x' is described by .*; valid is an object"),
        ({"x": entry() | {"more": 1}}, bytes(8), "tensor 'x' is described by"),
        ({"x": entry("F8_E4M4")}, bytes(8), "dtype 'F8_E4M4'; valid are F64, F32, F16, BF16, I64"),
        ({"x": entry("F8_E4M3")}, bytes(8), r"of dtype F8_E4M3 and shape \[2\] needs 2 bytes, but"),
        ({"x": entry("F4", [3], [0, 2])}, bytes(2), r"of dtype F4 and shape \[3\] needs 1 bytes"),
        ({"x": entry(["F32"])}, bytes(8), r"tensor 'x' has dtype \['F32'\]"),
        ({"x": entry(shape=[-2])}, bytes(8), r"tensor 'x' has shape \[-2\]; valid is a list of"),
        ({"x": entry(shape=[2.0])}, bytes(8), r"shape \[2.0\]"),
        ({"x": entry(shape=[True, 2])}, bytes(8), r"shape \[True, 2\]"),
        ({"x": entry(shape="2")}, bytes(8), "shape '2'"),
        ({"x": entry(shape=[2**80])}, bytes(8), r"shape \[1208925819614629174706176\]"),
        ({"x": entry(shape=[1] * 32 + [2])}, bytes(8), "at most 32"),
        ({"x": entry(shape=[3])}, bytes(8), r"shape \[3\] needs 12 bytes, but its data_offsets"),
        ({"x": entry(shape=[])}, bytes(8), r"shape \[\] needs 4 bytes, .* span 8"),
        ({"x": entry("F32", [2**62] * 32, [0, 8])}, bytes(8), "needs [0-9.]* bytes"),
        ({"x": entry("F32", [0, 2**62, 2**62], [0, 0])}, b"", "too large for this machine"),
        ({"x": entry(offsets=[-8, 0])}, bytes(8), r"data_offsets \[-8, 0\]; valid are two"),
        ({"x": entry(offsets=[8, 0])}, bytes(8), r"data_offsets \[8, 0\], but the file has 8"),
        ({"x": entry(offsets=[0, 8, 8])}, bytes(8), "valid are two integers"),
        ({"x": entry(offsets=[0, "8"])}, bytes(8), "valid are two integers"),
        ({"x": entry(offsets=[0, 8])}, bytes(7), "has 7 bytes of data: it is truncated"),
        ({"x": entry(offsets=[2**62, 2**62 + 8])}, bytes(8), "has 8 bytes of data"),
        ({"x": entry(), "y": entry(offsets=[4, 12])}, bytes(12), "'y' begins at 4, inside .* 'x'"),
        ({"x": entry(), "y": entry()}, bytes(8), "tensor 'y' begins at 0, inside tensor 'x'"),
        ({"x": entry(offsets=[4, 12])}, bytes(12), "bytes 0 to 4 of the data, before tensor 'x'"),
        ({"x": entry()}, bytes(12), "the tensors take 8 of 12 bytes"),
        ({}, bytes(1), "the tensors take 0 of 1 bytes"),
        ({"x": entry("BOOL", [8], [0, 8])}, b"\0\1\2\0\0\0\0\0", "element 2 of BOOL data is 2"),
        ({"__metadata__": {"a": 1}}, b"", "__metadata__ {'a': 1}; valid are pairs of texts"),
        ({"__metadata__": "a"}, b"", "__metadata__ 'a'"),
        (b'{"x":1,"x":2}', b"", "the key 'x' appears twice"),
        (b'{"x":{"dtype":"F32","dtype":"F64"}}', b"", "the key 'dtype' appears twice"),
        (b'{"x":NaN}', b"", "NaN is not JSON"),
        (b'{"x":', b"", "not valid JSON"),
        (b'{"x":1}x', b"", "not valid JSON: Extra data"),
        (b'{"\xff":1}', b"", "not valid JSON: 'utf-8'"),
        (b'{"\\ud800":1}', b"", "is not valid Unicode"),
        (b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b"", "nested too deep"),
        (b'{"x":' + b'{"x":' * 100_000 + b"1" + b"}" * 100_001, b"", "nested too deep"),
        (b'{"x":' + b"1" * 100_000 + b"}", b"", "not valid JSON: Exceeds the limit"),
    ],
)
def test_bad_files(tmp_path: Path, header: Any, data: bytes, message: str) -> None:
    path = make(tmp_path / "bad.safetensors", header, data)
    with pytest.raises(WeightsError, match=message) as caught:
        load_weights(path)
    assert f"weight file {str(path)!r}" in str(caught.value)
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize("length", [2**64 - 1, 2**63, MAX_HEADER + 1])
def test_huge_header_length(tmp_path: Path, length: int) -> None:
    path = make(tmp_path / "bad", {"x": entry()}, bytes(8), length)
    with pytest.raises(WeightsError, match=f"says its header has {length} bytes; at most 8388608"):
        load_weights(path)


def test_every_truncation(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_weights({"x": np.arange(5.0), "y": np.ones(3, np.uint8)}, path)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(WeightsError):
            load_weights(path)


def test_a_large_valid_header_is_read(tmp_path: Path) -> None:
    given = {f"{'x' * 50}{number}": np.zeros(0, np.float32) for number in range(20_000)}
    save_weights(given, tmp_path / "x.safetensors")
    assert len(load_weights(tmp_path / "x.safetensors")) == 20_000


@pytest.mark.parametrize(
    ("given", "metadata", "message"),
    [
        ({"x": [1.0]}, None, "tensor 'x' is a list; valid is a NumPy array"),
        ({"x": np.ones(2, complex)}, None, "'x' has dtype complex128; valid are float64, float32"),
        ({"x": np.array(["a"])}, None, "dtype <U1"),
        ({1: np.ones(2)}, None, "1 is not a valid tensor name"),
        ({"__metadata__": np.ones(2)}, None, "'__metadata__' is not a valid tensor name"),
        ({"\ud800": np.ones(2)}, None, "is not a valid tensor name"),
        ({"x": np.ones(2)}, {"a": 1}, "metadata 'a': 1 is not a pair of texts"),
    ],
)
def test_what_cannot_be_written(tmp_path: Path, given: Any, metadata: Any, message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        save_weights(given, tmp_path / "x", metadata)
    assert os.listdir(tmp_path) == []
