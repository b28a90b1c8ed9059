"""What explain says of a contraction's kernels, without a GPU: only the driver's answer is made."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from minidnn import layers as L
from minidnn.backends.cuda import functions
from minidnn.backends.cuda.contraction.algorithms import algorithms_for
from minidnn.backends.cuda.contraction.config import (
    FIXED,
    AlgorithmConfig,
    ContractionExecutable,
    CudaAlgorithm,
    finish_of,
    prepare_of,
)
from minidnn.backends.cuda.contraction.fixed_function import FixedConvolution
from minidnn.backends.cuda.contraction.kernel_registry import (
    KERNELS,
    LoadedContraction,
)
from minidnn.backends.cuda.contraction.problem import ContractionProblem
from minidnn.backends.cuda.functions import CompiledKernel, Loaded
from minidnn.backends.cuda.kernels import Launch
from minidnn.backends.cuda.nvrtc import Resources
from minidnn.backends.cuda.prepare import ContractionWork, KernelWork
from tests.cuda.cards import H200

from .contractions import HALO, TILE, residual
from .lowered import problems_of

STATIC = 1000
PLAIN = L.Sequential(L.Conv2d(64, 64, 3, padding=1), L.ReLU())
STEM = L.Sequential(L.Conv2d(3, 64, 7, 2, 3), L.ReLU())


@pytest.fixture(autouse=True)
def _driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two blocks of each kernel run at once, where 2048 threads could."""
    driver = SimpleNamespace(
        occupancyMaxActiveBlocksPerMultiprocessor=lambda function, threads, shared: 2
    )
    device = SimpleNamespace(attributes={"MaxThreadsPerMultiProcessor": 2048})
    cuda = SimpleNamespace(driver=driver, Device=lambda: device)
    monkeypatch.setattr(functions, "cupy", lambda: SimpleNamespace(cuda=cuda))


def loaded(launch: Launch, registers: int) -> Loaded:
    return Loaded(
        launch, CompiledKernel(b"", "k", Resources(registers, 0, 0, STATIC)), SimpleNamespace(ptr=0)
    )


def said(launch: Launch, registers: int) -> str:
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    shared = STATIC + launch.shared_bytes
    percent = f"{100 * 2 * threads / 2048:.0f}%"
    return f"{registers} registers, {shared} bytes of shared memory, {percent} occupancy"


def work_of(
    problem: ContractionProblem, algorithm: CudaAlgorithm, core: Any, engine: int
) -> ContractionWork:
    around = prepare_of(problem, algorithm, H200), finish_of(problem, algorithm)
    first, last = (
        None if launch is None else loaded(launch, registers)
        for launch, registers in zip(around, (20, 30), strict=True)
    )
    built = ContractionExecutable(problem, AlgorithmConfig(algorithm, engine), core, first, last)
    return ContractionWork(built)


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_our_kernels_tell_what_they_take(precision: str) -> None:
    """Each of a recipe's, in the order in which they run; all cores' kernels are seen."""
    (problem,) = problems_of(PLAIN, (8, 64, 56, 56), precision)
    algorithms = [
        algorithm for algorithm in algorithms_for(problem, H200) if algorithm.kernel is not None
    ]
    assert algorithms
    counts = set()
    for algorithm in algorithms:
        kernel = KERNELS[algorithm.core]
        for choice in kernel.choices(problem, H200):
            launches = kernel.launches(problem, choice, H200)
            every = [loaded(launch, 100 + i) for i, launch in enumerate(launches)]
            core = LoadedContraction(problem, kernel, choice, H200, every)
            text = work_of(problem, algorithm, core, choice).describe()
            head, *kernels = text.split("; ")
            assert head.startswith(algorithm.core) and head.endswith(" MB of workspace")
            assert kernels == [said(launch, 100 + i) for i, launch in enumerate(launches)]
            counts.add(len(kernels))
    assert counts == ({1, 2, 3} if precision == "float32" else {1})


def test_kernels_around_the_core_tell_too() -> None:
    """The one that gathers, and those that compute what cuDNN leaves; cuDNN's say nothing."""
    (stem,) = problems_of(STEM, (2, 3, 64, 64), "float16")
    algorithm = CudaAlgorithm("halo", len(stem.stages))
    launch = HALO.launches(stem, HALO.choices(stem, H200)[0], H200)[0]
    core = LoadedContraction(stem, HALO, 0, H200, [loaded(launch, 168)])
    gather = prepare_of(stem, algorithm, H200)
    assert gather is not None
    _, *kernels = work_of(stem, algorithm, core, 0).describe().split("; ")
    assert kernels == [f"before it {said(gather, 20)}", said(launch, 168)]

    (problem,) = problems_of(residual(64, 3), (2, 64, 14, 14), "float32")
    algorithm = CudaAlgorithm(FIXED, 0)
    finish = finish_of(problem, algorithm)
    assert finish is not None
    fixed = FixedConvolution(None, 6, 1 << 20)  # type: ignore[arg-type]
    text = work_of(problem, algorithm, fixed, 6).describe()
    assert text.endswith(f"1.0 MB of workspace; after it {said(finish, 30)}")
    assert text.count("occupancy") == 1
    whole = CudaAlgorithm(FIXED, len(problem.stages))
    assert "occupancy" not in work_of(problem, whole, fixed, 6).describe()


def test_other_kernels_say_the_same() -> None:
    (problem,) = problems_of(PLAIN, (8, 64, 56, 56), "float16")
    launch = TILE.launches(problem, TILE.choices(problem, H200)[0], H200)[0]
    work = KernelWork(loaded(launch, 64))
    assert work.describe() == said(launch, 64)
