"""Two GPUs: a handle for each, and arrays of the other one are told before cuDNN sees them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from minidnn.cudnn import convolution, dropout, pooling
from minidnn.cudnn.errors import ArgumentError
from minidnn.cudnn.graph import Graph
from minidnn.cudnn.handle import current_handle
from minidnn.errors import DeviceError

pytestmark = pytest.mark.gpu


@pytest.fixture
def cupy(real_cupy: Any) -> Any:
    """CuPy, where it sees two GPUs."""
    count = real_cupy.cuda.runtime.getDeviceCount()
    if count < 2:
        pytest.skip(f"needs two GPUs, CUDA sees {count}")
    return real_cupy


def arrays(cupy: Any, device: int) -> tuple[Any, Any]:
    with cupy.cuda.Device(device):
        x = cupy.arange(2 * 8 * 9 * 9, dtype="f").reshape(2, 8, 9, 9) % 7
        return x, cupy.ones((8, 8, 3, 3), "f")


def truth(cupy: Any, device: int) -> np.ndarray:
    import torch

    x, w = (torch.from_numpy(array.get()) for array in arrays(cupy, device))
    return torch.nn.functional.conv2d(x.double(), w.double(), padding=1).numpy()


def graph(x: Any, w: Any) -> Graph:
    g = Graph()
    g.convolution(*g.tensors(x, w), padding=1)
    return g


def test_each_device_computes_with_a_handle_of_its_own(cupy: Any) -> None:
    handles = []
    for device in (0, 1, 0, 1):
        x, w = arrays(cupy, device)
        with cupy.cuda.Device(device):
            handles.append(current_handle())
            for algorithm in ("heuristic", "find_ex"):
                y = convolution.forward(x, w, padding=1, algorithm=algorithm)
                assert y.device.id == device
                np.testing.assert_array_equal(y.get().round(), truth(cupy, device))
            z = graph(x, w).build()(x, w)
            np.testing.assert_array_equal(z.get().round(), truth(cupy, device))
    assert handles[0] != handles[1] and handles[:2] == handles[2:]


def test_threads_on_both_devices(cupy: Any) -> None:
    def work(number: int) -> bool:
        device = number % 2
        with cupy.cuda.Device(device), cupy.cuda.Stream(non_blocking=True) as stream:
            x, w = arrays(cupy, device)
            y = convolution.forward(x, w, padding=1, algorithm=1)
            stream.synchronize()
            return bool((y.get() == truth(cupy, device)).all())

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(32)))


def test_arrays_of_the_other_device_are_told(cupy: Any) -> None:
    (x, w), (other, _) = arrays(cupy, 0), arrays(cupy, 1)
    with pytest.raises(ArgumentError, match="x is on device 1, but the current device is 0"):
        convolution.forward(other, w, padding=1)
    with pytest.raises(ArgumentError, match="x is on device 1, but the current device is 0"):
        pooling.forward(other, window=2)
    plan = graph(x, w).build(choose="heuristic")
    with pytest.raises(DeviceError, match="is on device 1; the plan was built on 0"):
        plan(other, w)
    bound, drop = plan.bind(x, w), dropout.Dropout(0.5)
    with cupy.cuda.Device(1):
        with pytest.raises(ArgumentError, match="x is on device 0, but the current device is 1"):
            convolution.forward(x, w, padding=1)
        with pytest.raises(DeviceError, match=r"the current device is 1; .* was built on 0"):
            bound()
        with pytest.raises(ArgumentError, match="random states of this Dropout is on device 0"):
            drop.forward(other)
    bound()
    np.testing.assert_allclose(bound.outputs[0].get(), truth(cupy, 0), atol=1e-2)
