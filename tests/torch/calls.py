"""Functions as modules, and what they are called with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Calls(nn.Module):
    """A function as a module, with weights of many shapes beside it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        random = torch.Generator().manual_seed(0)
        shapes = {
            "kernel": (6, 4, 3, 3),
            "narrow": (8, 1, 3, 2),
            "matrix": (5, 8),
            "vector": (4,),
            "five": (5,),
            "six": (6,),
            "plane": (4, 8, 8),
        }
        for name, shape in shapes.items():
            self.register_buffer(name, torch.randn(shape, generator=random))
        self.register_buffer("indices", torch.tensor([2, 0, 2]))
        self.register_buffer("variance", torch.rand(4, generator=random) + 0.5)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(self, *inputs)


Function = Callable[..., Any]


def example(shape: tuple[int, ...] = (2, 4, 8, 8)) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))
