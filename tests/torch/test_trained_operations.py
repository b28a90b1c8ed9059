"""Blocks of today's networks that are trained: all is taken, and gradients are PyTorch's."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import minidnn as md
from tests.torch.test_trained import program

Shapes = list[tuple[int, ...]]


class Block(nn.Module):
    """A function of itself and of its arguments, with parameters of these shapes."""

    def __init__(self, function: Callable[..., Any], **shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.function = function
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.randn(shape)))

    def forward(self, *given: torch.Tensor) -> Any:
        return self.function(self, *given)


def attention(block: Any, q: Any, k: Any, v: Any, *mask: Any) -> Any:
    return F.scaled_dot_product_attention(q * block.w, k, v, *mask)


def causal(block: Any, q: Any, k: Any, v: Any) -> Any:
    return F.scaled_dot_product_attention(q * block.w, k, v, is_causal=True, scale=0.3)


def response(block: Any, x: Any) -> Any:
    """Global response normalization, channels last."""
    norm = torch.norm(x, p=2, dim=(1, 2), keepdim=True)
    return block.w * (x * (norm / (norm.mean(-1, keepdim=True) + 1e-6))) + block.b + x


def excitation(block: Any, x: Any) -> Any:
    y = F.conv2d(F.adaptive_avg_pool2d(x, 1), block.a).relu()
    return x * F.conv2d(y, block.b).sigmoid()


def efficient(block: Any, x: Any) -> Any:
    y = F.conv1d(x.mean((2, 3))[:, None], block.w, padding=1).sigmoid()
    return x * y[:, 0, :, None, None]


def across_channels(block: Any, x: Any) -> Any:
    """Cross-covariance attention: its products are of channels."""
    batch, tokens, channels = x.shape
    parts = F.linear(x, block.w).reshape(batch, tokens, 3, 2, channels // 2)
    q, k, v = parts.permute(2, 0, 3, 4, 1).unbind(0)
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    found = (q @ k.transpose(-2, -1)).softmax(-1) @ v
    return found.permute(0, 3, 1, 2).reshape(batch, tokens, channels)


def transformer(block: Any, x: Any, theta: Any) -> Any:
    """A spatial transformer, at places within and beyond the image."""
    grid = F.affine_grid(theta.view(2, 2, 3), [2, 4, 6, 3], align_corners=False)
    return F.grid_sample(x * block.w, grid, padding_mode="reflection", align_corners=False)


HEADS: Shapes = [(2, 2, 5, 4)] * 3
IMAGE: Shapes = [(2, 4, 5, 7)]
CASES: dict[str, tuple[Callable[[], nn.Module], Shapes]] = {
    "attention": (lambda: Block(attention, w=(4,)), HEADS),
    "attention with a mask": (lambda: Block(attention, w=(4,)), [*HEADS, (5, 5)]),
    "causal attention": (lambda: Block(causal, w=(4,)), HEADS),
    "layer scale": (lambda: Block(lambda b, x: x + b.w * F.gelu(x), w=(4, 1, 1)), IMAGE),
    "response normalization": (
        lambda: Block(response, w=(1, 1, 1, 4), b=(1, 1, 1, 4)),
        [(2, 5, 7, 4)],
    ),
    "squeeze and excitation": (lambda: Block(excitation, a=(2, 4, 1, 1), b=(4, 2, 1, 1)), IMAGE),
    "efficient channel attention": (lambda: Block(efficient, w=(1, 1, 3)), IMAGE),
    "attention of channels": (lambda: Block(across_channels, w=(12, 4)), [(2, 5, 4)]),
    "transposed convolution": (lambda: nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2), IMAGE),
    "dilated transposed convolution": (lambda: nn.ConvTranspose2d(4, 6, 3, dilation=2), IMAGE),
    "transposed convolution of rows": (lambda: nn.ConvTranspose1d(4, 6, 4, 2, 1), [(2, 4, 5)]),
    "spatial transformer": (lambda: Block(transformer, w=(4, 1, 1)), [*IMAGE, (2, 6)]),
    "encoder layer": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        [(2, 5, 8)],
    ),
}
FEW = (
    *("attention with a mask", "response normalization", "attention of channels"),
    *("transposed convolution", "spatial transformer"),
)


def check(name: str, device: str) -> None:
    """Against PyTorch's in float64."""
    make, shapes = CASES[name]
    torch.manual_seed(0)
    net = make().train()
    wide = copy.deepcopy(net).double()
    memory = "cuda" if device == "cuda" else "cpu"
    fast: Any = md.optimize(net.to(memory), device=device, strict=True)
    arrays = [0.7 * torch.randn(shape) for shape in shapes]
    results = []
    for module, where, dtype in ((fast, memory, torch.float32), (wide, "cpu", torch.float64)):
        given = [array.clone().to(where, dtype).requires_grad_() for array in arrays]
        y = module(*given)
        weight = torch.linspace(-1, 1, math.prod(y.shape), dtype=dtype, device=where)
        (y * weight.reshape(y.shape)).sum().backward()
        found = [y, *(x.grad for x in given), *(each.grad for each in module.parameters())]
        results.append([each.detach().double().cpu() for each in found])
    for one, other in zip(*results, strict=True):
        assert (one - other).abs().max() <= 2e-5 * other.abs().max() + 1e-6, name
    assert len(program(fast).parts) == 1


@pytest.mark.parametrize(
    "name", [each if each in FEW else pytest.param(each, marks=pytest.mark.full) for each in CASES]
)
def test_block(name: str) -> None:
    check(name, "reference")


@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
def test_block_on_the_cpu(name: str) -> None:
    check(name, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_block_on_a_gpu(name: str) -> None:
    check(name, "cuda")
