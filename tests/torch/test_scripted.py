"""TorchScript modules in networks, and as networks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import minidnn as md
from minidnn.errors import UnsupportedError

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor, .* are deprecated:UserWarning"),
]

X = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(2))


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)
        self.act = nn.Sequential(nn.SiLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.conv(x)) * 2


def made(kind: str) -> Any:
    torch.manual_seed(0)
    inner = Inner().eval()
    return torch.jit.script(inner) if kind == "scripted" else torch.jit.trace(inner, X)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["scripted", "traced"])
def test_one_in_a_network_is_called_as_it_is(kind: str) -> None:
    inner = made(kind)
    net = nn.Sequential(nn.Conv2d(3, 3, 1), inner, nn.ReLU(), nn.Sequential(inner)).eval()
    fast = md.optimize(net, X, device="reference")
    kinds = [
        node.op.name for p in fast.programs for part in p.parts for node in part.part.graph.nodes
    ]
    assert kinds == ["Conv2d", "ReLU"]
    assert "goes on in Python: layers of PyTorch's are captured one by one" in fast.explain()
    programs = fast.programs
    torch.testing.assert_close(fast(X), net(X), rtol=1e-5, atol=1e-5)
    inner.conv.weight.mul_(2)  # its own business
    torch.testing.assert_close(fast(X), net(X), rtol=1e-5, atol=1e-5)
    assert fast.programs == programs
    net[1] = nn.Tanh()
    torch.testing.assert_close(fast(X), net(X), rtol=1e-5, atol=1e-5)


def test_one_that_is_not_called() -> None:
    class Spare(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self[0](x)

    net = Spare(nn.Conv2d(3, 3, 1), made("scripted")).eval()
    with torch.no_grad():
        torch.testing.assert_close(md.optimize(net, X, strict=True)(X), net(X))


@pytest.mark.parametrize("kind", ["scripted", "traced"])
def test_one_as_a_whole_is_refused(kind: str) -> None:
    refused = "Module cannot be captured: it is a TorchScript module, .*; valid is the module that"
    with pytest.raises(UnsupportedError, match=refused):
        md.optimize(made(kind))
    with pytest.raises(UnsupportedError, match=refused):
        md.compile(made(kind), X.shape)


def quantized(net: nn.Module) -> Any:
    return torch.ao.quantization.quantize_dynamic(net, {nn.Linear}, dtype=torch.qint8)


@torch.no_grad()
def test_objects_of_torchscript_in_modules() -> None:
    """As quantized layers have them, in modules of their own that nobody calls."""
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(4, 3))
    net = quantized(nn.Sequential(nn.Conv2d(3, 3, 1), nn.Linear(6, 4), nn.ReLU(), inner).eval())
    fast = md.optimize(net, X, device="reference")
    assert any(program.parts for program in fast.programs)
    assert "goes on in Python: " in fast.explain()
    torch.testing.assert_close(fast(X), net(X), rtol=1e-5, atol=1e-5)
    with pytest.raises(UnsupportedError, match="Linear cannot be captured whole: "):
        md.optimize(net[1].eval(), X, strict=True)
