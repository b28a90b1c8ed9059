"""Gradients of convolutions with sums behind them, on a GPU: by our kernel, and by a sweep."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from minidnn.backends.cuda.contraction.config import ContractionExecutable
from minidnn.backends.cuda.contraction.tune import Tuning, everything, own
from minidnn.backends.cuda.functions import load_launches
from minidnn.backends.cuda.machine import machine_of
from minidnn.backends.cuda.task import Task
from minidnn.graph.types import HALF_DTYPES
from tests.cuda.summed import addresses, check, drawn, laid, problem_of, read, tasks_of

pytestmark = pytest.mark.gpu


def computed(task: Task, built: ContractionExecutable, given: list[np.ndarray]) -> list[np.ndarray]:
    import cupy

    node = task.node
    bits = {
        v: cupy.asarray(laid(v, x).reshape(-1)) for v, x in zip(node.inputs, given, strict=True)
    }
    for value in node.outputs:
        bits[value] = cupy.full(value.type.bytes, 0xFF, np.uint8)
    room = cupy.full(built.workspace + 256, 0xFF, np.uint8)
    places = {value: array.data.ptr for value, array in bits.items()}
    built.bind(addresses(task, places, room.data.ptr), room.data.ptr)()
    cupy.cuda.get_current_stream().synchronize()
    found = []
    for value in node.outputs:
        kind = laid(value, np.zeros(value.shape, np.float32)).dtype
        found.append(read(value, bits[value].get().view(kind)))
    return found


@pytest.mark.early
@pytest.mark.parametrize("dtype", HALF_DTYPES)
@pytest.mark.parametrize(
    ("shape", "inner"),
    [
        *(((16, 128, 28, 28), 64), ((3, 80, 9, 11), 24)),
        *(((6, 32, 56, 56), 0), ((2, 16, 9, 11), 0)),
    ],
)
def test_numbers(shape: tuple[int, ...], inner: int, dtype: str) -> None:
    """Every kernel of ours, and cuDNN's with a sweep, twice each; with ``inner`` channels or of
    windows alone."""
    machine = machine_of(0)
    tuning = Tuning(machine, "quick", 1 << 30, partial(load_launches, arch=machine.arch))
    for task in tasks_of(shape, inner, dtype):
        problem, given = problem_of(task), drawn(task)
        ours = own(problem, tuning)
        assert machine.arch != "sm_90" or ours or shape[0] < 6
        for built in (*ours, *everything(problem, [], {}, tuning)[:1]):
            found = computed(task, built, given)
            check(task, given, found)
            for one, other in zip(found, computed(task, built, given), strict=True):
                np.testing.assert_array_equal(one, other)
