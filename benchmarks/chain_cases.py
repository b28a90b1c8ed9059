"""BrainSlug's chain (section 5.1) and its relatives: the same network for PyTorch and minidnn."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

SIZES = {"56x56": (16, 128, 56, 56), "97x131": (4, 128, 97, 131), "224x224": (1, 128, 224, 224)}
"""Inputs and outputs of 26 MB each: together more than the last cache of the machines meant."""

VARIANTS = ("paper", "stride 2", "ceil_mode", "average", "residual")
"""How a chain of blocks <pooling, normalization, ReLU> pools.

"paper": by MaxPool2d(3, 1, 1).  "stride 2" and "ceil_mode": so too, but one block in the middle by
MaxPool2d(3, 2, 1) or MaxPool2d(3, 2, ceil_mode=True).  "average": by AvgPool2d(3, 1, 1).
"residual": as the paper's, but one block in the middle adds its input before the ReLU.
"""


@dataclass(frozen=True)
class Case:
    """A chain: one of VARIANTS, how many blocks, one of SIZES."""

    variant: str
    blocks: int
    size: str

    @property
    def key(self) -> str:
        return f"{self.variant}, {self.blocks} blocks, {self.size}"

    @property
    def shape(self) -> tuple[int, ...]:
        return SIZES[self.size]

    def describe(self) -> dict[str, Any]:
        return {"variant": self.variant, "blocks": self.blocks, "shape": self.shape}

    @property
    def options(self) -> dict[str, Any]:
        return {"variant": self.variant, "blocks": self.blocks, "channels": self.shape[1]}


CASES = (
    *(Case("paper", blocks, "56x56") for blocks in (1, 4, 16, 40)),
    *(Case("paper", blocks, size) for size in ("224x224", "97x131") for blocks in (4, 16, 40)),
    *(Case(variant, blocks, "56x56") for variant in VARIANTS[1:] for blocks in (4, 16)),
)


def inputs_of(case: Case) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(case.shape, np.float32)


def export_onnx(case: Case, path: Path) -> None:
    """Writes the chain as an ONNX file."""
    import torch

    network, x = with_torch(**case.options), torch.from_numpy(inputs_of(case))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter that needs no further package is the old one
        torch.onnx.export(network, (x,), path, dynamo=False)


def with_torch(variant: str, blocks: int, channels: int) -> Any:
    """The chain as a PyTorch module."""
    import torch
    from torch import nn

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.BatchNorm2d(channels))
            self.relu = nn.ReLU()

        def forward(self, x: Any) -> Any:
            return self.relu(x + self.block(x))

    net = nn.Sequential(*_layers(nn, Residual, variant, blocks, channels))
    state = _state({key: tuple(value.shape) for key, value in net.state_dict().items()})
    net.load_state_dict({key: torch.from_numpy(value) for key, value in state.items()})
    return net.eval()


def with_minidnn(variant: str, blocks: int, channels: int) -> Any:
    """The chain as a layer of minidnn."""
    from minidnn import layers as L

    class Residual(L.Layer):
        def __init__(self) -> None:
            self.block = L.Sequential(L.MaxPool2d(3, 1, 1), L.BatchNorm2d(channels))
            self.relu = L.ReLU()

        def forward(self, x: Any) -> Any:
            return self.relu(x + self.block(x))

    net = L.Sequential(*_layers(L, Residual, variant, blocks, channels))
    net.load_state_dict(_state({key: value.shape for key, value in net.state_dict().items()}))
    return net


def _layers(
    library: Any, residual: Callable[[], Any], variant: str, blocks: int, channels: int
) -> list[Any]:
    """The blocks, of a library with PyTorch's names."""
    found = []
    for number in range(blocks):
        middle = number == blocks // 2
        if variant == "residual" and middle:
            found.append(residual())
            continue
        if variant == "average":
            pool = library.AvgPool2d(3, 1, 1)
        elif variant == "stride 2" and middle:
            pool = library.MaxPool2d(3, 2, 1)
        elif variant == "ceil_mode" and middle:
            pool = library.MaxPool2d(3, 2, ceil_mode=True)
        else:
            pool = library.MaxPool2d(3, 1, 1)
        found.append(library.Sequential(pool, library.BatchNorm2d(channels), library.ReLU()))
    return found


def _state(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Random statistics and factors, of which half are negative: normalization is no identity, and
    no maximum passes through it."""
    random = np.random.default_rng(1)
    state = {}
    for key in sorted(shapes):
        shape = shapes[key]
        if key.endswith("num_batches_tracked"):
            state[key] = np.zeros(shape, np.int64)
            continue
        if key.endswith(("weight", "running_var")):
            value = random.uniform(0.5, 1.5, shape)
        else:
            value = random.standard_normal(shape) * 0.1
        if key.endswith("weight"):
            value *= np.where(random.permutation(shape[0]) % 2, -1.0, 1.0)
        state[key] = value.astype(np.float32)
    return state
