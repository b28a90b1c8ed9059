"""What programs have in common: a small network, and loops that train and evaluate."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.torch.programs.harness import Run


class Around(nn.Module):
    """A linear layer, something in the middle that a program is about, and another linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.head = nn.Linear(8, 2)
        self.setup()

    def setup(self) -> None:
        """Makes what ``middle`` needs."""

    def middle(self, y: torch.Tensor) -> torch.Tensor:
        return y

    def forward(self, x: torch.Tensor, *more: Any, **named: Any) -> Any:
        return self.head(self.middle(self.first(x).relu()))


def around(middle: nn.Module) -> nn.Module:
    """Such a network of a module in its middle."""
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), middle, nn.Linear(8, 2))


def convolutional() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 2),
    )


def train(run: Run, net: nn.Module, fast: Any, steps: int, shape: Any = (3, 4)) -> None:
    """Trains with SGD, and evaluates once in the middle and once at the end."""
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.5)
    for step in range(steps):
        x = run.randn(*shape)
        optimizer.zero_grad()
        y = fast(x)
        loss = F.mse_loss(y, torch.ones_like(y))
        loss.backward()
        optimizer.step()
        run.step(y, loss, net)
        if step in (1, steps - 1):
            fast.eval()
            with torch.no_grad():
                run.step(fast(x), net)
            fast.train()
