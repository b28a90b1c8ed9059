"""Contractions of int8 as cuDNN graphs: what follows them fused, in float32.

cuDNN 9.19 multiplies int8 alone, in NHWC, and begins sums with 0.  Its engines that compile fuse
point-wise operations.  They make one fused operation of a product and the sum behind it (seen on an
H100), round to nearest, ties to even, where they write int8, and saturate.  So what follows sums
must have its products in fused operations, or with nothing added to them, and must round in the
end: then bits are those of our kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....cudnn.graph import Graph
from ....cudnn.graph.spec import ALIGNMENT, TensorSpec
from ....cudnn.graph.tensor import Tensor as GraphTensor
from ....graph.expression import Instruction
from ..pointwise import Argument
from .problem import ContractionProblem

_BY_CUDNN = {"add": "add", "sub": "sub", "mul": "mul", "minimum": "min", "maximum": "max"}
_SUMS = ("add", "sub")


def why_no_engine(problem: ContractionProblem) -> str | None:
    """Why cuDNN is not asked for a contraction of bytes; None if it is."""
    if problem.x.dtype != "int8" or problem.y.dtype not in ("int8", "float32"):
        return f"it makes {problem.y.dtype} of {problem.x.dtype}"
    if problem.shifted:
        return "its sums do not begin with 0, or it reads more than zeros outside of its image"
    if problem.groups != 1 or problem.gathered.channels % ALIGNMENT:
        return "its groups or channels are no whole accesses"
    if problem.y.channels * problem.y.itemsize % ALIGNMENT or problem.others:
        return "its results are no whole accesses, or it reads others beside"
    if not problem.stages:
        return "nothing makes floats of its sums"
    for number, stage in enumerate(problem.stages, 1):
        last = number == len(problem.stages) and problem.y.dtype == "int8"
        if (reason := why_not_fused(stage.step.code, last)) is not None:
            return reason
    return None


def why_not_fused(code: Sequence[Instruction], rounds: bool) -> str | None:
    """Why straight-line code cannot be fused; ``rounds``: it ends by rounding to int8."""
    body, end = _without_rounding(code)
    if rounds != end:
        return "it does not round where it makes bytes"
    for line in body:
        if line.op not in ("argument", "constant", "fma", *_BY_CUDNN):
            return f"cuDNN has no {line.op!r}"
        if line.op in _SUMS and any(body[i].op == "mul" for i in line.operands):
            return "it adds to a product, which cuDNN would not round"
    return None


def _without_rounding(code: Sequence[Instruction]) -> tuple[Sequence[Instruction], bool]:
    """Code without rounding to whole numbers and adding 0 in the end, and whether it does that."""
    if code[-1].op != "add":
        return code, False
    rounding, zero = (code[i] for i in code[-1].operands)
    if rounding.op == "round" and zero.op == "constant" and zero.value == 0.0:
        return code[: rounding.operands[0] + 1], True
    return code, False


def operands_of(problem: ContractionProblem) -> list[Argument]:
    """The vectors and numbers that stages read, in the order in which a graph declares them."""
    found = (a for stage in problem.stages for a in stage.step.arguments)
    return list(dict.fromkeys(a for a in found if a.kind != "chain"))


def add_stages(graph: Graph, problem: ContractionProblem, sums: GraphTensor) -> GraphTensor:
    """What follows the sums, on operands that it declares."""
    channels = problem.w.shape[0]
    given: dict[Argument, GraphTensor] = {}
    for a in operands_of(problem):
        size = channels if a.kind == "vector" else 1
        spec = TensorSpec((1, size, 1, 1), (size, 1, size, size), "float32")
        name = f"{a.kind}{a.index}"
        given[a] = graph.tensor(spec.shape, spec.dtype, strides=spec.strides, name=name)
    value = sums
    for stage in problem.stages:
        body, _ = _without_rounding(stage.step.code)
        values: list[GraphTensor | float] = []
        for line in body:
            if line.op == "argument":
                a = stage.step.arguments[int(line.value or 0)]
                values.append(value if a.kind == "chain" else given[a])
            elif line.op == "constant":
                values.append(float(line.value or 0))
            else:
                some = [values[i] for i in line.operands]
                if line.op == "fma":
                    product = graph.pointwise_in("float32", "mul", *some[:2])
                    values.append(graph.pointwise_in("float32", "add", product, some[2]))
                else:
                    values.append(graph.pointwise_in("float32", _BY_CUDNN[line.op], *some))
        last = values[-1]
        assert isinstance(last, GraphTensor)
        value = last
    return value
