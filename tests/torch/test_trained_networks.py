"""Twenty steps of torchvision's networks by an optimized module, as near to float64 as PyTorch.

Each step begins with the weights that PyTorch's own has come to.  Otherwise rounding errors would
grow from step to step, by these networks' normalizations over few values, until both are as far
from float64 as from each other, and nothing is compared.

Rectified values that round to the other side of zero make the gradient jump, in PyTorch's float32
as in minidnn's: in mnasnet1_0 in half of the steps, so that it is chance whose median has a jump.
So biases of networks of rectifiers are moved as tests/training/networks.py does.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import minidnn as md
from minidnn.acceleration.trained import TrainedProgram
from tests.cases.record import one_thread
from tests.cuda.cards import some
from tests.oracles.torchvision_models import models
from tests.torch.steps import FLOOR, is_near, like, trained_programs
from tests.training.networks import move_biases

NETWORKS = (
    *("mobilenet_v2", "mobilenet_v3_large", "mnasnet1_0", "efficientnet_b0", "googlenet"),
    *("shufflenet_v2_x1_0", "regnet_y_400mf", "resnext50_32x4d", "wide_resnet50_2"),
    "convnext_tiny",
)
#: Of those that train on a GPU, where cuDNN's plans for so many gradients take minutes to build.
SAMPLE = ("shufflenet_v2_x1_0", "convnext_tiny")
#: Networks of rectifiers and normalizations alone.
RECTIFIED = (
    *("mobilenet_v2", "mnasnet1_0", "googlenet", "shufflenet_v2_x1_0", "regnet_y_400mf"),
    *("resnext50_32x4d", "wide_resnet50_2"),
)
STEPS, CLASSES, SIZE = 20, 10, 64
BATCH = 8

#: Parts of the whole gradient's size below which a tensor's own is rounding and no more: that of a
#: bias in front of a normalization, or of what a saturated function stands behind.
LEAST = 1e-3


def make(name: str) -> Any:
    """Without dropout, whose masks are other ones than PyTorch's."""
    unset = {"init_weights": False} if name == "googlenet" else {}
    net = getattr(models, name)(weights=None, num_classes=CLASSES, **unset)
    for module in net.modules():
        if isinstance(module, nn.Dropout) or type(module).__name__ == "StochasticDepth":
            module.p = 0.0
    return net


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    random = torch.Generator().manual_seed(3)
    images = torch.randn(4, BATCH, 3, SIZE, SIZE, generator=random)
    targets = torch.randint(CLASSES, (4, BATCH), generator=random)
    return list(zip(images, targets, strict=True))


def step(module: Any, x: torch.Tensor, target: torch.Tensor) -> dict[str, np.ndarray]:
    """Loss, gradients and statistics of one step, in float64."""
    module.zero_grad()
    found = module(like(module, x))
    results = [found] if isinstance(found, torch.Tensor) else list(found)  # googlenet's heads
    terms = [F.cross_entropy(each, like(module, target)) for each in results]
    loss = sum(terms[1:], terms[0])
    loss.backward()
    arrays = {f"gradient.{name}": each.grad for name, each in module.named_parameters()}
    arrays |= {name: each for name, each in module.named_buffers() if each.is_floating_point()}
    arrays["loss"] = loss.detach()[None]
    return {name: array.double().cpu().numpy().copy() for name, array in arrays.items()}


def errors(found: dict[str, np.ndarray], exact: dict[str, np.ndarray]) -> list[float]:
    """Of the loss, of the statistics, of all gradients together, and of the worst one."""
    away = {name: float(np.linalg.norm(found[name] - array)) for name, array in exact.items()}
    size = {name: float(np.linalg.norm(array)) for name, array in exact.items()}
    gradients = [name for name in exact if name.startswith("gradient.")]
    statistics = [name for name in exact if name.endswith(("running_mean", "running_var"))]
    whole = float(np.linalg.norm([size[name] for name in gradients]))
    each = [away[n] / size[n] for n in gradients if size[n] > LEAST * whole]
    return [
        max(one, FLOOR)
        for one in (
            away["loss"] / size["loss"],
            max((away[name] / size[name] for name in statistics), default=0.0),
            float(np.linalg.norm([away[name] for name in gradients])) / whole,
            max(each),
        )
    ]


def check(name: str, device: str) -> None:
    torch.manual_seed(0)
    own = make(name).train()
    if name in RECTIFIED:
        move_biases(own, batches()[0][0].numpy(), 0)
    net = copy.deepcopy(own).to(device if device == "cuda" else "cpu")
    wide, fast = copy.deepcopy(own).double(), md.optimize(net, device=device)
    optimizer = torch.optim.SGD(own.parameters(), 0.01, 0.9, weight_decay=1e-3)
    given, found = batches(), []
    for number in range(STEPS):
        for module in (net, wide):
            module.load_state_dict(own.state_dict())
        batch = given[number % 4]
        with one_thread():
            exact = step(wide, *batch)
            theirs = errors(step(own, *batch), exact)
        found.append((errors(step(fast, *batch), exact), theirs))
        optimizer.step()
    (kept,) = trained_programs(fast)
    assert isinstance(kept, TrainedProgram) and len(kept.parts) == 1 and not kept.left
    for place, what in enumerate(("loss", "statistics", "gradients", "the worst gradient")):
        pairs = [(ours[place], theirs[place]) for ours, theirs in found]
        assert is_near(pairs), f"{name}: errors of {what} by step: {pairs}"


@pytest.mark.full
@pytest.mark.parametrize("name", NETWORKS)
def test_network(name: str) -> None:
    check(name, "cpu")


@pytest.mark.gpu
@pytest.mark.early
@pytest.mark.parametrize("name", some(NETWORKS, SAMPLE))
def test_network_on_a_gpu(name: str) -> None:
    check(name, "cuda")
