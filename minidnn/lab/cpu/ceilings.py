"""What the engine needs for a convolution on a CPU: each of its algorithms."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...backends.cpu.compilers.kernels import compile_kernels
from ...backends.cpu.contraction import print_contraction
from ...backends.cpu.contraction.algorithm import Algorithm
from ...backends.cpu.contraction.algorithms import ALGORITHMS, question_of
from ...backends.cpu.execution.buffers import AlignedMemory
from ...backends.cpu.execution.program import BoundKernel, NativeProgram, Operand, shared_pool
from ...backends.cpu.isa import Isa, best_isa
from ...backends.cpu.stage import PrintedContraction, Workspace
from ...backends.cpu.tensor import Tensor, tensor_of
from ...fusion.contraction import Parts
from ...graph.ir import Constant, Node, Value
from ...graph.layout import PLANAR, blocked
from ...graph.operators import Conv2d
from ...graph.types import TensorType
from ..ceilings import CeilingJob
from ..convolution.shape import ConvolutionShape
from ..convolution_cpu.packs import image, result
from .measure import filled, times

_FEW = 4
"""Images of so few channels are read as they lie."""


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
