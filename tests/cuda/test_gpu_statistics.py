"""Mean and variance of what a contraction writes, on a GPU: by the kernel itself and by a sweep."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn.backends.cuda.contraction.config import AlgorithmConfig, CudaAlgorithm, build
from minidnn.backends.cuda.contraction.kernel_registry import load_contraction
from minidnn.backends.cuda.contraction.problem import Addresses, ContractionProblem
from minidnn.backends.cuda.functions import load_launches
from minidnn.backends.cuda.machine import machine_of
from minidnn.graph.types import HALF_DTYPES, rounded_to
from minidnn.runtime.arrays import from_bits, to_bits
from tests.cuda.contractions import EPSILON, STREAM, TILE
from tests.cuda.test_statistics import network, problem_of

pytestmark = pytest.mark.gpu

SHAPES = [((16, 64, 28, 28), 256), ((16, 512, 14, 14), 128), ((3, 40, 13, 17), 72)]


def computed(problem: ContractionProblem, kernel: Any, choice: int, x: Any, w: Any) -> list[Any]:
    """Result, mean and variance."""
    import cupy

    machine = machine_of(0)
    load = partial(load_launches, arch=machine.arch)
    core = load_contraction(problem, kernel, choice, machine, load)
    built = build(
        problem, AlgorithmConfig(CudaAlgorithm(kernel.name, 0), choice), core, machine, load
    )
    filters, pixels = len(w), len(x) * x.shape[2] * x.shape[3]
    y = cupy.full((pixels, filters), 0xFFFF, np.uint16)
    mean, variance = (cupy.full(filters, np.nan, np.float32) for _ in range(2))
    pixels_last = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    given = [cupy.asarray(to_bits(array, problem.x.dtype)) for array in (pixels_last, w)]
    room = cupy.full(built.workspace // 4 + 64, np.nan, np.float32)
    at = Addresses(
        *(given[0].data.ptr, given[1].data.ptr, y.data.ptr),
        reduction=(mean.data.ptr, variance.data.ptr),
    )
    built.bind(at, room.data.ptr)()
    cupy.cuda.get_current_stream().synchronize()
    stored = np.ascontiguousarray(y.get()).view(to_bits(w, problem.x.dtype).dtype)
    return [from_bits(stored, problem.x.dtype).astype(np.float64), mean.get(), variance.get()]


@pytest.mark.parametrize("dtype", HALF_DTYPES)
@pytest.mark.parametrize(("shape", "filters"), SHAPES)
def test_numbers(shape: tuple[int, ...], filters: int, dtype: str) -> None:
    """Every stream, and a kernel that is followed by a sweep, twice each."""
    random = np.random.default_rng(0)
    x = rounded_to(dtype, random.standard_normal(shape).astype(np.float32) + 0.5)
    w = rounded_to(dtype, random.standard_normal((filters, shape[1])).astype(np.float32) / 8)
    x, w = x.astype(np.float32), w.astype(np.float32)
    problem, machine = problem_of(shape, filters, dtype), machine_of(0)
    kernels = [TILE, *([STREAM] if STREAM.why_not(problem, machine) is None else [])]
    assert machine.arch != "sm_90" or len(kernels) == 2
    products = x.transpose(0, 2, 3, 1).reshape(-1, shape[1]).astype(np.float64) @ w.T
    for kernel in kernels:
        for choice in kernel.choices(problem, machine):
            found = computed(problem, kernel, choice, x, w)
            y, mean, variance = found
            np.testing.assert_allclose(y, products, EPSILON[dtype], 1e-4)
            np.testing.assert_allclose(mean, y.mean(0), 2e-6, 2e-6)
            np.testing.assert_allclose(variance, y.var(0), 5e-6)
            again = computed(problem, kernel, choice, x, w)
            for one, other in zip(found, again, strict=True):
                np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", HALF_DTYPES)
def test_a_step_tells_that_it_adds_up(dtype: str) -> None:
    trainer = md.Trainer(
        network(64, 128),
        (64, 64, 28, 28),
        md.losses.CrossEntropy(),
        md.optim.SGD(0.1),
        device="cuda",
        precision=dtype,
    )
    lines = trainer.explain().splitlines()
    assert any("Conv2d" in line and "Variance" in line for line in lines)
