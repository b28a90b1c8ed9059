"""Ceilings: how fast existing implementations compute a shape on a GPU.

They are cuDNN's algorithms in each precision, cuBLAS's product, and the engine's own contraction
kernels.  A study lists them beside the steps of a ladder.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any

import numpy as np

from ..backends.cuda.contraction.config import (
    AlgorithmConfig,
    CudaAlgorithm,
    build,
    workspace_bytes,
)
from ..backends.cuda.contraction.kernel import ContractionKernel
from ..backends.cuda.contraction.kernel_registry import KERNELS, load_contraction
from ..backends.cuda.contraction.problem import Addresses, ContractionProblem, contraction_of
from ..backends.cuda.functions import LaunchLoader, Run
from ..backends.cuda.machine import Machine, machine_of
from ..backends.cuda.tensor import tensor_of
from ..cudnn import convolution
from ..cudnn.convolution.choose import ADDS_IN_ANY_ORDER
from ..cudnn.convolution.key import Operation
from ..cudnn.enums import (
    ConvolutionBwdDataAlgo,
    ConvolutionBwdFilterAlgo,
    ConvolutionFwdAlgo,
    MathType,
    is_coarse_winograd,
)
from ..cudnn.gpu_lock import gpu_lock
from ..cudnn.graph.timing import Contestant, race
from ..errors import MiniDNNError
from ..gpu import cupy
from ..graph.ir import Node, Value
from ..graph.layout import CHANNELS_LAST, PLANAR, Layout
from ..graph.operators import Conv2d
from ..graph.types import TensorType
from .cuda.gradients import InputGradientShape, WeightGradientShape
from .measure import arrays, times
from .operands import RESULT, ConvolutionShape, Operands, ProductShape, WrongResultError

_LAYOUTS = {"float32": PLANAR, "float16": CHANNELS_LAST}
"""The layout of images for each precision of the engine's kernels."""
OF_ENGINE = "engine"


def engine_kernels(shape: ConvolutionShape, operands: Operands) -> list[dict[str, Any]]:
    """Rows for the engine's kernels, each with its fastest configuration: name, precision, time,
    workspace, and the error of its result; or why there is no time."""
    machine = machine_of(cupy().cuda.runtime.getDevice())
    load = LaunchLoader(machine.arch)
    rows = []
    for precision, layout in _LAYOUTS.items():
        problem = problem_of(shape, precision, layout)
        for kernel in KERNELS.values():
            if "forward" not in kernel.directions:
                continue
            row: dict[str, Any] = {
                "name": f"engine's {kernel.name}",
                "precision": precision,
                "family": OF_ENGINE,
                "deterministic": True,
                "exact": precision == "float32" and "high" in kernel.accuracies,
            }
            if (reason := kernel.refusal(problem, machine)) is not None:
                rows.append(row | {"why_not": reason})
            else:
                rows.append(row | _measured(kernel, problem, shape, operands, machine, load))
    return rows


def problem_of(shape: ConvolutionShape, precision: str, layout: Layout) -> ContractionProblem:
    """The engine's description of this convolution, without fused operators."""
    x = Value(TensorType(shape.image_shape, precision), "x")
    w = Value(TensorType(shape.filter_shape, precision), "w")
    edge = (shape.padding, shape.padding)
    op = Conv2d((shape.stride,) * 2, (edge, edge), (shape.dilation,) * 2)
    node = Node(op, [x, w], "conv")
    is_planar = layout is PLANAR
    contraction = contraction_of(
        node,
        lambda value: tensor_of(value.type, layout),
        lambda _: is_planar,
        False,
        "normal",
        True,
    )
    return contraction.problem


