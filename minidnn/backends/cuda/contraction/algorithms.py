"""The algorithms of a contraction that are worth trying, and a lower bound of their times.

The bound is that of memory traffic, so tuning can drop algorithms without building them.  Here is
also what all algorithms of a contraction need: workspace, and the kernels that are compiled.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

from ....graph.types import ITEMSIZE
from ..kernels import Launch
from ..machine import Machine
from ..tensor import Tensor
from .config import (
    FIXED,
    AlgorithmConfig,
    CudaAlgorithm,
    finish_of,
    prepare_of,
    sums_of,
    used,
    workspace_bytes,
)
from .graphs import CONVOLUTION, PRODUCT, can_be_product, fusable_stages, why_no_engine
from .kernel_registry import KERNELS
from .problem import ContractionProblem

_CACHED = 3.0
"""Bandwidth of the L2 cache over that of memory, at most; 2 to 2.5 were seen on an H200."""


def least_milliseconds(
    problem: ContractionProblem, algorithm: CudaAlgorithm, machine: Machine
) -> float:
    """A lower bound of an algorithm's time: each of its kernels reads and writes each of its
    tensors at least once."""
    batch = problem.batch
    x, y = _bytes(problem.x, batch), _bytes(problem.y, batch)
    others = [_bytes(t, batch) for t in problem.others]
    seconds = 0.0
    if problem.gather is not None or (problem.before and algorithm.kernel is None):
        prepared = _bytes(problem.gathered, batch)
        seconds += _seconds(machine, x + prepared)
        x = prepared
    residuals = [stage.index for stage in problem.stages[: algorithm.stages] if stage.mode == "add"]
    weights = prod(problem.w.shape) * ITEMSIZE[problem.w.dtype]
    seconds += _seconds(machine, x + weights + y + sum(others[i] for i in residuals))
    if problem.producer is not None:
        read_before = sum(_bytes(t, batch) for t in problem.producer.tensors)
        seconds += _seconds(machine, read_before if algorithm.producer else read_before + y)
    if algorithm.packed or algorithm.stages < len(problem.stages):
        unfused, _, _ = used(problem, algorithm.stages)
        seconds += _seconds(machine, 2 * y + sum(others[i] for i in unfused))
    if sums_of(problem, algorithm):
        seconds += _seconds(machine, _bytes(problem.made, batch))
    return 1e3 * seconds


def _seconds(machine: Machine, bytes: int) -> float:
    """The least time to move that many bytes, which the L2 cache may hold where they are few."""
    return bytes / (machine.bandwidth * (_CACHED if bytes < machine.cache_bytes else 1.0))


def _bytes(t: Tensor, batch: int) -> int:
    return batch * t.channels * t.rows * t.columns * t.itemsize


def algorithms_for(problem: ContractionProblem, machine: Machine) -> list[CudaAlgorithm]:
    """The algorithms on a machine, the most promising first: our kernels and cuDNN's first
    algorithm in the order of :meth:`.ContractionKernel.price`, then cuDNN's other algorithms."""
    if problem.any_size:
        return _by_fixed_functions(problem)  # these need no compiler
    stages = len(problem.stages)
    possible = [
        (kernel, CudaAlgorithm(kernel.name, stages, producer=producer))
        for kernel in KERNELS.values()
        for producer in ((False,) if problem.producer is None else (True, False))
    ]
    priced = [
        (kernel.price(problem), algorithm)
        for kernel, algorithm in possible
        if kernel.refusal(algorithm.of_core(problem), machine) is None
    ]
    cudnn = _by_cudnn(problem)
    priced += [(1.0, algorithm) for algorithm in cudnn[:1]]
    return [algorithm for _, algorithm in sorted(priced, key=lambda entry: entry[0])] + cudnn[1:]


