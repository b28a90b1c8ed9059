"""compose_gradients: gradients of convolutions, put together from convolutions."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from minidnn.fusion.target import Target
from minidnn.graph.ir import Node
from minidnn.graph.operators import Conv2dInputGradient, Conv2dWeightGradient
from minidnn.passes.compose import COMPOSE_GRADIENTS
from minidnn.passes.infrastructure import Context
from tests.cases import REFERENCE_CASES, Case
from tests.passes.build import assert_same, run

CASES = [case for case in REFERENCE_CASES if "_gradient-" in case.name]


@dataclass(frozen=True)
class WithoutKernels(Target):
    def refuse_convolution_gradient(self, node: Node) -> str | None:
        return "there is no kernel"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_numbers_stay(case: Case) -> None:
    graph = case.graph(case.shapes[0])
    context = Context(WithoutKernels())
    result = run(graph, COMPOSE_GRADIENTS, context=context)
    kinds = (Conv2dInputGradient, Conv2dWeightGradient)
    assert not any(isinstance(node.op, kinds) for node in result.nodes)
    assert {node.source for node in result.nodes} == {node.source for node in graph.nodes}
    assert [str(r) for r in context.rewrites] == [
        f"#1 compose_gradients: compose {graph.nodes[0].name}: there is no kernel"
    ]
    assert_same(graph, result, 1e-5)


def test_kernels_and_fuel_leave_it() -> None:
    graph = CASES[0].graph(CASES[0].shapes[0])
    assert run(graph, COMPOSE_GRADIENTS) is graph
    assert run(graph, COMPOSE_GRADIENTS, context=Context(WithoutKernels(), fuel=0)) is graph
