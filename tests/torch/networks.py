"""torchvision's networks with weights that let something through, and what they are given."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.oracles.torchvision_models import models


class Noted(nn.Module):
    """Looks at values, so that it is called as it is; notes where its tensors lie."""

    def __init__(self) -> None:
        super().__init__()
        self.places: list[list[int]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.sin(x) if float(x.sum()) < 1e9 else x
        self.places[:] = [[x.data_ptr()], [y.data_ptr()]]
        return y


class UNet(nn.Module):
    """Down, up and across: normalization in groups and by image, and images made larger."""

    def __init__(self) -> None:
        super().__init__()
        norms = (nn.GroupNorm(4, 16), nn.InstanceNorm2d(16, affine=True), nn.GroupNorm(2, 16))
        blocks = zip((3, 16, 32), norms, strict=True)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(channels, 16, 3, padding=1), norm, nn.SiLU())
            for channels, norm in blocks
        )
        self.end = nn.Conv2d(32, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second, third = self.blocks
        fine = first(x)
        coarse = second(F.max_pool2d(fine, 2))
        across = F.interpolate(F.max_pool2d(coarse, 2), size=coarse.shape[2:], mode="nearest")
        up = F.interpolate(third(torch.cat([coarse, across], 1)), x.shape[2:], mode="bilinear")
        return self.end(torch.cat([up.flip(3), fine.roll((1, -2), (2, 3))], 1))


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
