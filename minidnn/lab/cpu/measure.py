"""Measures a step on a CPU: compiles it, checks its result, and times it.

The engine's own algorithms for the same convolution are measured in the same way, as ceilings.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...backends.codegen.kernel import KernelSource
from ...backends.cpu.compilers.kernels import compile_kernels
from ...backends.cpu.contraction import print_contraction
from ...backends.cpu.contraction.algorithms import ALGORITHMS, question_of
from ...backends.cpu.contraction.choose import Algorithm
from ...backends.cpu.execution.buffers import AlignedMemory, Guard
from ...backends.cpu.execution.program import BoundKernel, NativeProgram, Operand, Pool, shared_pool
from ...backends.cpu.isa import Isa, best_isa, usable_isa
from ...backends.cpu.stage import PrintedContraction, Workspace
from ...backends.cpu.tensor import Tensor, tensor_of
from ...fusion.region import Parts
from ...graph.ir import Constant, Node, Value
from ...graph.layout import PLANAR, blocked
from ...graph.operators import Conv2d
from ...graph.types import TensorType
from ...measure import timed
from ..ceilings import CeilingJob
from ..measure import summarized
from ..operands import RESULT, ConvolutionShape, Operands, WrongResultError, first_wrong
from ..step import Point
from .ladders import image, result
from .machine import CpuMachine

_SAMPLES, _LEAST_QUIET = 30, 8
_SAMPLE_SECONDS = 3e-4
"""A short sample is seldom disturbed by other processes."""
_BUDGET_SECONDS = 2.0
_FEW = 4
"""The engine reads images of at most so many channels in NCHW layout."""


@dataclass(frozen=True)
class CpuJob:
    """A step's kernel on a shape, as plain data for the measuring process.

    Attributes:
        kernel: the source that is compiled.
        isa: name of the instruction set that it is compiled for.
        tasks: how many tasks the kernel has.
        threads: how many threads share them.
        names: of its operands, in their order.
        operands: files of the packed operands and of the packed expected result.
    """

    kernel: KernelSource
    isa: str
    tasks: int
    threads: int
    names: tuple[str, ...]
    operands: Operands


def job(point: Point, shape: Any, machine: CpuMachine, operands: Operands) -> CpuJob:
    """The measuring job of a point; packed operands are saved in the folder of the originals."""
    step, lanes = point.step, machine.lanes

    def packed(name: str, path: Path) -> Path:
        if name not in step.packs:
            return path
        target = path.with_name(f"{step.name}-{path.name}")
        if not target.exists():
            np.save(target, step.packed(name, shape, np.load(path), lanes))
        return target

    files = {name: packed(name, path) for name, path in operands.files.items()}
    return CpuJob(
        step.kernel(shape, point.parameters, lanes),
        machine.isa,
        step.tasks(shape, point.parameters, lanes),
        machine.threads,
        tuple(step.operands(shape)),
        Operands(files, packed(RESULT, operands.expected), operands.tolerance),
    )


def measure(job: CpuJob) -> dict[str, Any]:
    """Checks and times a kernel; returns the measured part of a study's cell.

    Raises:
        WrongResultError: the result is wrong, or memory next to it was written.
    """
    pool = Pool(job.threads)
    try:
        run = checked(job, pool)
        return times(run, pool.threads)
    finally:
        pool.stop()


def checked(job: CpuJob, pool: Pool) -> Callable[[], None]:
    """Compiles a kernel and checks its result; returns a function that runs it again.  Raises
    WrongResultError as :func:`measure` does."""
    (kernel,) = compile_kernels([job.kernel], usable_isa(job.isa))
    expected = np.load(job.operands.expected)
    buffers = {
        name: filled(np.load(job.operands.files[name])) for name in job.names if name != RESULT
    }

    def bound(result: AlignedMemory) -> Callable[[], None]:
        slots = tuple(Operand(slot) for slot in range(len(job.names)))
        program = NativeProgram([BoundKernel(kernel, slots, job.tasks)], len(slots), pool=pool)
        by_name = {**buffers, RESULT: result}
        addresses = [by_name[name].address for name in job.names]

        def run() -> None:
            assert by_name  # the closure keeps the buffers alive
            program.run(addresses)

        return run

    guarded = AlignedMemory(expected.nbytes, Guard.END)
    bound(guarded)()
    result_array = guarded.array("f4", (expected.size,))
    if (wrong := first_wrong(result_array, expected, job.operands.tolerance)) is not None:
        raise WrongResultError(f"the result is wrong: {wrong}")
    if guarded.stray_write() is not None:
        raise WrongResultError("memory outside the result was written")
    return bound(AlignedMemory(expected.nbytes))


def filled(array: np.ndarray) -> AlignedMemory:
    """Aligned memory that holds a copy of an array, in float32."""
    buffer = AlignedMemory(array.nbytes)
    buffer.array("f4", array.shape)[:] = array
    return buffer


def times(run: Callable[[], object], threads: int) -> dict[str, Any]:
    """Times ``run``, which uses ``threads`` threads: median, confidence interval, and variability.

    Samples during which other processes held the cores are dropped.  If too few are left, the
    result is marked as disturbed and comes from the fastest eighth of all samples, as a disturbance
    makes no sample faster.
    """
    start = time.perf_counter()
    run()
    run()
    once = (time.perf_counter() - start) / 2
    count = max(1, round(_SAMPLE_SECONDS / once))

    def several() -> None:
        for _ in range(count):
            run()

    samples: list[tuple[float, bool]] = []
    end = time.perf_counter() + _BUDGET_SECONDS
    while len(samples) < 3 or (time.perf_counter() < end and _quiet(samples) < _SAMPLES):
        seconds, quiet = timed(several, threads)
        samples.append((seconds / count, quiet))
    enough = _quiet(samples) >= _LEAST_QUIET
    counted = [seconds for seconds, quiet in samples if quiet]
    if not enough:
        counted = sorted(seconds for seconds, _ in samples)[: max(2, len(samples) // 8)]
    return summarized(counted) | {"disturbed": not enough}


def _quiet(samples: list[tuple[float, bool]]) -> int:
    return sum(quiet for _, quiet in samples)


def ceilings(job: CeilingJob) -> list[dict[str, Any]]:
    """A row for each of the engine's algorithms for this convolution: name, time, workspace, and
    the error of its result; or why there is no time."""
    if not isinstance(job.shape, ConvolutionShape):
        return []
    isa, shape = best_isa(), job.shape
    operands = {name: np.load(path) for name, path in job.operands.files.items()}
    parts, tensors = _convolution(shape, operands["w"], isa)
    expected = result(shape, np.load(job.operands.expected), isa.lanes)
    x = operands["x"]
    if shape.channels > _FEW:
        x = image(shape, x, isa.lanes, border=0)
    rows = []
    for algorithm in (each for each in ALGORITHMS if "float32" in each.factors):
        row: dict[str, Any] = {
            "name": algorithm.name,
            "precision": "float32",
            "family": "plain" if algorithm.name.startswith("direct") else "other",
            "deterministic": True,
            "exact": algorithm.error <= 1.0,
        }
        rows.append(row | _measured(algorithm, parts, tensors, shape, isa, x, expected))
    return rows


def _convolution(shape: ConvolutionShape, w: np.ndarray, isa: Isa) -> tuple[Parts, list[Tensor]]:
    x = Value(TensorType(shape.image_shape), "x")
    weight = Constant(TensorType(shape.filter_shape), "w", w.reshape(shape.filter_shape))
    bias = Constant(TensorType((shape.filters,)), "b", np.zeros(shape.filters, np.float32))
    edge = (shape.padding, shape.padding)
    op = Conv2d((shape.stride,) * 2, (edge, edge), (shape.dilation,) * 2)
    node = Node(op, [x, weight, bias], "conv")
    source = PLANAR if shape.channels <= _FEW else blocked(isa.lanes)
    tensors = [tensor_of(x.type, source), tensor_of(node.output.type, blocked(isa.lanes))]
    return Parts(node), tensors


def _measured(
    algorithm: Algorithm,
    parts: Parts,
    tensors: list[Tensor],
    shape: ConvolutionShape,
    isa: Isa,
    x: np.ndarray,
    expected: np.ndarray,
) -> dict[str, Any]:
    source, target = tensors
    pool = shared_pool()
    question = question_of(parts, shape.batch, source, (), target, isa, pool.threads)
    if (reason := algorithm.why_not(question.problem, False, isa)) is not None:
        return {"why_not": reason}
    printed = print_contraction(
        parts, shape.batch, source, (), target, isa, pool.threads, algorithm=algorithm
    )
    buffers = [filled(x), AlignedMemory(expected.nbytes)]
    program = _bound(printed, buffers, isa)
    addresses = [buffer.address for buffer in buffers]
    program.run(addresses)
    y = buffers[1].array("f4", expected.shape)
    error = float(np.abs(y - expected).max() / np.abs(expected).max())
    timing = times(lambda: program.run(addresses), pool.threads)
    return {"workspace": printed.workspace_bytes, "error": error} | timing


def _bound(printed: PrintedContraction, buffers: list[AlignedMemory], isa: Isa) -> NativeProgram:
    """Compiles the stages of a contraction and binds them to slots.  Workspace and packed weights
    are appended to ``buffers``."""
    kernels = compile_kernels([stage.source for stage in printed.stages], isa)
    workspace = len(buffers)
    buffers.append(AlignedMemory(printed.workspace_bytes))
    regions = []
    for stage, kernel in zip(printed.stages, kernels, strict=True):
        operands = []
        for pointer in stage.pointers:
            if isinstance(pointer, int):
                operands.append(Operand(pointer))
            elif isinstance(pointer, Workspace):
                operands.append(Operand(workspace, pointer.offset))
            else:
                operands.append(Operand(len(buffers)))
                buffers.append(filled(pointer()))
        regions.append(BoundKernel(kernel, tuple(operands), stage.tasks, stage.grain))
    scratch = max(stage.scratch_bytes for stage in printed.stages)
    return NativeProgram(regions, len(buffers), scratch)
