"""What is computed of nothing, or of a shape, is computed once; random numbers stay PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import minidnn as md

Function = Callable[[torch.Tensor], Any]


class Of(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def examples(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def grid(x: torch.Tensor) -> torch.Tensor:
    """As detectors make their anchors."""
    rows, columns = (torch.arange(size, dtype=torch.float32) + 0.5 for size in x.shape[2:])
    y, x_ = torch.meshgrid(rows, columns, indexing="ij")
    return torch.stack((x_, y), 0)[None]


def masked(x: torch.Tensor) -> torch.Tensor:
    mask = torch.ones_like(x)
    mask[:, 1:, ::2] = 0.0
    return x * mask


def positions(x: torch.Tensor) -> torch.Tensor:
    """Sine and cosine of positions, of operations that are not known."""
    place = torch.arange(x.shape[-1])[:, None] / 10000 ** torch.linspace(0, 1, 4)
    return x.mean((1, 2), keepdim=True) + torch.cat((place.sin(), place.cos()), 1).T.cumsum(0)


WHOLE: dict[str, Function] = {
    "arange": lambda x: x + torch.arange(x.shape[-1], dtype=x.dtype),
    "arange of ints": lambda x: torch.arange(1, x.shape[-1] + 1) * x,
    "arange of ints, halved": lambda x: x - torch.arange(0, 2 * x.shape[-1], 2).div(2),
    "a bool": lambda x: x * (torch.arange(x.shape[-1]) > 2),
    "float64": lambda x: torch.maximum(x, torch.zeros((), dtype=torch.float64)),
    "zeros": lambda x: torch.cat((x.exp(), torch.zeros(x.shape[0], 1, *x.shape[2:])), 1),
    "ones": lambda x: x / (torch.ones(x.shape[1], 1, 1) * 3),
    "full": lambda x: torch.minimum(x, torch.full((1, 1, 1, x.shape[-1]), 0.25)),
    "eye": lambda x: x @ torch.eye(x.shape[-1])[:, :5],
    "linspace": lambda x: x * torch.linspace(-1, 1, x.shape[-1]),
    "tensor": lambda x: x * torch.tensor([[0.5], [2.0], [3.0]])[..., None],
    "tensor, written": lambda x: torch.tensor([0.5, 2.0, 3.0]).mul_(x.mean((0, 2, 3))).exp(),
    "a number's tensor": lambda x: x * torch.tensor(2) + torch.scalar_tensor(0.5),
    "tril": lambda x: x + torch.ones(x.shape[-2:]).tril().cumsum(0),
    "zeros_like": lambda x: torch.stack((x.exp(), torch.zeros_like(x))),
    "ones_like": lambda x: 1.5 * torch.ones_like(x) - x,
    "full_like": lambda x: x + torch.full_like(x[:, :1], 2.5),
    "new_zeros": lambda x: torch.cat((x.new_zeros(1, *x.shape[1:]), x.exp())),
    "new_ones": lambda x: x + x.new_ones(x.shape[1:]),
    "new_full": lambda x: x - x.new_full((1,), 0.125),
    "new_tensor": lambda x: x * x.new_tensor([1.0, 2.0, 4.0])[:, None, None],
    "empty_like": lambda x: torch.exp(x) + torch.empty_like(x).fill_(0.75),
    "empty": lambda x: x + torch.empty(x.shape[-1]).fill_(3.0),
    "permuted": lambda x: x.permute(0, 2, 3, 1) + torch.ones_like(x.permute(0, 2, 3, 1)),
    "meshgrid": lambda x: x.mean(1, keepdim=True) + grid(x),
    "written": masked,
    "unknown operations of it": positions,
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", WHOLE)
def test_it_is_part_of_what_is_taken(name: str) -> None:
    net, x = Of(WHOLE[name]).eval(), examples(2, 3, 8, 7)
    fast = md.optimize(net, x, device="reference", strict=True)
    for given in (x, 2 - x):
        expected = net(given)
        assert fast(given).dtype == expected.dtype
        torch.testing.assert_close(fast(given), expected, rtol=1e-5, atol=1e-6)


def test_it_is_part_of_what_compile_takes() -> None:
    x = examples(1, 3, 8, 7)
    made = md.compile(Of(WHOLE["meshgrid"]).eval(), tuple(x.shape), device="reference")
    torch.testing.assert_close(made(x), WHOLE["meshgrid"](x))


def test_each_size_has_its_own() -> None:
    net = Of(WHOLE["meshgrid"]).eval()
    fast = md.optimize(net, device="reference", strict=True)
    for shape in ((1, 3, 8, 7), (1, 3, 5, 9)):
        torch.testing.assert_close(fast(examples(*shape)), net(examples(*shape)))


def test_results_of_it_are_new_each_time() -> None:
    def function(x: torch.Tensor) -> Any:
        zeros = torch.zeros_like(x)
        return x.exp(), zeros, zeros[:, 0], torch.arange(4).expand(2, 4), torch.full((3,), 2.0)

    net, x = Of(function).eval(), examples(2, 3, 8, 7).to(memory_format=torch.channels_last)
    fast = md.optimize(net, x, device="reference")
    fast(x)[1].fill_(5.0)
    found, expected = fast(x), net(x)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
        assert (one.dtype, one.stride()) == (other.dtype, other.stride())
    found[1].fill_(3.0)
    assert (found[2] == 3.0).all(), "views of it are views"


def test_a_part_that_pytorch_runs_is_given_it() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.atan2(x.exp(), torch.arange(7, dtype=torch.float32))
        return (y + torch.zeros_like(y).cumsum(0) + 1).sigmoid()

    net, x = Of(function).eval(), examples(2, 3, 8, 7)
    fast = md.optimize(net, x, device="reference")
    assert "atan2: aten.atan2.default: it is not known" in fast.explain()
    torch.testing.assert_close(fast(x), net(x))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "function",
    (
        lambda x: x.exp() + torch.rand(7),
        lambda x: x.exp() + torch.randn_like(x),
        lambda x: x.exp() + torch.empty_like(x).uniform_(),
        lambda x: x.exp() + torch.zeros(7).normal_(),
        lambda x: x.exp()[:, torch.randperm(3)],
        lambda x: x.exp() + torch.bernoulli(torch.full((7,), 0.5)),
    ),
)
def test_random_numbers_are_drawn_at_each_call(function: Function) -> None:
    net, x = Of(function).eval(), examples(2, 3, 8, 7)
    fast = md.optimize(net, x, device="reference")
    assert fast.programs[0].left
    torch.manual_seed(3)
    found = [fast(x), fast(x)]
    torch.manual_seed(3)
    for one in found:
        torch.testing.assert_close(one, net(x))
    assert not torch.equal(*found)


def test_another_default_dtype_is_noticed() -> None:
    net, x = nn.Sequential(nn.Linear(7, 7), Of(lambda x: x.exp() + torch.ones(7))), examples(2, 7)
    fast = md.optimize(net.eval(), x, device="reference")
    with torch.no_grad():
        torch.testing.assert_close(fast(x), net(x))
        torch.set_default_dtype(torch.float64)
        try:
            expected, found = net(x), fast(x)
        finally:
            torch.set_default_dtype(torch.float32)
    assert expected.dtype is torch.float64
    torch.testing.assert_close(found, expected)


def test_a_users_operation_without_operands_is_called_each_time() -> None:
    count = 0

    @torch.library.custom_op("minidnn_tests::counted", mutates_args=())
    def counted() -> torch.Tensor:
        nonlocal count
        count += 1
        return torch.full((7,), float(count))

    counted.register_fake(lambda: torch.empty(7))
    x = examples(2, 3, 8, 7)
    fast = md.optimize(Of(lambda x: x.exp() + counted()).eval(), x, device="reference")
    before = count
    first, second = fast(x), fast(x)
    torch.testing.assert_close(second - first, torch.ones_like(x))
    assert count == before + 2
