"""Gradients of convolutions on CUDA without a GPU: what is asked of cuDNN, layouts, refusals."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from minidnn.backends.cuda.contraction import fixed_function
from minidnn.backends.cuda.contraction.algorithms import algorithms_for
from minidnn.backends.cuda.contraction.config import (
    CONVOLUTION,
    FIXED,
    AlgorithmConfig,
    CudaAlgorithm,
    target,
)
from minidnn.backends.cuda.contraction.graphs import constraints_of, graph_of
from minidnn.backends.cuda.contraction.kernel_registry import KERNELS, refusals
from minidnn.backends.cuda.contraction.problem import (
    FILTER_GRADIENT,
    IMAGE_GRADIENT,
    ContractionProblem,
)
from minidnn.backends.cuda.lower import lower_plan
from minidnn.cudnn.convolution.key import ConvolutionKey
from minidnn.cudnn.graph.spec import Convolution
from minidnn.graph import operators as ops
from minidnn.graph.ir import Graph, Node, Value
from minidnn.graph.layout import CHANNELS_LAST, PLANAR
from minidnn.graph.operators import Reorder
from minidnn.graph.types import TensorType

from .cards import H200
from .lowered import graph_problems, planned_graph

PRECISIONS = ("float32", "tf32", "float16", "bfloat16")


def gradient(which: str, padding: Any = ((1, 1), (1, 1)), groups: int = 1) -> Graph:
    """The gradient of a 3x3 convolution, stride 2, of 16 channels to 24."""
    convolution = ops.Conv2d((2, 2), padding, (1, 1), groups)
    x, w = TensorType((2, 16, 13, 13)), TensorType((24, 16 // groups, 3, 3))
    (y,) = convolution.infer(x, w)
    op: Any = ops.Conv2dWeightGradient(convolution, (3, 3))
    types = [x, y]
    if which == "image":
        op, types = ops.Conv2dInputGradient(convolution, (13, 13)), [y, w]
    inputs = [Value(type, f"input{i}") for i, type in enumerate(types)]
    node = Node(op, inputs, "gradient", "gradient")
    return Graph(inputs, [node.output], [node], "gradient")


def problem_of(which: str, precision: str = "float32", **about: Any) -> ContractionProblem:
    (problem,) = graph_problems(gradient(which, **about), precision)
    return problem


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("which", ["image", "filter"])
def test_the_problem_is_the_convolutions_with_another_direction(which: str, precision: str) -> None:
    problem = problem_of(which, precision, groups=2)
    assert problem.direction == {"image": IMAGE_GRADIENT, "filter": FILTER_GRADIENT}[which]
    assert problem.input.shape == (2, 16, 13, 13) and problem.output.shape == (2, 24, 7, 7)
    assert problem.w.shape == (24, 8, 3, 3) and problem.groups == 2
    assert problem.planar == (precision == "float32") and problem.tf32 == (precision == "tf32")
    assert (problem.w.strides[1] == 1) != problem.planar
    kind = "float32" if precision == "tf32" else precision
    assert {problem.x.dtype, problem.w.dtype, problem.y.dtype} == {kind}
    assert problem.describe() == (
        f"gradient of the {which} of {kind} 2x16x13x13 by 24x8x3x3, stride (2, 2)"
    )
    for name, reason in refusals(problem, H200).items():
        if problem.direction not in KERNELS[name].directions:
            assert reason == f"it computes no gradient of the {which}"
    cores = [algorithm.core for algorithm in algorithms_for(problem, H200)]
    assert cores == [CONVOLUTION, FIXED][: 1 + (precision == "float32")]


@pytest.mark.parametrize("which", ["image", "filter"])
def test_all_three_lie_as_tensor_cores_want_them(which: str) -> None:
    plan = planned_graph(gradient(which), "bfloat16")
    (node,) = (n for n in plan.graph.nodes if n.op.kind == "contraction")
    assert {plan.layout(v) for v in (*node.inputs, node.output)} == {CHANNELS_LAST}
    turned = [n.op.layout for n in plan.graph.nodes if isinstance(n.op, Reorder)]
    assert turned == [CHANNELS_LAST, CHANNELS_LAST, PLANAR]


@pytest.mark.parametrize("which", ["image", "filter"])
def test_padding_that_differs_is_composed(which: str) -> None:
    plan = planned_graph(gradient(which, padding=((0, 1), (1, 1))), "float32")
    assert not [n for n in plan.graph.nodes if n.op.name.endswith("Gradient")]
    assert any(isinstance(n.op, ops.Conv2d) for n in plan.graph.nodes)


@pytest.mark.parametrize("which", ["image", "filter"])
def test_graphs_of_cudnn_have_the_same_operands(which: str) -> None:
    problem = problem_of(which, "float16")
    algorithm = CudaAlgorithm(CONVOLUTION, 0)
    spec = graph_of(problem, algorithm.core, 0, target(problem, algorithm)).freeze()
    (node,) = spec.nodes
    assert isinstance(node, Convolution)
    assert node.kind == {"image": "backward_data", "filter": "backward_filter"}[which]
    tensors = [spec.tensors[i] for i in (*spec.inputs, *spec.outputs)]
    image, filters, result = problem.input, problem.w, problem.output
    wanted = [result, filters, image] if which == "image" else [result, image, filters]
    assert [(t.shape, t.strides, t.dtype) for t in tensors] == [
        (t.shape, t.strides, t.dtype) for t in wanted
    ]


@pytest.mark.parametrize(
    ("which", "operation", "refused"),
    [("image", "backward_data", ["0"]), ("filter", "backward_filter", ["0", "3"])],
)
def test_fixed_functions_add_in_any_order_by_wish_alone(
    which: str, operation: str, refused: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[ConvolutionKey] = []

    def descriptors(key: ConvolutionKey) -> Any:
        made.append(key)
        return SimpleNamespace(key=key, workspace=lambda algorithm: 0)

    monkeypatch.setattr(fixed_function, "Problem", descriptors)
    for deterministic in (True, False):
        tasks = lower_plan(
            planned_graph(gradient(which), "float32"), H200, False, deterministic=deterministic
        )
        (problem,) = (t.work for t in tasks if isinstance(t.work, ContractionProblem))
        assert constraints_of(problem, 0).deterministic == deterministic
        output, said = target(problem, CudaAlgorithm(FIXED, 0)), []
        for algorithm in fixed_function.algorithms_of(problem):
            found = fixed_function.fixed_convolution(problem, int(algorithm), 0, output)
            if found == "it adds in any order":
                said.append(algorithm.name.rpartition("_")[2])
        assert said == (refused if deterministic else [])
    assert {key.operation for key in made} == {operation}
    assert made[0].x.shape == (2, 16, 13, 13) and made[0].y.shape == (2, 24, 7, 7)
    assert (
        AlgorithmConfig(CudaAlgorithm(FIXED, 0), 1).algorithm_name(problem)
        == f"bwd_{operation[9:]}_algo_1"
    )
