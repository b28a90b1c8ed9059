"""Twenty steps of torchvision's networks by an optimized module, as near to float64 as PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from minidnn.acceleration.trained import TrainedProgram
from tests.oracles.torchvision_models import models
from tests.torch.steps import errors_of, is_near, like

NETWORKS = (
    *("mobilenet_v2", "mobilenet_v3_large", "mnasnet1_0", "efficientnet_b0", "googlenet"),
    *("shufflenet_v2_x1_0", "regnet_y_400mf", "resnext50_32x4d", "wide_resnet50_2"),
    "convnext_tiny",
)
STEPS, CLASSES, SIZE, SEEDS = 20, 10, 64, 5
#: Normalizations over fewer values blow rounding errors up until nothing is left to compare.
BATCH = 8


def make(name: str) -> Any:
    """Without dropout, whose masks are other ones than PyTorch's."""
    unset = {"init_weights": False} if name == "googlenet" else {}
    net = getattr(models, name)(weights=None, num_classes=CLASSES, **unset)
    for module in net.modules():
        if isinstance(module, nn.Dropout) or type(module).__name__ == "StochasticDepth":
            module.p = 0.0
    return net


def program(module: Any) -> list[float]:
    random = torch.Generator().manual_seed(3)
    batches = like(module, torch.randn(4, BATCH, 3, SIZE, SIZE, generator=random))
    targets = like(module, torch.randint(CLASSES, (4, BATCH), generator=random))
    optimizer = torch.optim.SGD(module.parameters(), 1e-3, 0.9, weight_decay=1e-3)
    losses = []
    for step in range(STEPS):
        found = module(batches[step % 4])
        results = [found] if isinstance(found, torch.Tensor) else list(found)  # googlenet's heads
        loss = sum(F.cross_entropy(each, targets[step % 4]) for each in results)
        assert isinstance(loss, torch.Tensor)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def check(name: str, device: str, seeds: int) -> None:
    found = []
    for seed in range(seeds):
        torch.manual_seed(seed)
        ours, theirs, fast = errors_of(make(name), program, device)
        found.append((ours, theirs))
        (kept,) = fast._trained
        assert isinstance(kept, TrainedProgram) and len(kept.parts) == 1 and not kept.left
    assert is_near(found), f"{name}: errors of both by seed {found}"


@pytest.mark.full
@pytest.mark.parametrize("name", NETWORKS)
def test_network(name: str) -> None:
    check(name, "cpu", SEEDS)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NETWORKS)
def test_network_on_a_gpu(name: str) -> None:
    check(name, "cuda", SEEDS)
