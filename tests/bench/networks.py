"""Networks for the tests of engines: the same one for PyTorch and for minidnn."""

from __future__ import annotations

from typing import Any


def with_torch(channels: int) -> Any:
    import torch

    return torch.nn.Sequential(torch.nn.MaxPool2d(3, 1, 1), torch.nn.ReLU())


def with_minidnn(channels: int) -> Any:
    from minidnn import layers as L

    return L.Sequential(L.MaxPool2d(3, 1, 1), L.ReLU())
