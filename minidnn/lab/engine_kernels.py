"""What the engine's own kernels need for a convolution on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..backends.cuda.contraction.kernel import ContractionKernel
from ..backends.cuda.contraction.kernel_registry import KERNELS, load_contraction
from ..backends.cuda.contraction.problem import Addresses, ContractionProblem, contraction_of
from ..backends.cuda.contraction.recipe import Form, Recipe, build, room
from ..backends.cuda.functions import LaunchLoader, Run
from ..backends.cuda.machine import Machine, machine_of
from ..backends.cuda.tensor import tensor_of
from ..cudnn.gpu_turn import turn
from ..cudnn.graph.timing import Contestant, race
from ..gpu.cupy import cupy
from ..graph.ir import Node, Value
from ..graph.layout import CHANNELS_LAST, PLANAR, Layout
from ..graph.operators import Conv2d
from ..graph.types import TensorType
from .convolution.shape import ConvolutionShape
from .measure import arrays, times
from .operands import Operands

_LAYOUTS = {"float32": PLANAR, "float16": CHANNELS_LAST}
"""In which kernels of a precision read images."""
OF_ENGINE = "engine"


def engine_kernels(shape: ConvolutionShape, operands: Operands) -> list[dict[str, Any]]:
    """Each kernel of the engine with its fastest choice: name, precision, time, workspace, and how
    far its result is off; or why there is no time."""
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
    """The convolution alone, as the engine would be asked for it."""
    images = (shape.batch, shape.channels, shape.height, shape.width)
    filters = (shape.filters, shape.channels, shape.window_height, shape.window_width)
    x, w = (
        Value(TensorType(sizes, precision), name) for sizes, name in ((images, "x"), (filters, "w"))
    )
    edge = (shape.padding, shape.padding)
    op = Conv2d((shape.stride,) * 2, (edge, edge), (shape.dilation,) * 2)
    node = Node(op, [x, w], "conv")
    is_planar = layout is PLANAR
    found = contraction_of(
        node,
        lambda value: tensor_of(value.type, layout),
        lambda _: is_planar,
        False,
        "normal",
        True,
    )
    return found.problem


def _measured(
    kernel: ContractionKernel,
    problem: ContractionProblem,
    shape: ConvolutionShape,
    operands: Operands,
    machine: Machine,
    load: LaunchLoader,
) -> dict[str, Any]:
    """The kernel's choices race, and the fastest is timed by itself."""
    form = Form(kernel.name, 0)
    built = []
    for choice in kernel.choices(problem, machine):
        core = load_contraction(problem, kernel, choice, machine, load)
        recipe = Recipe(form, choice, (), room(problem, form, core.workspace))
        built.append(build(problem, recipe, core, machine, load))
    if not built:
        return {"why_not": "it has no shape of tiles for these sizes"}
    given, expected = arrays(operands)
    x, w = _laid(problem, shape, given)
    y = cupy().full(expected.size, float("nan"), problem.y.dtype)
    workspace = cupy().empty(max(one.workspace for one in built), "uint8")
    at = Addresses(x.data.ptr, w.data.ptr, y.data.ptr)
    runs: list[Run] = [one.bind(at, workspace.data.ptr) for one in built]
    with turn(cupy().cuda.runtime.getDevice()):
        raced = race([Contestant(run) for run in runs])
        timed = {place: ms for place, ms in enumerate(raced) if ms is not None}
        if not timed:
            return {"why_not": "it cannot run"}
        fastest = min(timed, key=lambda place: timed[place])
        y.fill(float("nan"))
        runs[fastest]()
        cupy().cuda.Device().synchronize()
        told = {
            "choice": kernel.describe(built[fastest].recipe.engine),
            "workspace": built[fastest].workspace,
            "error": _error(problem, shape, y, expected),
        }
        return told | times(runs[fastest])


def _error(problem: ContractionProblem, shape: ConvolutionShape, y: Any, expected: Any) -> float:
    """The largest difference, beside the largest element."""
    if not problem.planar:
        plane = shape.out_height * shape.out_width
        y = y.reshape(shape.batch, plane, shape.filters).transpose(0, 2, 1)
    return float(abs(y.ravel() - expected.ravel()).max() / abs(expected).max())


def _laid(problem: ContractionProblem, shape: ConvolutionShape, given: Mapping[str, Any]) -> Any:
    """Image and filters as the problem has them."""
    dtype = problem.x.dtype
    x = given["x"].astype(dtype).reshape(shape.batch, shape.channels, shape.height, shape.width)
    window = (shape.window_height, shape.window_width)
    w = cupy().asnumpy(given["w"]).astype(dtype).reshape(shape.filters, shape.channels, *window)
    if problem.planar:
        return x, cupy().asarray(w)
    x = cupy().ascontiguousarray(x.transpose(0, 2, 3, 1))
    gather = problem.gather
    packed = w.transpose(0, 2, 3, 1) if gather is None else gather.filter(w, dtype)
    return x, cupy().asarray(np.ascontiguousarray(packed))
