"""Weights that PyTorch computes of others before every call, by hooks: they are no state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import minidnn as md

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning"),
    pytest.mark.usefixtures("unpriced"),
]

Computing = Callable[[nn.Module, str], nn.Module]


def pruned(module: nn.Module, name: str) -> nn.Module:
    return prune.l1_unstructured(module, name, 0.5)


def pruned_twice(module: nn.Module, name: str) -> nn.Module:
    return pruned(pruned(module, name), name)


#: With the tensor that a weight is computed of.
WAYS = [
    pytest.param(nn.utils.weight_norm, "weight_g", id="weight_norm"),
    pytest.param(nn.utils.spectral_norm, "weight_orig", id="spectral_norm"),
    pytest.param(pruned, "weight_orig", id="pruned"),
    pytest.param(pruned_twice, "weight_mask", id="pruned_twice"),
]


def examples(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


def network(middle: nn.Module) -> Any:
    return nn.Sequential(nn.Conv1d(3, 4, 3), middle, nn.ReLU()).eval()


@torch.no_grad()
def check(fast: Any, net: nn.Module, x: torch.Tensor) -> None:
    given = fast(x)  # before the network is called itself, which computes its weights
    torch.testing.assert_close(given, net(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("computing", "source"), WAYS)
def test_they_are_captured_and_follow_what_they_are_computed_of(
    computing: Computing, source: str
) -> None:
    torch.manual_seed(0)
    net, x = network(computing(nn.Conv1d(4, 4, 3), "weight")), examples(1, 3, 9)
    before = net[1].weight
    fast = md.optimize(net, x, device="cpu", strict=True)
    assert net[1].weight is before
    check(fast, net, x)
    with torch.no_grad():
        fast(x)
        getattr(net[1], source).mul_(torch.linspace(-1, 1, 4)[:, None, None])
    check(fast, net, x)
    state = {key: each + 0.1 for key, each in net.state_dict().items()}
    net.load_state_dict(state)
    check(fast, net, x)


def test_a_network_is_pruned_after_it_was_compiled() -> None:
    net, x = network(nn.Conv1d(4, 4, 3)), examples(1, 3, 9)
    fast = md.optimize(net, x, device="cpu", strict=True)
    check(fast, net, x)
    pruned(net[0], "weight")
    check(fast, net, x)
    prune.remove(net[0], "weight")
    check(fast, net, x)


def test_one_that_is_read_before_it_is_computed() -> None:
    class Tied(nn.Module):
        """Its first result is that of weights of the call before."""

        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> Any:
            return self.inner(x @ self.inner.weight.T)  # type: ignore[operator, union-attr]

    def made() -> Any:
        torch.manual_seed(0)
        tied = Tied(pruned(nn.Linear(4, 4), "weight"))
        return nn.Sequential(nn.Linear(4, 4), tied, nn.ReLU()).eval()

    net, eager, x = made(), made(), examples(2, 4)
    fast = md.optimize(net, x, device="cpu", strict=True)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(fast(x), eager(x), rtol=1e-4, atol=1e-4)
            for each in (net, eager):
                each[1].inner.weight_orig.mul_(1.5)


def test_those_of_recurrent_layers() -> None:
    """Which have lists of their weights, too."""
    torch.manual_seed(0)
    layer = nn.utils.weight_norm(nn.GRU(4, 5, batch_first=True), "weight_hh_l0")

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: torch.Tensor) -> Any:
            return self.layer(x)[0][:, -1]

    net, x = nn.Sequential(nn.Linear(3, 4), Last(), nn.Linear(5, 2)).eval(), examples(2, 6, 3)
    fast = md.optimize(net, x, device="cpu")
    check(fast, net, x)
    with torch.no_grad():
        layer.weight_hh_l0_g.mul_(3)
    check(fast, net, x)