def _measured(
    kernel: ContractionKernel,
    problem: ContractionProblem,
    shape: ConvolutionShape,
    operands: Operands,
    machine: Machine,
    load: LaunchLoader,
) -> dict[str, Any]:
    """Races the kernel's configurations, and times the fastest by itself."""
    form = CudaAlgorithm(kernel.name, 0)
    executables = []
    for choice in kernel.choices(problem, machine):
        core = load_contraction(problem, kernel, choice, machine, load)
        config = AlgorithmConfig(form, choice, (), workspace_bytes(problem, form, core.workspace))
        executables.append(build(problem, config, core, machine, load))
    if not executables:
        return {"why_not": "it has no shape of tiles for these sizes"}
    operand_arrays, expected = arrays(operands)
    x, w = _laid_out(problem, shape, operand_arrays)
    y = cupy().full(expected.size, float("nan"), problem.y.dtype)
    workspace = cupy().empty(max(one.workspace for one in executables), "uint8")
    addresses = Addresses(x.data.ptr, w.data.ptr, y.data.ptr)
    runs: list[Run] = [one.bind(addresses, workspace.data.ptr) for one in executables]
    with gpu_lock(cupy().cuda.runtime.getDevice()):
        raced = race([Contestant(run) for run in runs])
        timed = {index: ms for index, ms in enumerate(raced) if ms is not None}
        if not timed:
            return {"why_not": "it cannot run"}
        fastest = min(timed, key=lambda index: timed[index])
        y.fill(float("nan"))
        runs[fastest]()
        cupy().cuda.Device().synchronize()
        row = {
            "choice": kernel.describe(executables[fastest].config.engine),
            "workspace": executables[fastest].workspace,
            "error": _engine_error(problem, shape, y, expected),
        }
        return row | times(runs[fastest])


def _engine_error(
    problem: ContractionProblem, shape: ConvolutionShape, y: Any, expected: Any
) -> float:
    """The largest difference, relative to the largest element."""
    if not problem.planar:
        plane = shape.out_height * shape.out_width
        y = y.reshape(shape.batch, plane, shape.filters).transpose(0, 2, 1)
    return float(abs(y.ravel() - expected.ravel()).max() / abs(expected).max())


def _laid_out(
    problem: ContractionProblem, shape: ConvolutionShape, given: Mapping[str, Any]
) -> Any:
    """The image and the filters in the layout and the dtype of the problem."""
    dtype = problem.x.dtype
    x = given["x"].astype(dtype).reshape(shape.image_shape)
    w = cupy().asnumpy(given["w"]).astype(dtype).reshape(shape.filter_shape)
    if problem.planar:
        return x, cupy().asarray(w)
    x = cupy().ascontiguousarray(x.transpose(0, 2, 3, 1))
    gather = problem.gather
    packed = w.transpose(0, 2, 3, 1) if gather is None else gather.filter(w, dtype)
    return x, cupy().asarray(np.ascontiguousarray(packed))


@dataclass(frozen=True)
class _Algorithms:
    """cuDNN's algorithms for one direction of a convolution, and its operands' names.

    Attributes:
        operation: the name of the direction in cuDNN's binding.
        kinds: the enumeration of its algorithms.
        places: the ladder's names of the image, the filters, and the convolution's result.
        given: names of the two operands that are read, in the binding's order.
    """

    operation: Operation
    kinds: type[IntEnum]
    places: tuple[str, str, str]
    given: tuple[str, str]


_ALGORITHMS: dict[type, _Algorithms] = {
    ConvolutionShape: _Algorithms("forward", ConvolutionFwdAlgo, ("x", "w", "y"), ("x", "w")),
    InputGradientShape: _Algorithms(
        "backward_data", ConvolutionBwdDataAlgo, ("y", "w", "g"), ("w", "g")
    ),
    WeightGradientShape: _Algorithms(
        "backward_filter", ConvolutionBwdFilterAlgo, ("x", "y", "g"), ("x", "g")
    ),
}
_PREFIX = re.compile(r"CUDNN_CONVOLUTION_(FWD_ALGO_|BWD_(DATA|FILTER)_)")
_MATHS = {
    "float32": MathType.CUDNN_FMA_MATH,
    "TF32": MathType.CUDNN_TENSOR_OP_MATH,
    "float16": MathType.CUDNN_TENSOR_OP_MATH,
}
_PLAIN = ("IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM", "DIRECT", "ALGO_0", "ALGO_1", "ALGO_3")
_WORKSPACE_LIMIT = 4 << 30


@dataclass(frozen=True)
class CeilingJob:
    """A shape and its operands, as the measuring process receives them."""

    shape: Any
    operands: Operands


