"""A step on a CPU: compiled, checked and timed; and what the engine needs for the same."""

from __future__ import annotations

import statistics
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
from ...fusion.contraction import Parts
from ...graph.ir import Constant, Node, Value
from ...graph.layout import PLANAR, blocked
from ...graph.operators import Conv2d
from ...graph.types import TensorType
from ...measure import median, timed
from ..ceilings import CeilingJob
from ..operands import RESULT, ConvolutionShape, Operands, WrongResultError, first_wrong
from ..step import Point
from .ladders import image, result
from .machine import CpuMachine

_SAMPLES, _LEAST_QUIET = 30, 8
_SAMPLE_SECONDS = 3e-4
"""Short, so that others seldom strike one."""
_BUDGET_SECONDS = 2.0
_FEW = 4
"""Images of so few channels are read as they lie."""


@dataclass(frozen=True)
class CpuJob:
    """A kernel to be measured: plain data, whatever a step is made of.

    Attributes:
        kernel: its text.
        isa: what it is compiled for.
        tasks: how many there are.
        threads: that share them.
        names: of its operands, in their order.
        operands: as they lie, and what should come of them.
    """

    kernel: KernelSource
    isa: str
    tasks: int
    threads: int
    names: tuple[str, ...]
    operands: Operands


def job(point: Point, shape: Any, machine: CpuMachine, operands: Operands) -> CpuJob:
    """What is to be measured of a point; its packed operands lie beside those that they are of."""
    step, lanes = point.step, machine.lanes

    def packed(name: str, path: Path) -> Path:
        if name not in step.packs:
            return path
        kept = path.with_name(f"{step.name}-{path.name}")
        if not kept.exists():
            np.save(kept, step.packed(name, shape, np.load(path), lanes))
        return kept

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
    """What is measured of a kernel, as a part of a cell of a study.

    Raises:
        WrongResultError: the result is wrong, or something beside it was written.
    """
    pool = Pool(job.threads)
    try:
        run = checked(job, pool)
        return times(run, pool.threads)
    finally:
        pool.stop()


def checked(job: CpuJob, pool: Pool) -> Callable[[], None]:
    """What runs a kernel, whose result is right; WrongResultError if it is not."""
    (kernel,) = compile_kernels([job.kernel], usable_isa(job.isa))
    expected = np.load(job.operands.expected)
    buffers = {
        name: filled(np.load(job.operands.files[name])) for name in job.names if name != RESULT
    }

    def bound(result: AlignedMemory) -> Callable[[], None]:
        places = tuple(Operand(slot) for slot in range(len(job.names)))
        program = NativeProgram([BoundKernel(kernel, places, job.tasks)], len(places), pool=pool)
        given = {**buffers, RESULT: result}
        addresses = [given[name].address for name in job.names]

        def run() -> None:
            assert given  # the buffers stay as long as this function does
            program.run(addresses)

        return run

    guarded = AlignedMemory(expected.nbytes, Guard.END)
    bound(guarded)()
    found = guarded.array("f4", (expected.size,))
    if (wrong := first_wrong(found, expected, job.operands.tolerance)) is not None:
        raise WrongResultError(f"the result is wrong: {wrong}")
    if guarded.stray_write() is not None:
        raise WrongResultError("memory beside the result was written")
    return bound(AlignedMemory(expected.nbytes))


def filled(array: np.ndarray) -> AlignedMemory:
    """Memory with these numbers."""
    buffer = AlignedMemory(array.nbytes)
    buffer.array("f4", array.shape)[:] = array
    return buffer


def times(run: Callable[[], object], threads: int) -> dict[str, Any]:
    """The times of ``run`` on so many threads: their median with an interval, how they vary, and
    whether they were disturbed: where others held the cores most of the time, the fastest
    eighth of all counts, since they make none faster."""
    start = time.perf_counter()
    run()
    run()
    once = (time.perf_counter() - start) / 2
    count = max(1, round(_SAMPLE_SECONDS / once))

    def several() -> None:
        for _ in range(count):
            run()

    taken: list[tuple[float, bool]] = []
    end = time.perf_counter() + _BUDGET_SECONDS
    while len(taken) < 3 or (time.perf_counter() < end and _quiet(taken) < _SAMPLES):
        seconds, quiet = timed(several, threads)
        taken.append((seconds / count, quiet))
    enough = _quiet(taken) >= _LEAST_QUIET
    used = [seconds for seconds, quiet in taken if quiet]
    if not enough:
        used = sorted(seconds for seconds, _ in taken)[: max(2, len(taken) // 8)]
    found = median(used)
    return {
        "measured_seconds": found.value,
        "measured_interval": [found.low, found.high],
        "variability": statistics.stdev(used) / statistics.fmean(used),
        "samples": len(used),
        "disturbed": not enough,
    }


def _quiet(taken: list[tuple[float, bool]]) -> int:
    return sum(quiet for _, quiet in taken)


def ceilings(job: CeilingJob) -> list[dict[str, Any]]:
    """Each way in which the engine computes this: name, time, workspace, and how far its result is
    off; or why there is no time."""
    if not isinstance(job.shape, ConvolutionShape):
        return []
    isa, shape = best_isa(), job.shape
    given = {name: np.load(path) for name, path in job.operands.files.items()}
    parts, tensors = _convolution(shape, given["w"], isa)
    expected = result(shape, np.load(job.operands.expected), isa.lanes)
    x = given["x"]
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
    x = Value(TensorType((shape.batch, shape.channels, shape.height, shape.width)), "x")
    filters = (shape.filters, shape.channels, shape.window_height, shape.window_width)
    weight = Constant(TensorType(filters), "w", w.reshape(filters))
    bias = Constant(TensorType(filters[:1]), "b", np.zeros(shape.filters, np.float32))
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
    found = buffers[1].array("f4", expected.shape)
    error = float(np.abs(found - expected).max() / np.abs(expected).max())
    told = times(lambda: program.run(addresses), pool.threads)
    return {"workspace": printed.workspace_bytes, "error": error} | told


def _bound(printed: PrintedContraction, buffers: list[AlignedMemory], isa: Isa) -> NativeProgram:
    """The stages of a contraction; workspace and packed weights are added to the buffers."""
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
