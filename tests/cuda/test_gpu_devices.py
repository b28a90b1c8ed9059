"""The second GPU while the first is current; needs two, and a process that sees both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.errors import DeviceError

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy")
torch = pytest.importorskip("torch")
SHAPE = (4, 3, 18, 22)
PRECISIONS = {"float32": 1e-5, "float16": 1e-2}


@pytest.fixture(autouse=True)
def _two_devices() -> Iterator[None]:
    count = cupy.cuda.runtime.getDeviceCount()
    if count < 2:
        pytest.skip(f"needs two GPUs, CUDA sees {count}")
    cupy.cuda.runtime.setDevice(0)
    yield
    assert cupy.cuda.runtime.getDevice() == torch.cuda.current_device() == 0


def network() -> md.Layer:
    block = (L.Conv2d(3, 16, 3, padding=1), L.BatchNorm2d(16), L.ReLU(), L.MaxPool2d(2))
    return L.Sequential(*block, L.Conv2d(16, 8, 1), L.AdaptiveAvgPool2d(1), L.Flatten())


def numbers(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(SHAPE, np.float32)


def on(device: int, array: np.ndarray) -> Any:
    with cupy.cuda.Device(device):
        return cupy.asarray(array)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_arrays_of_every_library(precision: str) -> None:
    net = network()
    exe = md.compile(net, SHAPE, device="cuda:1", precision=precision)
    assert exe.device == "cuda:1"
    expected = md.compile(net, SHAPE, device="reference")(numbers())

    def check(result: Any) -> None:
        error = np.abs(np.asarray(result, np.float32) - expected).max()
        assert error < PRECISIONS[precision] * np.abs(expected).max()

    check(exe(numbers()))
    by_cupy = exe(on(1, numbers()))
    assert by_cupy.device.id == 1
    check(by_cupy.get())
    by_torch = exe(torch.from_numpy(numbers()).to("cuda:1"))
    assert by_torch.device == torch.device("cuda:1")
    check(by_torch.float().cpu())
    with cupy.cuda.Device(1):
        check(exe(cupy.asarray(numbers())).get())
    assert "of the roofline" in exe.explain(measure=True)


def test_arrays_of_the_other_device_are_refused() -> None:
    exe = md.compile(network(), SHAPE, device="cuda:1", tune="heuristic")
    text = r"input 'input' is on device cuda:0; valid is cuda:1"
    for array in (on(0, numbers()), torch.from_numpy(numbers()).to("cuda:0")):
        with pytest.raises(DeviceError, match=text):
            exe(array)
        with pytest.raises(DeviceError, match=text):
            exe.bind(array)
    with pytest.raises(DeviceError, match=r"out\[0\] is on device .*; valid is cuda:1"):
        exe(on(1, numbers()), out=on(0, np.empty((4, 8), np.float32)))


def test_bound_arrays_and_both_devices_at_once() -> None:
    net = network()
    programs = [md.compile(net, SHAPE, device=f"cuda:{i}", tune="heuristic") for i in (0, 1)]
    arrays = [torch.from_numpy(numbers()).to(f"cuda:{i}") for i in (0, 1)]
    runs = [exe.bind(array) for exe, array in zip(programs, arrays, strict=True)]
    reference = md.compile(net, SHAPE, device="reference")
    for seed in range(3):
        for array, run in zip(arrays, runs, strict=True):
            array.copy_(torch.from_numpy(numbers(seed)))
            run()
        for i, run in enumerate(runs):
            assert run.outputs[0].device == torch.device(f"cuda:{i}")
            np.testing.assert_allclose(
                run.outputs[0].cpu().numpy(), reference(numbers(seed)), atol=1e-5
            )
