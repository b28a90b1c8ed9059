"""Images of more elements than 32 bits count, whose pixels or rows lie far apart: the same bits as
node by node in the emulator, in memory of which only what is touched is there."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from minidnn import layers as L
from minidnn.backends.cuda.kernels import Launch
from minidnn.backends.cuda.sequence.printer import print_sequence
from minidnn.backends.cuda.tensor import Tensor
from minidnn.fusion.region import FusedSequence
from minidnn.fusion.sequence import Schedule
from minidnn.graph.types import rounded_to
from tests.cuda.arrays import STORED, numbers, stored, strided
from tests.cuda.cards import H200
from tests.cuda.emulator.run import Emulated
from tests.cuda.sequences import evaluate_rounded
from tests.cuda.test_sequence_kinds import numbers_for
from tests.cuda.test_sequence_units import region_of

CHANNELS, ROWS, COLUMNS = 8, 6, 4
NO_RESERVE = 0x4000  # MAP_NORESERVE of Linux, which Python names since 3.13

CASES = {
    "strips": ((L.AvgPool2d(3, 1, 1),), "float16", False, False),
    "tiles": ((L.MaxPool2d(3, 1, 1), L.BatchNorm2d(CHANNELS)), "float16", False, False),
    "loops": ((L.MaxPool2d((9, 9), 1, 4),), "bfloat16", False, False),
    "packs": ((L.BatchNorm2d(CHANNELS), L.ReLU()), "float32", False, False),
    "planes": ((L.MaxPool2d(3, 1, 1),), "float32", True, False),
    "copied planes": ((L.AvgPool2d(3, 1, 1),), "float32", True, True),
}


def far_apart(dtype: str, planar: bool) -> Tensor:
    """Rows of planes, or pixels whose channels lie side by side."""
    step = 1 << 29 if planar else 1 << 27
    steps = (COLUMNS, step, 1) if planar else (1, COLUMNS * step, step)
    tensor = Tensor(dtype, CHANNELS, ROWS, COLUMNS, ROWS * max(steps), *steps)
    assert tensor.image >= 1 << 31
    return tensor


def memory_of(tensor: Tensor) -> np.ndarray:
    size = tensor.image * tensor.itemsize
    try:
        memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    except OSError as error:
        pytest.skip(f"no {size >> 30} GiB of addresses: {error}")
    return np.frombuffer(memory, STORED[tensor.dtype])


@dataclass(frozen=True)
class Wide:
    """A case: its kernel, vectors that it takes, how its image and its result lie, the numbers of
    both, the image's as they are stored."""

    launch: Launch
    vectors: list[np.ndarray]
    tensor: Tensor
    given: np.ndarray
    expected: np.ndarray


def wide(name: str) -> Wide:
    layers, dtype, planar, stage = CASES[name]
    region = region_of(layers, (1, CHANNELS, ROWS, COLUMNS), dtype)
    region = FusedSequence(region.body, Schedule(ROWS, COLUMNS, stage=stage))
    operands = [rounded_to(dtype, array) for array in numbers_for(region.body)]
    tensor = far_apart(dtype, planar)
    plan, binding = region.kernel
    kernel = print_sequence(plan, binding, [tensor], [tensor], H200)
    vectors = [kernel.vectors()] if binding.vectors else []
    (expected,) = evaluate_rounded(region.body, operands)
    return Wide(kernel.launch, vectors, tensor, stored(operands[0], dtype), expected)


@pytest.mark.parametrize("name", CASES)
def test_wide_images_give_the_same_bits(name: str, tmp_path: Path) -> None:
    case = wide(name)
    given, result = memory_of(case.tensor), memory_of(case.tensor)
    strided(given, case.tensor, 1)[:] = case.given
    kernel = Emulated([case.launch.source], tmp_path)
    kernel.launch(case.launch, [given, result, *case.vectors])
    found = numbers(strided(result, case.tensor, 1), case.tensor.dtype)
    np.testing.assert_array_equal(found, case.expected)
