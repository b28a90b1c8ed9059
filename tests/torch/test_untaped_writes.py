"""Writes in place that PyTorch's tape does not see, and blocks in which they stand: gradients are
those of PyTorch's own module, or PyTorch runs the piece."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import Graph
from torch.utils.checkpoint import checkpoint

import minidnn as md
from minidnn.frontends.torch.writes import written_operands

Body = Callable[[Any, torch.Tensor], torch.Tensor]
Write = Callable[[torch.Tensor], Any]

#: PyTorch's functions with an argument that says whether they write to their first operand.
IN_PLACE = [
    name
    for name, function in vars(F).items()
    if inspect.isfunction(function) and "inplace" in inspect.signature(function).parameters
]


@pytest.mark.parametrize("name", IN_PLACE)
def test_functions_write_where_inplace_is_true(name: str) -> None:
    function = getattr(F, name)
    parameters = list(inspect.signature(function).parameters.values())
    between = [1.0 if each.default is each.empty else each.default for each in parameters[1:-1]]
    assert parameters[-1].name == "inplace"
    graph = Graph()
    x = graph.placeholder("L_x_")
    for in_place in (False, True):
        expected = [x] if in_place else []
        by_position = graph.call_function(function, (x, *between, in_place))
        by_name = graph.call_function(function, (x, *between), {"inplace": in_place})
        assert written_operands(by_position) == written_operands(by_name) == expected
    assert written_operands(x) == []


class Network(nn.Module):
    def __init__(self, body: Body) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.linear = nn.Linear(4, 4)
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(self.linear, x)


def compare(body: Body) -> Any:
    """Compares results and gradients with PyTorch's own; returns the optimized module."""
    torch._dynamo.reset()
    net, own = Network(body), Network(body)
    fast, x = md.optimize(net, device="reference"), torch.randn(3, 4)
    found, expected = fast(x), own(x)
    assert found.requires_grad == expected.requires_grad
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    for result in (found, expected):
        result.square().sum().backward()
    for one, other in zip(net.parameters(), own.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-5)
    return fast


WRITES: dict[str, Write] = {
    "inplace": lambda h: F.relu(h, inplace=True),
    "inplace, by position": lambda h: F.dropout(h, 1.0, True, True),
    "a module": nn.Dropout1d(1.0, inplace=True),
    "input": lambda h: torch.relu_(input=h),
    "a method": lambda h: h.__imul__(0.5),
    "an item": lambda h: h.__setitem__(0, 1.0),
    "several": lambda h: torch._foreach_mul_([h], 0.5),
    "several in a tuple": lambda h: torch._foreach_mul_(h.chunk(2, 1), 0.5),
    "an overload": lambda h: torch.ops.aten.mul_.Tensor(h, torch.tensor(0.5)),
    "out": lambda h: torch.mul(h.detach(), 0.5, out=h),
    "out, by position": lambda h: F.normalize(h.detach(), 2.0, 1, 1e-12, h),
    "data": lambda h: h.data.mul_(0.5),
    "initial values": nn.init.ones_,
    "a table's norms": lambda h: F.embedding(torch.tensor([0, 1]), h, max_norm=0.1),
    "statistics": lambda h: F.batch_norm(torch.ones(3, 4), h[0].detach(), h[1], training=True),
}


@pytest.mark.sampled(4)
@pytest.mark.filterwarnings("ignore:.*a piece runs in PyTorch:minidnn.errors.MiniDNNWarning")
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", WRITES)
def test_writes_without_gradients_to_what_has_one(name: str, mode: Any) -> None:
    def body(linear: nn.Module, x: torch.Tensor) -> torch.Tensor:
        h = linear(x)
        with mode():
            WRITES[name](h)
        return h * 2

    compare(body)


@pytest.mark.filterwarnings("ignore:.*a piece runs in PyTorch:minidnn.errors.MiniDNNWarning")
@pytest.mark.parametrize("function", [F.embedding, F.embedding_bag])
def test_norms_of_a_computed_table(function: Any) -> None:
    """They are written past the tape in gradient mode, too."""

    def body(linear: nn.Module, x: torch.Tensor) -> torch.Tensor:
        table = linear(x)
        function(torch.tensor([[0, 1]]), table, max_norm=0.1)
        return table * 2

    compare(body)


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.relu()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] / 2


def _write_without_gradients(linear: nn.Module, x: torch.Tensor) -> torch.Tensor:
    h = linear(x)
    with torch.no_grad():
        h.relu_()
    return h * 2


def _function_of_ones_own(linear: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return Halved.apply(linear(x)) * 2


def _data(linear: nn.Module, x: torch.Tensor) -> torch.Tensor:
    h = linear(x)
    return h * h.data


def _write_to_a_view(linear: nn.Module, x: torch.Tensor) -> torch.Tensor:
    h = linear(x)
    torch.einsum("ab->ba", h).mul_(3)
    return h * 2


BLOCKS = [_write_without_gradients, _function_of_ones_own, _data, _write_to_a_view]


@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("ignore:.*a piece runs in PyTorch:minidnn.errors.MiniDNNWarning")
@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize("body", BLOCKS)
def test_blocks_under_checkpoint(body: Body, is_nested: bool) -> None:
    def called(block: Body, linear: nn.Module, x: torch.Tensor) -> torch.Tensor:
        result = checkpoint(block, linear, x, use_reentrant=False)
        assert isinstance(result, torch.Tensor)
        return result + 1

    def once(linear: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return called(body, linear, x)

    compare(once if not is_nested else lambda linear, x: called(once, linear, x))


def test_blocks_under_checkpoint_that_switch_gradients_on() -> None:
    def block(linear: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            return linear(x).relu()

    def body(linear: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            result = checkpoint(block, linear, x, use_reentrant=False)
        assert isinstance(result, torch.Tensor)
        return result

    compare(body)


@pytest.mark.filterwarnings("ignore:.*a piece runs in PyTorch:minidnn.errors.MiniDNNWarning")
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (lambda linear, x: F.rrelu_(linear(x), 0.2, 0.2, True) * 2, "rrelu_with_noise_functional"),
        (_write_to_a_view, "gives a gradient to the elements that are overwritten"),
    ],
)
def test_gradients_that_pytorch_computes_wrong(body: Body, reason: str) -> None:
    assert reason in compare(body).explain()


def test_a_part_that_gives_its_argument() -> None:
    def body(linear: nn.Module, x: torch.Tensor) -> torch.Tensor:
        h = linear(x)
        h[:].view(3, 4)[0] = 1.0
        return h * 2

    compare(body)
