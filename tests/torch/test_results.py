"""Results of optimized networks that are no tensors, or that nothing is computed for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import minidnn as md
from minidnn.errors import MiniDNNWarning


def examples(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


def optimized(module: nn.Module, *args: Any) -> Any:
    return md.optimize(module, args, device="reference")


def close(got: Any, expected: Any) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


class Pair(NamedTuple):
    y: torch.Tensor
    others: list[Any]


class Giving(nn.Module):
    """Computes what it does not give."""

    def __init__(self, result: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.result = result

    def forward(self, x: torch.Tensor) -> Any:
        x.relu()
        return self.result(x)


@pytest.mark.parametrize(
    "result, why",
    [
        (lambda x: None, "no tensor is among its results"),
        (lambda x: (), "no tensor is among its results"),
        (lambda x: x, "it computes nothing: its results are what it is given"),
        (lambda x: x.view(-1), "it computes nothing: its results are what it is given"),
    ],
)
@pytest.mark.filterwarnings("ignore:Giving. a piece runs in PyTorch:minidnn.errors.MiniDNNWarning")
def test_a_network_of_which_nothing_is_used_says_so(result: Any, why: str) -> None:
    x = examples(2, 3)
    with pytest.warns(MiniDNNWarning, match=f"all runs in PyTorch:(.|\n)*  {why}"):
        fast = optimized(Giving(result).eval(), x)
    torch.testing.assert_close(fast(x), result(x), rtol=0, atol=0)


def test_sizes_among_results_are_sizes() -> None:
    class Sized(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            y = x.relu() + 1
            return Pair(y, [y.shape, y.shape[:1], tuple(y.shape), {"last": y.size()}, ()])

    x = examples(2, 3)
    found, expected = optimized(Sized().eval(), x)(x), Sized()(x)
    assert type(found) is Pair
    close(found.y, expected.y)
    assert found.others == expected.others
    assert list(map(type, found.others)) == list(map(type, expected.others))
    assert found.others[3]["last"].numel() == 6


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize(
    "lies",
    [
        lambda x: x.exp(),
        lambda x: (x.transpose(0, 1) * 2.0).exp(),
        lambda x: torch.nn.functional.conv2d(x, torch.ones(4, 3, 1, 1)).relu(),
        lambda x: x.relu().permute(2, 0, 3, 1).sigmoid(),
    ],
)
@pytest.mark.parametrize("given", [torch.contiguous_format, torch.channels_last])
def test_results_lie_in_memory_as_pytorchs(lies: Any, given: Any, gradients: bool) -> None:
    """Views of them that only such strides allow work, or fail, as before."""
    module = Giving(lies).eval()
    x = examples(2, 3, 4, 5).to(memory_format=given).requires_grad_(gradients)
    with torch.set_grad_enabled(gradients):
        found, expected = md.optimize(module, device="reference")(x), module(x)
    close(found, expected)
    assert found.stride() == expected.stride()


def test_results_for_any_batch_lie_in_memory_as_pytorchs() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval()
    batch = md.Dim("batch", 1, 8)
    fast = md.optimize(net, examples(2, 3, 6, 5), device="reference", dynamic=batch)
    for rows in (2, 3, 5):
        for lies in (torch.channels_last, torch.contiguous_format):
            x = examples(rows, 3, 6, 5).to(memory_format=lies)
            with torch.no_grad():
                found, expected = fast(x), net(x)
            close(found, expected)
            assert found.stride() == expected.stride()
    assert "any batch" in fast.explain()
