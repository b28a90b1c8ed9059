"""Batches in parts on devices that take arrays of their own: with a device of the test's, and on a
GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.cache import forbid_builds
from minidnn.dynamic.executable import DynamicExecutable
from minidnn.dynamic.kept import CachedProgram
from minidnn.dynamic.split import BatchPart, RowWise, run_in_parts
from minidnn.executable import Executable
from minidnn.graph.types import TensorType
from minidnn.runtime.interface import Endpoint, Interface


class Doubling:
    """A device's program: twice its first input, and the second as it is."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def run(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        raise NotImplementedError

    def bind(self, inputs: Sequence[Any], out: Any) -> Any:
        raise NotImplementedError

    def call(self, inputs: Sequence[Any], out: Any) -> Sequence[Any]:
        x, y = inputs
        assert x.shape == (self.rows, 3) and y.shape == (1, 2)
        if out is None:
            return [x * 2, y.copy()]
        out[0][...], out[1][...] = x * 2, y
        return list(out)


def program(rows: int) -> CachedProgram:
    x = Endpoint("x", TensorType((rows, 3)))
    y = Endpoint("y", TensorType((1, 2)))
    executable = Executable(Interface("net", (x, y), (x, y)), Doubling(rows), "ours", "float32")
    return CachedProgram(executable, "made")


@pytest.mark.parametrize("parts", [[(0, 4), (4, 1), (5, 1)], [(0, 4), (2, 4)], [(0, 6)]])
def test_results_of_parts_are_joined(parts: list[tuple[int, int]]) -> None:
    split = (
        [BatchPart(*part) for part in parts],
        [program(rows).executable for _, rows in parts],
        RowWise((True, False), (True, False)),
    )
    x, y = np.arange(18, dtype=np.float32).reshape(6, 3), np.ones((1, 2), np.float32)
    doubled, same = run_in_parts(*split, 6, [x, y], None)
    np.testing.assert_array_equal(doubled, 2 * x)
    np.testing.assert_array_equal(same, y)
    out = (np.empty_like(x), np.empty_like(y))
    assert run_in_parts(*split, 6, [x, y], out) is out
    np.testing.assert_array_equal(out[0], 2 * x)


@pytest.mark.gpu
@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("library", ["numpy", "cupy", "torch"])
def test_batches_of_any_size_on_a_gpu(library: str, background: bool) -> None:
    arrays = pytest.importorskip(library)
    net = md.Sequential(
        *(L.Conv2d(3, 16, 3, padding=1), L.BatchNorm2d(16), L.ReLU(), L.MaxPool2d(2)),
        *(L.AdaptiveAvgPool2d(1), L.Flatten(), L.Linear(16, 5)),
    )
    shape = (md.Dim("batch", 1, 24), 3, 16, 16)
    exe = md.compile(net, shape, device="cuda", background=background)
    assert isinstance(exe, DynamicExecutable)
    random = np.random.default_rng(0)
    for rows in (5, 5, 24, 7, 5, 1, 7):
        x = random.standard_normal((rows, 3, 16, 16)).astype(np.float32)
        given: Any = arrays.asarray(x, device="cuda") if library == "torch" else arrays.asarray(x)
        y = exe(given)
        if library != "numpy":
            y = y.cpu().numpy() if library == "torch" else y.get()
        expected = md.compile(net, x.shape, device="reference")(x)
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    exe.wait()
    assert (exe.counts.in_parts > 0) == background


TOLERANCES = {"float32": 1e-5, "tf32": 4e-3, "float16": 4e-3, "bfloat16": 3e-2}


@pytest.mark.gpu
@pytest.mark.parametrize("precision", TOLERANCES)
def test_planes_of_any_size_on_a_gpu(precision: str) -> None:
    """The first call of a size needs no compiler; the size's own program gives what it gives."""
    net = md.Sequential(
        *(L.Conv2d(3, 24, 3, stride=2, padding=1, bias=False), L.BatchNorm2d(24), L.ReLU()),
        *(L.MaxPool2d(3, 2, padding=1), L.Conv2d(24, 24, 3, padding=1, groups=24), L.Sigmoid()),
        *(L.Conv2d(24, 40, 1), L.ReLU(), L.AvgPool2d(2, ceil_mode=True, count_include_pad=False)),
        *(L.AdaptiveAvgPool2d(1), L.Flatten(), L.Linear(40, 8)),
    )
    dims = md.Dim("height", 9, 90), md.Dim("width", 9, 90)
    exe = md.compile(net, (2, 3, *dims), device="cuda", precision=precision, keep=4)
    assert isinstance(exe, DynamicExecutable)
    random, shapes = np.random.default_rng(0), [(31, 47), (90, 9), (64, 64), (17, 80), (9, 90)]
    found: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = {}
    with forbid_builds():
        for plane in shapes:
            x = random.standard_normal((2, 3, *plane)).astype(np.float32)
            found[plane] = x, np.asarray(exe(x), np.float64)
    assert exe.counts.by_any_size == len(shapes) and exe.counts.kept <= 4
    for x, y in found.values():
        exact = md.compile(net, x.shape, device="reference", precision="float64")(x)
        bound = TOLERANCES[precision] * np.abs(exact).max()
        np.testing.assert_allclose(y, exact, rtol=0, atol=bound)
    x, y = found[9, 90]
    exe(x)
    exe.wait()
    assert "compiled in the background" in exe.explain()
    np.testing.assert_allclose(exe(x), y, rtol=0, atol=2 * bound)
