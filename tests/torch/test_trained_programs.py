"""Small training programs, twenty steps of each: custom layers, several losses, frozen parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.torch.steps import errors_of, is_near, like, trained_programs

STEPS, BATCH, CLASSES = 20, 8, 5


class Halved(torch.autograd.Function):
    """The operand, whose gradient is half of what it should be."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] / 2


class Custom(nn.Module):
    """A layer of somebody's own, with a parameter and a gradient of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = Halved.apply(x * self.scale)
        return made


def block(channels: int, more: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, more, 3, padding=1, bias=False),
        nn.BatchNorm2d(more),
        nn.ReLU(inplace=True),
    )


class Network(nn.Module):
    """A trunk, perhaps something strange, and two heads."""

    def __init__(self, middle: nn.Module | None = None) -> None:
        super().__init__()
        self.trunk = nn.Sequential(block(3, 8), nn.MaxPool2d(2), block(8, 8))
        self.middle = nn.Identity() if middle is None else middle
        self.end = block(8, 8)
        self.classes = nn.Linear(8, CLASSES)
        self.angle = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.end(self.middle(self.trunk(x))).mean((2, 3))
        return self.classes(y), self.angle(y).tanh().squeeze(1)


def data(module: nn.Module) -> list[tuple[torch.Tensor, ...]]:
    random = torch.Generator().manual_seed(3)

    def batch() -> tuple[torch.Tensor, ...]:
        return (
            torch.randn(BATCH, 3, 8, 8, generator=random),
            torch.randint(CLASSES, (BATCH,), generator=random),
            torch.rand(BATCH, generator=random),
        )

    return [tuple(like(module, each) for each in batch()) for _ in range(4)]


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    trained = [each for each in module.parameters() if each.requires_grad]
    return torch.optim.SGD(trained, 0.05, 0.9, weight_decay=1e-3)


def one_loss(module: nn.Module) -> list[float]:
    optimizer, batches, losses = sgd(module), data(module), []
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for step in range(STEPS):
        x, target, _ = batches[step % 4]
        loss = F.cross_entropy(module(x)[0], target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


def two_losses(module: nn.Module) -> list[float]:
    """Each goes backwards by itself through the same graph."""
    optimizer, batches, losses = sgd(module), data(module), []
    for step in range(STEPS):
        x, target, angle = batches[step % 4]
        logits, found = module(x)
        first, second = F.cross_entropy(logits, target), F.mse_loss(found, angle)
        optimizer.zero_grad()
        first.backward(retain_graph=True)
        second.backward()
        optimizer.step()
        losses += [first.item(), second.item()]
    return losses


def shared_trunk(module: Any) -> list[float]:
    """Both views of a batch go through one network before either goes back."""
    optimizer, batches, losses = sgd(module), data(module), []
    for step in range(STEPS):
        x, target, _ = batches[step % 4]
        one, two = module(x), module(x.flip(3))
        loss = F.cross_entropy(one[0] + two[0], target) + F.mse_loss(one[1], two[1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def frozen_encoder(module: Any) -> list[float]:
    module.trunk.eval()
    module.trunk.requires_grad_(False)
    losses = one_loss(module)
    assert all(each.grad is None for each in module.trunk.parameters())
    return losses


def moving_average(module: Any) -> list[float]:
    """With evaluation in between, of the network and of the average."""
    optimizer, batches, losses = sgd(module), data(module), []
    own = getattr(module, "original", module)
    average = AveragedModel(own, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    for step in range(STEPS):
        x, target, _ = batches[step % 4]
        loss = F.cross_entropy(module(x)[0], target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update_parameters(own)
        losses.append(loss.item())
        if step % 7 == 0:
            module.eval()
            with torch.no_grad():
                losses += [float(net.eval()(x)[0].mean()) for net in (module, average)]
            module.train()
    own.load_state_dict(average.module.state_dict())
    return losses


def accumulation(module: nn.Module) -> list[float]:
    """The last batch is smaller, so that there are two sizes."""
    optimizer, batches, losses = sgd(module), data(module), []
    for _ in range(STEPS // 4):
        optimizer.zero_grad()
        for x, target, _ in [*batches[:3], tuple(each[:5] for each in batches[3])]:
            loss = F.cross_entropy(module(x)[0], target) / 4
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
    return losses


PROGRAMS: dict[str, tuple[Callable[[], nn.Module], Callable[[Any], list[float]]]] = {
    "custom layer": (lambda: Network(Custom()), one_loss),
    "two losses": (Network, two_losses),
    "shared trunk": (Network, shared_trunk),
    "frozen encoder": (Network, frozen_encoder),
    "moving average": (Network, moving_average),
    "accumulation": (Network, accumulation),
}


def check(name: str, device: str, seeds: int) -> None:
    make, program = PROGRAMS[name]
    found = []
    for seed in range(seeds):
        torch.manual_seed(seed)
        ours, theirs, fast = errors_of(make(), program, device)
        found.append((ours, theirs))
        kept = trained_programs(fast)
        assert len(kept) == (2 if name == "accumulation" else 1)
        assert all(len(each.parts) == (2 if name == "custom layer" else 1) for each in kept)
    assert is_near(found), found


def test_program_briefly() -> None:
    """The one whose step is cut in two."""
    check("custom layer", "reference", 3)


@pytest.mark.full
@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str, device: str) -> None:
    check(name, device, 5)


@pytest.mark.gpu
@pytest.mark.parametrize("name", PROGRAMS)
def test_program_on_a_gpu(name: str) -> None:
    check(name, "cuda", 5)
