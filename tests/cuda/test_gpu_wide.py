"""Images and batches of more elements than 32 bits count, on a GPU."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from tests.cuda.arrays import numbers
from tests.cuda.on_gpu import function_of
from tests.cuda.test_sequence_wide import CASES, Wide, wide

# Alone: an image and its results take most of a card of 80 GB.
pytestmark = [pytest.mark.gpu, pytest.mark.alone]
torch = pytest.importorskip("torch")
cupy = pytest.importorskip("cupy")


@pytest.fixture(autouse=True)
def memory_is_given_back() -> Iterator[None]:
    """The tests run in several workers, whose pools would keep what the next one needs."""
    yield
    gc.collect()
    cupy.get_default_memory_pool().free_all_blocks()
    torch.cuda.empty_cache()


class Memory:
    """What a wide tensor lies in, by itself; element by element, as libraries may count in 32 bits,
    too."""

    def __init__(self, case: Wide) -> None:
        tensor, item = case.tensor, case.given.itemsize
        self.memory = cupy.cuda.Memory(tensor.image * item)
        steps = (tensor.channel * item, tensor.row * item, tensor.pixel * item)
        places = np.tensordot(steps, np.indices(case.given.shape[1:], np.int64), 1)
        self.places = [self.memory.ptr + int(place) for place in places.flat]

    def write(self, array: np.ndarray) -> None:
        flat = np.ascontiguousarray(array).reshape(-1)
        for i, place in enumerate(self.places):
            cupy.cuda.runtime.memcpy(place, flat[i:].ctypes.data, flat.itemsize, 1)

    def read(self, like: np.ndarray) -> np.ndarray:
        flat = np.empty(like.size, like.dtype)
        for i, place in enumerate(self.places):
            cupy.cuda.runtime.memcpy(flat[i:].ctypes.data, place, flat.itemsize, 2)
        return flat.reshape(like.shape)


@pytest.mark.parametrize("name", CASES)
def test_wide_images_give_the_same_bits(name: str) -> None:
    """The emulator's cases."""
    case = wide(name)
    given, result = Memory(case), Memory(case)
    given.write(case.given)
    vectors = [cupy.asarray(array) for array in case.vectors]
    arguments = [given.memory.ptr, result.memory.ptr, *(array.data.ptr for array in vectors)]
    function = function_of(case.launch.source)
    function(case.launch.grid, case.launch.block, arguments, shared_mem=case.launch.shared_bytes)
    cupy.cuda.runtime.deviceSynchronize()
    found = numbers(result.read(case.given), case.tensor.dtype)
    np.testing.assert_array_equal(found, case.expected)


SHAPES = {"image": (1, 4, 23200, 23200), "batch": (128, 64, 512, 520)}
POOLS = {
    "max": (L.MaxPool2d(3, 1, 1), lambda x: torch.nn.functional.max_pool2d(x, 3, 1, 1)),
    "average": (L.AvgPool2d(3, 1, 1), lambda x: torch.nn.functional.avg_pool2d(x, 3, 1, 1)),
}


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("which", SHAPES)
def test_a_compiled_chain_reaches_all_of(which: str, name: str) -> None:
    """Compared channel by channel, which 32 bits suffice for."""
    shape = SHAPES[which]
    pool, reference = POOLS[name]
    assert np.prod(shape) > 1 << 31 > np.prod(shape) // shape[1]
    normalization = L.BatchNorm2d(shape[1])
    random = np.random.default_rng(0)
    names = ("running_mean", "running_var", "weight", "bias")
    state = {name: random.uniform(0.5, 1.5, shape[1]).astype(np.float32) for name in names}
    normalization.load_state_dict(state, strict=False)
    net = L.Sequential(normalization, L.ReLU(), pool)
    exe = md.compile(net, shape, device="cuda", precision="float16", tune="heuristic")
    given = torch.randn(shape, device="cuda", dtype=torch.float16)
    result = exe(given)
    for c in range(shape[1]):
        vectors = [torch.from_numpy(state[name][c : c + 1]).cuda() for name in names]
        channel = given[:, c : c + 1].float()
        wanted = reference(torch.nn.functional.batch_norm(channel, *vectors).relu_())
        torch.testing.assert_close(result[:, c : c + 1].float(), wanted, rtol=1e-2, atol=1e-2)
