"""Arguments that the module itself refuses, and those without elements."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import minidnn as md
from minidnn.errors import MiniDNNWarning


class Looking(nn.Module):
    """Looks at values, which cannot be captured."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.exp() if float(x.sum()) < 9 else x.neg()


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), Looking(), nn.Conv2d(4, 2, 1)).eval()


def test_mistakes_of_the_caller_are_pytorchs_errors() -> None:
    net, x = network(), torch.ones(1, 3, 8, 8)
    for args in ((), (x, 1.0), (x.numpy(),), (torch.ones(1, 4, 8, 8),), (x.double(),)):
        with pytest.raises((TypeError, RuntimeError)) as expected:
            net(*args)
        with pytest.raises(type(expected.value)) as found:
            md.optimize(net, device="reference")(*args)
        assert str(found.value) == str(expected.value)


def test_without_images_all_runs_in_pytorch() -> None:
    net, x = network(), torch.ones(0, 3, 8, 8)
    fast = md.optimize(net, device="reference")
    with pytest.warns(MiniDNNWarning, match=r"nothing was taken(.|\n)* has no elements"):
        found = fast(x)
    with torch.no_grad():
        torch.testing.assert_close(found, net(x), rtol=0, atol=0)
