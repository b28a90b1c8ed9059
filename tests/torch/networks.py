"""torchvision's networks with weights that let something through, and what they are given."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.oracles.torchvision_models import models


def torchvision(name: str) -> Any:
    """A network with random weights; statistics are such that values neither vanish nor explode."""
    torch.manual_seed(0)
    unset = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    net = getattr(models, name)(weights=None, **unset).eval()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_var.uniform_(0.5, 1.5)
            module.running_mean.uniform_(-0.1, 0.1)
        if type(module).__name__ == "CNBlock":
            module.layer_scale.data.fill_(0.5)
    return net


def example(name: str, batch: int, size: int) -> torch.Tensor:
    size = max(size, {"inception_v3": 75, "alexnet": 63}.get(name, 0))
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(3))


def errors(net: nn.Module, fast: Any, x: torch.Tensor) -> tuple[float, float]:
    """How far the results are from float64: the fast ones' and PyTorch's own."""
    with torch.no_grad():
        ours, own = fast(x), net(x)
        exact = net.double()(x.double())
        net.float()
    largest = exact.abs().max()
    return float((ours - exact).abs().max() / largest), float((own - exact).abs().max() / largest)
