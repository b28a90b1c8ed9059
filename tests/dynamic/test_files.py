"""Compiled files for all batches in a range, and batches of no rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import minidnn as md
from minidnn import layers as L
from minidnn.compiled_file import CompiledFile, share
from minidnn.dynamic.executable import DynamicExecutable
from minidnn.dynamic.loaded import BatchExecutable
from minidnn.errors import GraphError, UnsupportedError
from minidnn.runtime.program import StoredProgram, offsets_of
from tests.devices import unavailable

needs_cpu = pytest.mark.skipif(unavailable("cpu") is not None, reason="the CPU cannot be used here")
BATCH = md.Dim("batch", 1, 12)


def network() -> L.Sequential:
    return L.Sequential(
        L.Conv2d(3, 8, 3, padding=1), L.ReLU(), L.Conv2d(8, 16, 3, padding=1), L.Flatten(),
        L.Linear(16 * 36, 50),
    ).initialize(1)  # fmt: skip


class Two(L.Layer):
    """Two outputs by name, of which one has no rows, and an input that has none."""

    def forward(self, x: Any, scale: Any) -> dict[str, Any]:
        return {"scaled": x * scale, "twice": scale + scale}


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.fixture(scope="module")
def compiled() -> DynamicExecutable:
    exe = md.compile(network(), (BATCH, 3, 6, 6), device="cpu", threads=1)
    assert isinstance(exe, DynamicExecutable)
    return exe


@pytest.fixture(scope="module")
def saved(compiled: DynamicExecutable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("batches") / "net.mdx"
    compiled.save(path)
    return path


@needs_cpu
def test_a_file_computes_all_batches(compiled: DynamicExecutable, saved: Path) -> None:
    loaded = md.load(saved)
    assert isinstance(loaded, BatchExecutable)
    assert loaded.dims == (BATCH,) and list(loaded.programs) == [1, 2, 4, 8]
    net = network()
    for rows in (1, 2, 3, 7, 8, 11, 12):
        x = numbers(rows, 3, 6, 6)
        y = loaded(x)
        expected = md.compile(net, x.shape, device="reference")(x)
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
        out = np.empty_like(y)
        assert loaded(input=torch.from_numpy(x), out=out) is out
        np.testing.assert_array_equal(out, y)
    assert isinstance(loaded(torch.from_numpy(numbers(5, 3, 6, 6))), torch.Tensor)
    np.testing.assert_array_equal(loaded.at(batch=4)(x[:4]), loaded(x[:4]))
    assert loaded.random_inputs(batch=5)[0].shape == (5, 3, 6, 6)
    assert "batch 1 to 12, programs for 1, 2, 4, 8" in loaded.explain()


@needs_cpu
def test_programs_share_what_is_equal(
    compiled: DynamicExecutable, saved: Path, tmp_path: Path
) -> None:
    sizes = []
    for rows in (1, 2, 4, 8):
        compiled.at(batch=rows).save(tmp_path / "one.mdx")
        sizes.append(CompiledFile(tmp_path / "one.mdx").part("constants").size)
    # Those for one row and for more may lie in two ways.
    assert CompiledFile(saved).part("constants").size <= sum(sizes[:2])
    header = CompiledFile(saved).header
    runners = {said["code"]["the native runner"] for said in header["programs"]}
    assert len(header["programs"]) == 4 and len(runners) == 1


@needs_cpu
def test_a_damaged_file_is_refused(saved: Path, tmp_path: Path) -> None:
    data = bytearray(saved.read_bytes())
    data[-100] ^= 1
    (tmp_path / "net.mdx").write_bytes(data)
    with pytest.raises(md.WeightsError, match="constants are not what was written"):
        md.load(tmp_path / "net.mdx")


@needs_cpu
def test_what_a_loaded_file_refuses(saved: Path, tmp_path: Path) -> None:
    loaded: Any = md.load(saved)
    for shape, text in (
        ((13, 3, 6, 6), "axis 0, 'batch', is 13; valid are 1 to 12"),
        ((2, 3, 6, 7), "axis 3 is 7; valid is 6"),
        ((0, 3, 6, 7), "axis 3 is 7; valid is 6"),
        ((0, 3, 6), "of rank 3; valid is rank 4"),
    ):
        with pytest.raises(GraphError, match=text):
            loaded(np.zeros(shape, np.float32))
    with pytest.raises(GraphError, match=r"no program for batch=3, .*; valid are 1, 2, 4, 8"):
        loaded.at(batch=3)
    with pytest.raises(UnsupportedError, match="was loaded from a file, which can be copied"):
        loaded.save(tmp_path / "again.mdx")
    with pytest.raises(UnsupportedError, match="is had by compiling the network"):
        md.save_graph(loaded, tmp_path / "again")


@needs_cpu
def test_a_range_that_begins_later(tmp_path: Path) -> None:
    net = L.Sequential(L.Linear(4, 3)).initialize(0)
    exe = md.compile(net, (md.Dim("n", 3, 21, multiple=3), 4), device="cpu", threads=1)
    exe.save(tmp_path / "net.mdx")
    loaded = md.load(tmp_path / "net.mdx")
    assert isinstance(loaded, BatchExecutable) and list(loaded.programs) == [3, 6, 12]
    for rows in (3, 9, 21):
        np.testing.assert_array_equal(loaded(numbers(rows, 4)), exe(numbers(rows, 4)))
    for rows in (2, 4, 24):
        with pytest.raises(GraphError, match="valid are 3 to 21 that are multiples of 3"):
            loaded(numbers(rows, 4))


@pytest.mark.parametrize("device", ["reference", pytest.param("cpu", marks=needs_cpu)])
def test_what_cannot_be_saved(device: str, tmp_path: Path) -> None:
    def refused(net: L.Layer, shape: Any, text: str) -> None:
        exe = md.compile(net, shape, device=device)
        with pytest.raises(UnsupportedError, match=text):
            exe.save(tmp_path / "net.mdx")
        with pytest.raises(GraphError, match="save: path=3 is a int"):
            exe.save(3)  # type: ignore[arg-type]

    side = md.Dim("side", 4, 8)
    text = r"batch vary: 'batch', 'side'; valid is one size, as exe\.at\(batch=12, side=8\)\.save"
    refused(L.Sequential(L.ReLU()), (BATCH, 3, side, side), text)
    refused(L.Sequential(L.Softmax(0)), (BATCH, 3), "compute batches in parts, and .* mixes rows")
    if device == "reference":
        refused(L.Sequential(L.ReLU()), (BATCH, 3), "devices 'cpu' and 'cuda' can")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("device", ["reference", pytest.param("cpu", marks=needs_cpu)])
@pytest.mark.parametrize("file", [False, True])
def test_no_rows_give_no_results(device: str, file: bool, tmp_path: Path) -> None:
    """Results that have no rows are what they are for any batch."""
    if file and device == "reference":
        pytest.skip("the device saves nothing")
    shapes: Any = [(BATCH, 3), (1, 3)]
    exe: Any = md.compile(Two(), shapes, device=device)
    if file:
        exe.save(tmp_path / "net.mdx")
        exe = md.load(tmp_path / "net.mdx")
    x, scale = np.empty((0, 3), np.float32), numbers(1, 3)
    found = exe(x, scale)
    assert found["scaled"].shape == (0, 3) and found["scaled"].dtype == np.float32
    np.testing.assert_array_equal(found["twice"], scale + scale)
    out = [np.empty((0, 3), np.float32), np.empty((1, 3), np.float32)]
    assert exe(x, scale, out=out) is out
    np.testing.assert_array_equal(out[1], scale + scale)
    tensors = exe(torch.empty(0, 3), torch.from_numpy(scale))
    assert tensors["scaled"].shape == (0, 3) and isinstance(tensors["scaled"], torch.Tensor)
    with pytest.raises(GraphError, match=r"out\[0\] is float32\[1, 3\]; valid is"):
        exe(x, scale, out=[out[1], out[1]])
    with pytest.raises(GraphError, match="has dtype int64"):
        exe(x.astype(np.int64), scale)


def test_rows_that_depend_on_each_other_are_some() -> None:
    exe = md.compile(L.Sequential(L.Softmax(0)), (BATCH, 3), device="reference")
    with pytest.raises(GraphError, match="axis 0, 'batch', is 0; valid are 1 to 12"):
        exe(np.empty((0, 3), np.float32))


def test_headers_are_json(tmp_path: Path) -> None:
    """What stands in a file of several programs is read by every JSON reader."""
    if unavailable("cpu") is not None:
        pytest.skip("the CPU cannot be used here")
    exe = md.compile(L.Sequential(L.ReLU()), (BATCH, 3), device="cpu", threads=1)
    exe.save(tmp_path / "net.mdx")
    header = CompiledFile(tmp_path / "net.mdx").header
    assert json.loads(json.dumps(header)) == header
    assert header["network"]["batch"] == ["batch", 1, 12, 1]


def test_programs_that_have_their_own_constants() -> None:
    """All of one in one array, as on GPUs: equal ones stand there once, and each finds its own."""
    blobs = [np.arange(100, dtype=np.uint8), np.arange(7, dtype=np.uint8)]
    programs = [
        StoredProgram("sm", {"number": i}, {"code": bytes([i % 2])}, [blobs[i % 2]], 100 * (i == 0))
        for i in range(4)
    ]
    shared = share(programs)
    assert [each["number"] for each in shared.documents] == [0, 1, 2, 3]
    data = np.zeros(256, np.uint8)
    for array, offset in zip(shared.constants, offsets_of(shared.constants), strict=True):
        data[offset : offset + array.nbytes] = array
    for i, place in enumerate(shared.places):
        assert place is not None
        begin, size = place
        np.testing.assert_array_equal(data[begin : begin + size], blobs[i % 2])
    assert len(shared.constants) == len(shared.code) == 2
    assert [shared.code[names["code"]] for names in shared.code_names] == [b"\0", b"\1"] * 2
