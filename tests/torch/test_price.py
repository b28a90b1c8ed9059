"""Where PyTorch runs what is around a part, the part is taken if it gains more than it costs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import minidnn as md
from minidnn.acceleration.program import GAINS_LESS, gain
from minidnn.errors import UnsupportedError
from minidnn.frontends.torch.convert import Part
from minidnn.graph import operators as ops
from minidnn.graph.trace import apply, tracing
from minidnn.graph.types import TensorType
from tests.devices import unavailable


@pytest.fixture(autouse=True)
def _cpu() -> None:
    if unavailable("cpu") is not None:
        pytest.skip("the CPU engine is not there")


class Unknown(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sinc(x)


def convolutions(count: int, channels: int = 16) -> nn.Sequential:
    layers = [nn.Conv2d(channels, channels, 3, padding=1) for _ in range(count)]
    return nn.Sequential(*(nn.Sequential(layer, nn.ReLU()) for layer in layers))


def few() -> nn.Sequential:
    """What is around it makes a part of few operations on many elements."""
    return nn.Sequential(Unknown(), nn.Sigmoid(), nn.Tanh(), Unknown())


def optimized(*modules: nn.Module, **options: Any) -> Any:
    torch.manual_seed(0)
    net = modules[0] if len(modules) == 1 else nn.Sequential(*modules)
    net, x = net.eval(), torch.randn(1, 16, 64, 64)
    fast = md.optimize(net, x, device="cpu", **options)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-5)
    return fast


def test_a_part_that_gains_less_than_it_costs_is_left() -> None:
    fast = optimized(convolutions(8), few(), convolutions(8))
    (program,) = fast.programs
    assert [level.taken for level in program.levels] == [True, False, True]
    left = {node.name for node, why in program.left.items() if why == GAINS_LESS}
    assert left == {"sigmoid", "tanh"}
    assert f"aten.sigmoid.default: {GAINS_LESS}" in fast.explain()


def test_a_network_of_such_parts_is_pytorchs_without_a_warning() -> None:
    fast = optimized(few(), few())
    assert fast.programs == [] and GAINS_LESS in fast.explain()


def test_a_whole_network_and_the_reference_have_no_price() -> None:
    x = torch.randn(1, 16, 8, 8)
    fast = optimized(nn.Sigmoid(), nn.Tanh())
    assert len(fast.programs[0].parts) == 1
    fast = md.optimize(few().eval(), x, device="reference")
    assert len(fast.programs[0].parts) == 1


def test_strict_says_only_what_is_not_known() -> None:
    with pytest.raises(UnsupportedError) as caught:
        optimized(few(), strict=True)
    assert GAINS_LESS not in str(caught.value)


def test_a_piece_between_graph_breaks_has_a_price() -> None:
    class Deciding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.large = convolutions(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.large(x) if x.sum() < 1e9 else x

    fast = optimized(Deciding())
    looking, large = fast.pieces
    (program,) = large.programs
    assert len(program.parts) == 1 and not looking.programs
    assert GAINS_LESS in looking.explain()


def part(*operators: Any, shape: tuple[int, ...] = (1, 16, 64, 64)) -> Part:
    with tracing("part") as trace:
        value = trace.input(TensorType(shape), "x")
        for op in operators:
            value = apply(op, value)
        graph = trace.graph([value])
    node: Any = torch.fx.Graph().placeholder("x")
    return Part(graph, (node,), (node,))


def test_gains_grow_with_operations_and_costs_with_what_is_moved() -> None:
    def of(*operators: Any, size: int = 8, contiguous: bool = True) -> float:
        made = part(*operators, shape=(1, 16, size, size))
        return gain(made, lambda node: contiguous)

    assert of(ops.Sigmoid()) < 0 < of(*[ops.Sigmoid()] * 9)
    assert of(*[ops.Sigmoid()] * 9, size=200) > of(*[ops.Sigmoid()] * 9)
    assert of(ops.Sigmoid(), size=200) < of(ops.Sigmoid())
    assert of(*[ops.Sigmoid()] * 3, contiguous=False) < of(*[ops.Sigmoid()] * 3)
    assert of(ops.Identity()) == of(ops.Transpose((0, 1, 3, 2)))
