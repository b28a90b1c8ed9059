"""Contractions as cuDNN graphs: a convolution or a matrix product with the first stages fused.

Of integers cuDNN 9.19 multiplies int8 alone, in NHWC, and its sums begin with 0.  The engines that
it compiles at run time fuse point-wise operations.  They contract a product and the sum that reads
it into one fma (seen on an H100), and where they write int8 they round to nearest, ties to even,
and saturate.  So in the epilogue of an int8 contraction each product must be part of an fma, or
have nothing added to it, and the end must be rounding: then the bits are those of our kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....cudnn.graph import Constraints, Graph
from ....cudnn.graph.spec import ALIGNMENT, TensorSpec
from ....cudnn.graph.tensor import Tensor as GraphTensor
from ....graph.expression import Instruction
from ..pointwise import Argument
from .problem import IMAGE_GRADIENT, ContractionProblem, EpilogueStep, spec_of

CONVOLUTION, PRODUCT = "convolution", "product"


def constraints_of(problem: ContractionProblem, workspace_limit: int) -> Constraints:
    """What engines have to keep to: the same bits on every run, if that is asked for, the precision
    of products, and the workspace limit."""
    return Constraints(
        tf32=problem.tf32,
        deterministic=problem.deterministic,
        accuracy=problem.accuracy,
        workspace_limit=workspace_limit,
    )


def graph_of(problem: ContractionProblem, core: str, stages: int, output: TensorSpec) -> Graph:
    """The contraction with its first ``stages`` stages fused; ``output`` is its result's layout.

    The inputs are image, filter, then the operands of the stages, in order; those of a gradient are
    the result's gradient, then the filter or the image.
    """
    graph = Graph()
    if problem.direction != "forward":
        (_add_product if core == PRODUCT else _add_gradient)(graph, problem)
        return graph
    spec = _View(problem, core == PRODUCT)
    x = _declare(graph, spec.image(problem.input), "x")
    w = _declare(graph, spec.filter(), "w")
    others = [spec_of(t, problem.batch) for t in problem.others]
    if core == PRODUCT:
        value = graph.matmul(x, w)
    else:
        value = graph.convolution(
            x,
            w,
            padding=problem.padding,
            stride=problem.stride,
            dilation=problem.dilation,
        )
    if problem.is_integer:
        assert stages == len(problem.stages)
        value, stages = _add_stages(graph, problem, value), 0
    for number, stage in enumerate(problem.stages[:stages]):
        value = _fused(graph, value, stage, spec, others, number)
    final = spec.image(output)
    graph.output(value, final.dtype, strides=final.strides, alignment=final.alignment)
    return graph


def _add_gradient(graph: Graph, problem: ContractionProblem) -> None:
    """Adds a gradient of the convolution for its image or its filter."""
    y = _declare(graph, problem.output, "y")
    geometry: dict[str, Any] = {
        "padding": problem.padding,
        "stride": problem.stride,
        "dilation": problem.dilation,
    }
    if problem.direction == IMAGE_GRADIENT:
        final = problem.input
        w = _declare(graph, problem.w, "w")
        value = graph.convolution_backward_data(y, w, final.shape, **geometry)
    else:
        final = problem.w
        x = _declare(graph, problem.input, "x")
        value = graph.convolution_backward_filter(y, x, final.shape, **geometry)
    graph.output(value, final.dtype, strides=final.strides, alignment=final.alignment)


def _add_product(graph: Graph, problem: ContractionProblem) -> None:
    """Adds a gradient of a 1x1 convolution as a matrix product: dy w, or the transposed dy times x,
    whose sum over all pixels cuDNN splits among blocks as it sees fit."""
    view = _View(problem, True)
    y = view.image(problem.output)
    if problem.direction == IMAGE_GRADIENT:
        final, other, name = view.image(problem.input), view.transposed(view.filter()), "w"
    else:
        final, other, name = view.transposed(view.filter()), view.image(problem.input), "x"
        y = view.transposed(y)
    value = graph.matmul(_declare(graph, y, "y"), _declare(graph, other, name))
    graph.output(value, final.dtype, strides=final.strides, alignment=final.alignment)


def _fused(
    graph: Graph,
    value: GraphTensor,
    stage: EpilogueStep,
    view: _View,
    others: Sequence[TensorSpec],
    number: int,
) -> GraphTensor:
    """Adds stage ``number`` of the epilogue, with the tensor that it reads."""
    if stage.mode == "bias":
        return graph.add(value, _declare(graph, view.vector(), f"bias{number}"))
    if stage.mode == "add":
        other = view.image(others[stage.index])
        return graph.add(value, _declare(graph, other, f"other{number}"))
    return graph.pointwise(stage.mode, value, **dict(stage.parameters))


def _declare(graph: Graph, spec: TensorSpec, name: str) -> GraphTensor:
    return graph.tensor(
        spec.shape, spec.dtype, strides=spec.strides, alignment=spec.alignment, name=name
    )


class _View:
    """Tensors of a problem as they are, or viewed as matrices: pixels by channels."""

    def __init__(self, problem: ContractionProblem, flat: bool) -> None:
        self.problem = problem
        self.flat = flat

    def image(self, spec: TensorSpec) -> TensorSpec:
        """An image, or the matrix (1, pixels, channels)."""
        if not self.flat:
            return spec
        batch, channels, rows, columns = spec.shape
        step = spec.strides[3] if rows * columns > 1 else spec.strides[0]
        pixels = batch * rows * columns
        return self._matrix(spec, (1, pixels, channels), (pixels * step, step, 1))

    def filter(self) -> TensorSpec:
        """The filter, or the matrix (1, channels, filters)."""
        w = self.problem.w
        if not self.flat:
            return w
        out, channels = w.shape[:2]
        return self._matrix(w, (1, channels, out), (channels * out, 1, channels))

    def transposed(self, matrix: TensorSpec) -> TensorSpec:
        _, rows, columns = matrix.shape
        steps = (matrix.strides[0], matrix.strides[2], matrix.strides[1])
        return self._matrix(matrix, (1, columns, rows), steps)

    def vector(self) -> TensorSpec:
        """A vector over the filters, in a shape that is broadcast to results."""
        w = self.problem.w
        channels = w.shape[0]
        if self.flat:
            return self._matrix(w, (1, 1, channels), (channels, channels, 1))
        strides = (channels, 1, channels, channels)
        if self.problem.planar:
            strides = (channels, 1, 1, 1)
        return TensorSpec((1, channels, 1, 1), strides, w.dtype)

    def _matrix(self, spec: TensorSpec, shape: Any, strides: Any) -> TensorSpec:
        return TensorSpec(shape, strides, spec.dtype, spec.alignment)


def can_be_product(problem: ContractionProblem) -> bool:
    """Whether the problem is a matrix product of tensors whose pixels have one stride."""
    if not problem.is_pointwise or problem.planar or problem.is_exact:
        return False
    others = (spec_of(t, problem.batch) for t in problem.others)
    return all(
        spec.shape[2] * spec.shape[3] == 1
        or (
            spec.strides[2] == spec.shape[3] * spec.strides[3]
            and spec.strides[0] == spec.shape[2] * spec.strides[2]
        )
        for spec in (problem.input, problem.output, *others)
    )


def fusable_stages(problem: ContractionProblem) -> int:
    """How many of the first stages cuDNN has point-wise modes for."""
    for count, stage in enumerate(problem.stages):
        if not stage.mode:
            return count
    return len(problem.stages)


_BY_CUDNN = {"add": "add", "sub": "sub", "mul": "mul", "minimum": "min", "maximum": "max"}
_SUMS = ("add", "sub")


def why_no_engine(problem: ContractionProblem) -> str | None:
    """Why cuDNN is not asked for a contraction of integers; None if it is."""
    if problem.x.dtype != "int8" or problem.y.dtype not in ("int8", "float32"):
        return f"it makes {problem.y.dtype} of {problem.x.dtype}"
    if problem.shifted:
        return "its sums do not begin with 0, or it reads more than zeros outside of its image"
    if problem.groups != 1 or problem.gathered.channels % ALIGNMENT:
        return "its groups or channels are not aligned to vectors"
    if problem.y.channels * problem.y.itemsize % ALIGNMENT or problem.others:
        return "its results are not aligned to vectors, or it reads a residual"
    if not problem.stages:
        return "no epilogue converts its sums to floats"
    for number, stage in enumerate(problem.stages, 1):
        last = number == len(problem.stages) and problem.y.dtype == "int8"
        if (reason := why_not_fused(stage.step.code, last)) is not None:
            return reason
    return None


def why_not_fused(code: Sequence[Instruction], rounds: bool) -> str | None:
    """Why cuDNN cannot fuse straight-line code; ``rounds``: whether it has to end by rounding."""
    body, end = _without_rounding(code)
    if rounds != end:
        return "it does not round where its result is int8"
    for line in body:
        if line.op not in ("argument", "constant", "fma", *_BY_CUDNN):
            return f"cuDNN has no {line.op!r}"
        if line.op in _SUMS and any(body[i].op == "mul" for i in line.operands):
            return "it adds to a product, which cuDNN would not round"
    return None


def _without_rounding(code: Sequence[Instruction]) -> tuple[Sequence[Instruction], bool]:
    """Code without the rounding to integers and the addition of 0 in the end, if it has these."""
    if code[-1].op != "add":
        return code, False
    rounding, zero = (code[i] for i in code[-1].operands)
    if rounding.op == "round" and zero.op == "constant" and zero.value == 0.0:
        return code[: rounding.operands[0] + 1], True
    return code, False


def operands_of(problem: ContractionProblem) -> list[Argument]:
    """The vectors and scalars that stages read, in the order in which a graph declares them."""
    arguments = (a for stage in problem.stages for a in stage.step.arguments)
    return list(dict.fromkeys(a for a in arguments if a.kind != "chain"))


def _add_stages(graph: Graph, problem: ContractionProblem, sums: GraphTensor) -> GraphTensor:
    """Adds all stages on int32 sums, and declares the operands that they read."""
    channels = problem.w.shape[0]
    operands: dict[Argument, GraphTensor] = {}
    for a in operands_of(problem):
        size = channels if a.kind == "vector" else 1
        spec = TensorSpec((1, size, 1, 1), (size, 1, size, size), "float32")
        name = f"{a.kind}{a.index}"
        operands[a] = graph.tensor(spec.shape, spec.dtype, strides=spec.strides, name=name)
    value = sums
    for stage in problem.stages:
        body, _ = _without_rounding(stage.step.code)
        values: list[GraphTensor | float] = []
        for line in body:
            if line.op == "argument":
                a = stage.step.arguments[int(line.value or 0)]
                values.append(value if a.kind == "chain" else operands[a])
            elif line.op == "constant":
                values.append(float(line.value or 0))
            else:
                inputs = [values[i] for i in line.operands]
                if line.op == "fma":
                    product = graph.pointwise_in("float32", "mul", *inputs[:2])
                    values.append(graph.pointwise_in("float32", "add", product, inputs[2]))
                else:
                    values.append(graph.pointwise_in("float32", _BY_CUDNN[line.op], *inputs))
        last = values[-1]
        assert isinstance(last, GraphTensor)
        value = last
    return value