def _by_fixed_functions(problem: ContractionProblem) -> list[CudaAlgorithm]:
    """The algorithms by cuDNN's fixed functions, with all stages that these fuse or without any."""
    levels = dict.fromkeys((_fixed_stages(problem), 0))
    packings = _packings(problem)
    return [CudaAlgorithm(FIXED, level, packed) for level in levels for packed in packings]


def _packings(problem: ContractionProblem) -> list[bool]:
    """Whether results may be packed, and then carried into their slice."""
    return [False] if problem.is_dense else [False, True]


def _by_cudnn(problem: ContractionProblem) -> list[CudaAlgorithm]:
    """cuDNN's algorithms.

    It fuses all stages that it supports, or those before the first residual, since few engines
    support a residual; a kernel of ours computes the other stages.  A result that is a slice is
    written in place, or packed into the workspace and then copied.
    """
    if problem.is_integer:
        fused = CudaAlgorithm(CONVOLUTION, len(problem.stages))
        return [fused] if why_no_engine(problem) is None else []
    cores = [CONVOLUTION, *([PRODUCT] if can_be_product(problem) else [])]
    if problem.direction != "forward":
        return [CudaAlgorithm(core, 0) for core in (*cores, *([FIXED] if problem.is_exact else []))]
    fusable = fusable_stages(problem)
    adds = [i for i, stage in enumerate(problem.stages[:fusable]) if stage.mode == "add"]
    algorithms = [
        CudaAlgorithm(core, level, packed)
        for level in dict.fromkeys((fusable, *adds[:1]))
        for core in cores
        for packed in _packings(problem)
    ]
    return algorithms + (_by_fixed_functions(problem) if problem.is_exact else [])


def last_resort(problem: ContractionProblem) -> list[CudaAlgorithm]:
    """The algorithms that remain where cuDNN has no engine for any other: nothing is fused."""
    if problem.direction != "forward" or problem.is_integer:
        return []
    return [CudaAlgorithm(CONVOLUTION, 0, packed) for packed in _packings(problem)]


def _fixed_stages(problem: ContractionProblem) -> int:
    """How many stages cuDNN's fixed function fuses: bias, residual if any, ReLU."""
    if problem.vectors[:1] != (problem.y.dtype,):
        return 0
    modes = [stage.mode for stage in problem.stages[:3]]
    plain = [not stage.parameters for stage in problem.stages[:3]]
    for pattern in (["bias", "add", "relu"], ["bias", "relu"]):
        if modes[: len(pattern)] == pattern and all(plain[: len(pattern)]):
            return len(pattern)
    return 0


@lru_cache(maxsize=1024)
def least_workspace(problem: ContractionProblem, machine: Machine) -> int:
    """Bytes of workspace that all algorithms take: for a gathered image, or for the result of a
    prologue where all cores are cuDNN's, which fuses none.  Of a problem with an epilogue reduction
    only cuDNN's algorithms count, which a sweep follows: ours have partial sums in the core's
    workspace."""
    algorithms = algorithms_for(problem, machine)
    if problem.reduction is not None:
        algorithms = [algorithm for algorithm in algorithms if algorithm.kernel is None]
    return min((workspace_bytes(problem, algorithm, 0) for algorithm in algorithms), default=0)


def launches_of(
    problem: ContractionProblem, machine: Machine, known: AlgorithmConfig | None = None
) -> list[Launch]:
    """The launches of our kernels that may be chosen, and of those before and after cuDNN's cores;
    if a configuration is ``known``, of that one alone."""
    launches: list[Launch | None] = []
    for algorithm in algorithms_for(problem, machine) if known is None else [known.algorithm]:
        launches += [prepare_of(problem, algorithm, machine), finish_of(problem, algorithm)]
        launches += sums_of(problem, algorithm)
        if algorithm.kernel is not None:
            core_problem = algorithm.of_core(problem)
            choices = algorithm.kernel.choices(core_problem, machine)
            for choice in choices if known is None else [known.engine]:
                launches += algorithm.kernel.launches(core_problem, choice, machine)
    return [launch for launch in launches if launch is not None]