def ceilings(job: CeilingJob) -> list[dict[str, Any]]:
    """A row for each implementation of this shape in a library or in the engine: name, precision,
    time, workspace, whether its result is deterministic, and its error; or why there is no time."""
    if (algorithms := _ALGORITHMS.get(type(job.shape))) is not None:
        rows = _convolutions(job.shape, job.operands, algorithms)
        if algorithms.operation == "forward":
            rows += engine_kernels(job.shape, job.operands)
        return rows
    if isinstance(job.shape, ProductShape):
        return [_product(job.shape, job.operands, name) for name in ("float32", "float16")]
    return []


def _convolutions(
    shape: ConvolutionShape, operands: Operands, algorithms: _Algorithms
) -> list[dict[str, Any]]:
    originals, expected = arrays(operands)
    shapes = (shape.image_shape, shape.filter_shape, shape.result_shape)
    rows = []
    for precision, math in _MATHS.items():
        type = "float16" if precision == "float16" else "float32"
        held = {name: originals[name].astype(type) for name in algorithms.given}
        held[RESULT] = cupy().empty(expected.size, type)
        sizes = dict(zip(algorithms.places, shapes, strict=True))
        held = {name: array.reshape(sizes[name]) for name, array in held.items()}
        x, w, y = (held[name] for name in algorithms.places)
        for kind in algorithms.kinds:
            name = _PREFIX.sub("", kind.name)
            row: dict[str, Any] = {
                "name": name,
                "precision": precision,
                "family": "plain" if name in _PLAIN else "other",
                "deterministic": kind.name not in ADDS_IN_ANY_ORDER,
                "exact": precision == "float32" and not is_coarse_winograd(name, w.shape[2:]),
            }
            try:
                plan = convolution.plan(
                    algorithms.operation,
                    *(x, w, y),
                    padding=shape.padding,
                    stride=shape.stride,
                    dilation=shape.dilation,
                    algorithm=int(kind),
                    math=math,
                    workspace_limit=_WORKSPACE_LIMIT,
                )
                row["workspace"] = plan.choice.workspace
                addresses = [held[name].data.ptr for name in (*algorithms.given, RESULT)]
                with gpu_lock(cupy().cuda.runtime.getDevice()):
                    plan.run(*addresses)
                    row["error"] = _error(held[RESULT], expected.reshape(sizes[RESULT]))
                    row |= times(partial(plan.run, *addresses))
            except (MiniDNNError, WrongResultError) as error:
                row["why_not"] = str(error).partition("\n")[0]
            rows.append(row)
    return rows


def _product(shape: ProductShape, operands: Operands, precision: str) -> dict[str, Any]:
    originals, expected = arrays(operands)
    a = originals["a"].reshape(shape.rows, -1).astype(precision)
    b = originals["b"].reshape(-1, shape.columns).astype(precision)
    y = cupy().empty(expected.shape, precision)

    def run() -> None:
        cupy().matmul(a, b, out=y)

    def repeat(count: int) -> Callable[[], None]:
        """CuPy refuses to capture cuBLAS."""

        def runs() -> None:
            for _ in range(count):
                run()

        return runs

    row = {"name": "cuBLAS", "precision": precision, "family": "plain"}
    exact = {"exact": precision == "float32", "deterministic": True}
    with gpu_lock(cupy().cuda.runtime.getDevice()):
        run()
        return row | exact | {"error": _error(y, expected)} | times(run, repeat)


def _error(found: Any, expected: Any) -> float:
    """The largest difference, relative to the largest element."""
    return float(abs(found - expected).max() / abs(expected).max())


def fastest(
    rows: list[dict[str, Any]], plain: bool = False, precision: str = "float32"
) -> dict[str, Any] | None:
    """The row of the library's fastest exact implementation, or of its fastest in float16; only of
    direct convolutions and implicit GEMMs if ``plain``; None if there is none."""
    is_half = precision == "float16"
    library = [row for row in rows if row["family"] != OF_ENGINE]
    fitting = [
        row for row in library if (row["precision"] == precision if is_half else row["exact"])
    ]
    timed = [row for row in fitting if "measured_seconds" in row]
    chosen = [row for row in timed if not plain or row["family"] == "plain"]
    return min(chosen, key=lambda row: row["measured_seconds"], default=None)


def fastest_of_engine(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The row of the engine's fastest kernel in float32; None if there is none."""
    engine = [row for row in rows if row["family"] == OF_ENGINE and row["precision"] == "float32"]
    timed = [row for row in engine if "measured_seconds" in row]
    return min(timed, key=lambda row: row["measured_seconds"], default=None)
