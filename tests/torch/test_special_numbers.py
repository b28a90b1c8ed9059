"""NaN, infinities, zeros of either sign and large numbers come out as of PyTorch's operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import minidnn as md
from tests.devices import unavailable
from tests.sampling import only

INFINITY, NAN = float("inf"), float("nan")
NUMBERS = torch.tensor(
    [NAN, INFINITY, -INFINITY, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -2.5, 2.0, -3.0, 30.0, -60.0]
)


class Calls(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs)


def of_one(x: torch.Tensor) -> Any:
    return [
        *(x**power for power in (0, 0.5, -0.5, 2.5, -1.5, 5, -3, 0.75)),
        *(base**x for base in (2.0, 0.5, 1.0, 0.0)),
        *(torch.exp2(x), torch.log2(x), torch.log10(x), torch.sin(x), torch.cos(x), torch.atan(x)),
        *(x.floor(), x.ceil(), x.round(), x.trunc(), x.sign(), x.isnan()),
        *(F.logsigmoid(x), F.hardshrink(x), F.softshrink(x), F.threshold(x, 0.1, 7.0), F.rrelu(x)),
        *(x > 0, x >= 0, x < 0, x <= 0, x == 0, x != 0, x == INFINITY),
        *(torch.where(x > 0, x, 0.5), x.masked_fill(x < 0, -INFINITY)),
    ]


def of_two(x: torch.Tensor, y: torch.Tensor) -> Any:
    return [
        *(x**y, torch.clamp(x, y, 1 - y), torch.max(x, y), torch.min(x, y)),
        *(torch.addcmul(x, y, y, value=0.5), torch.addcdiv(x, y, x, value=2)),
        *(torch.lerp(x, y, 0.25), torch.lerp(x, y, y)),
        *(x > y, x >= y, x < y, x <= y, x == y, x != y),
        torch.where(x > y, x, y),
    ]


def of_rows(x: torch.Tensor) -> Any:
    return [
        *(*x.max(1), *x.min(1), x.argmax(1), x.argmin(1), x.argmax(), x.argmin()),
        *(x.prod(1), (x * 0).any(1), (x + 1).all(1), x.logsumexp(1)),
        *(x.var(1), x.std(0), F.normalize(x), F.cosine_similarity(x, x.flip(0))),
        *(
            torch.linalg.vector_norm(x, order, 1)
            for order in (2, 1, 0, 3, 0.5, INFINITY, -INFINITY)
        ),
    ]


def of_images(x: torch.Tensor) -> Any:
    return [
        *(F.interpolate(x, size, mode="bicubic") for size in ((8, 9), (5, 17))),
        F.interpolate(x, (9, 11), mode="bicubic", align_corners=True),
        *(F.interpolate(x, size, mode="bilinear") for size in ((8, 9), (8, 11), (5, 17))),
        F.interpolate(x, (9, 11), mode="bilinear", align_corners=True),
        *(F.adaptive_max_pool2d(x, size) for size in (1, 3, (8, 4))),
        *(F.unfold(x.relu(), 3, padding=1).sqrt(), x.tril(), x.triu(1)),
    ]


def of_long_rows(x: torch.Tensor) -> Any:
    return [x.softmax(1), x.log_softmax(1), x.softmax(0)]


@pytest.mark.parametrize("device", only(["cpu"], ["reference", "cpu"]))
def test_they_give_what_pytorch_gives(device: str) -> None:
    if unavailable(device) is not None:
        pytest.skip(f"{device} cannot be used here")
    pairs = torch.cartesian_prod(NUMBERS, NUMBERS).T.contiguous()
    rows = torch.cat([pairs.T, torch.cartesian_prod(NUMBERS[3:], NUMBERS[3:])])
    rows = torch.cat([rows, torch.full((1, 2), 1e30), torch.full((1, 2), -INFINITY)])
    images = torch.randn((1, 2, 8, 9), generator=torch.Generator().manual_seed(0))
    images[0, 0, 2, 3], images[0, 0, 7, 8], images[0, 1, 5, 5] = NUMBERS[:3]
    long = torch.randn((6, 67), generator=torch.Generator().manual_seed(0))
    long[0, :50], long[1, 13:], long[2, ::3] = -INFINITY, -104.5, -103.0
    long[3, 40], long[4, 66], long[5] = INFINITY, NAN, -INFINITY
    of = (
        (of_long_rows, (long,)),
        (of_one, (NUMBERS,)),
        (of_two, tuple(pairs)),
        (of_rows, (rows,)),
        (of_images, (images,)),
    )
    for function, inputs in of:
        module = Calls(function).eval()
        with torch.inference_mode():
            wanted = module(*inputs)
            found = md.optimize(module, inputs, device=device, strict=True)(*inputs)
        for place, (one, other) in enumerate(zip(found, wanted, strict=True)):
            torch.testing.assert_close(
                one,
                other,
                rtol=1e-5,
                atol=1e-6,
                equal_nan=True,
                msg=lambda text, place=place, name=function.__name__: f"{name} {place}: {text}",
            )
