"""Layers beside PyTorch's of the same name and arguments, and inputs for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from minidnn import layers as L


@dataclass(frozen=True)
class Case:
    """A layer that both have under one name, its arguments, and the shapes of its inputs."""

    name: str
    arguments: tuple[Any, ...]
    shapes: tuple[tuple[int, ...], ...]
    options: dict[str, Any] = field(default_factory=dict)
    #: What it is called with besides inputs.
    call: dict[str, Any] = field(default_factory=dict)

    def theirs(self) -> torch.nn.Module:
        made: Callable[..., torch.nn.Module] = getattr(torch.nn, self.name)
        return made(*self.arguments, **self.options).double().eval()

    def ours(self) -> L.Layer:
        made: Callable[..., L.Layer] = getattr(L, self.name)
        return made(*self.arguments, **self.options)

    def __str__(self) -> str:
        options = (f"{name}={value}" for name, value in self.options.items())
        called = f" {', '.join(self.call)}" if self.call else ""
        return f"{self.name}({', '.join((*map(str, self.arguments), *options))}){called}"


def case(name: str, *arguments: Any, x: tuple[int, ...], **options: Any) -> Case:
    return Case(name, arguments, (x,), options)


IMAGE = (2, 6, 5, 7)
ROW = (2, 6, 11)

NORMALIZATIONS = [
    case("GroupNorm", 3, 6, x=IMAGE),
    case("GroupNorm", 1, 6, x=ROW, eps=1e-3),
    case("GroupNorm", 2, 6, x=IMAGE, affine=False),
    case("GroupNorm", 6, 6, x=(1, 6, 1, 3)),
    case("GroupNorm", 2, 6, x=(3, 6)),
    case("LayerNorm", 7, x=IMAGE),
    case("LayerNorm", (6, 5, 7), x=IMAGE, eps=1e-2),
    case("LayerNorm", [11], x=ROW, elementwise_affine=False),
    case("LayerNorm", (6,), x=(3, 6), bias=False),
    case("InstanceNorm2d", 6, x=IMAGE),
    case("InstanceNorm2d", 6, x=IMAGE, affine=True),
    case("InstanceNorm2d", 6, x=IMAGE, affine=True, track_running_stats=True),
    case("InstanceNorm2d", 6, x=IMAGE, track_running_stats=True, eps=0.1),
    case("InstanceNorm1d", 6, x=ROW, affine=True),
    case("InstanceNorm1d", 6, x=ROW, track_running_stats=True),
    case("BatchNorm1d", 6, x=ROW),
    case("BatchNorm1d", 6, x=(4, 6), affine=False),
]

CONVOLUTIONS = [
    case("Conv1d", 6, 4, 3, x=ROW),
    case("Conv1d", 6, 4, (4,), x=ROW, stride=2, padding=3, dilation=2, bias=False),
    case("Conv1d", 6, 9, 2, x=ROW, groups=3, padding="same"),
    case("Conv1d", 6, 6, 3, x=ROW, groups=6, padding="valid"),
    case("Conv1d", 6, 2, 5, x=ROW, padding=4, padding_mode="reflect"),
    case("Conv1d", 6, 2, 2, x=ROW, padding="same", padding_mode="replicate"),
    case("Conv1d", 6, 2, 5, x=ROW, padding=(2,), padding_mode="circular", stride=3),
    case("Conv2d", 6, 3, 3, x=IMAGE, padding=(2, 1), padding_mode="reflect"),
    case("Conv2d", 6, 3, (3, 2), x=IMAGE, padding="same", padding_mode="circular"),
    case("Conv2d", 6, 3, 3, x=IMAGE, padding=1, padding_mode="replicate", stride=2, groups=3),
]

CONVOLUTIONS += [
    case("ConvTranspose2d", 6, 4, 3, x=IMAGE),
    case("ConvTranspose2d", 6, 4, (3, 2), (2, 3), (1, 0), (1, 2), 2, False, x=IMAGE),
    case("ConvTranspose2d", 6, 6, 4, x=IMAGE, stride=2, padding=1, groups=6),
    case("ConvTranspose2d", 6, 3, 2, x=IMAGE, dilation=(2, 3), stride=2, output_padding=1),
    case("ConvTranspose1d", 6, 4, 4, x=ROW, stride=2, padding=1),
    case("ConvTranspose1d", 6, 3, 3, 3, 2, 1, 3, x=ROW),
    case("ConvTranspose1d", 6, 2, 1, x=ROW, stride=3, bias=False),
]

PADDINGS = [
    case(f"{kind}Pad{axes}d", padding, x=shape)
    for kind in ("Zero", "Reflection", "Replication", "Circular")
    for axes, padding, shape in (
        (1, 3, ROW),
        (1, (0, 2), ROW),
        (2, 2, IMAGE),
        (2, (1, 0, 3, 2), IMAGE),
    )
]
PADDINGS += [
    case("ZeroPad2d", (-1, 2, 0, -2), x=IMAGE),
    case("ConstantPad1d", (2, 1), 1.5, x=ROW),
    case("ConstantPad2d", (0, 1, -1, 2), float("-inf"), x=IMAGE),
    case("ReplicationPad1d", (-2, 1), x=ROW),
]

RESIZING = [
    case("Upsample", x=IMAGE, size=(7, 3)),
    case("Upsample", x=IMAGE, scale_factor=2),
    case("Upsample", x=IMAGE, scale_factor=(1.7, 0.6), mode="nearest-exact"),
    case("Upsample", x=ROW, scale_factor=1.3, mode="linear"),
    case("Upsample", x=ROW, size=4),
    case("Upsample", x=IMAGE, scale_factor=2.0, mode="bilinear"),
    case("Upsample", x=IMAGE, size=(9, 4), mode="bilinear", align_corners=True),
    case("Upsample", x=IMAGE, scale_factor=1.6, mode="bicubic", recompute_scale_factor=True),
]

ACTIVATIONS = [
    case("PReLU", x=IMAGE),
    case("PReLU", 6, x=IMAGE, init=-0.5),
    case("PReLU", 6, x=(2, 6)),
    case("PReLU", 1, x=ROW),
]

ACTIVATIONS += [case(name, x=IMAGE) for name in ("SELU", "Softsign", "Tanhshrink", "Softmax2d")]
ACTIVATIONS += [case(name, x=ROW) for name in ("CELU", "Mish", "Softplus", "LogSigmoid")]
ACTIVATIONS += [
    case("CELU", 0.3, x=IMAGE),
    case("Softplus", 2.5, 1.5, x=IMAGE),
    case("Hardtanh", x=IMAGE),
    case("Hardtanh", -0.3, 1.5, x=ROW),
    case("Softshrink", 0.4, x=IMAGE),
    case("Hardshrink", x=IMAGE),
    case("Threshold", 0.2, -3.0, x=IMAGE),
    case("GLU", x=(2, 6, 8)),
    case("GLU", 1, x=IMAGE),
    case("Softmin", 1, x=IMAGE),
]

POOLING = [
    case("MaxPool1d", 3, x=ROW),
    case("MaxPool1d", 4, 2, 2, 2, x=ROW, ceil_mode=True),
    case("AvgPool1d", 3, x=ROW),
    case("AvgPool1d", (4,), (3,), 2, True, False, x=ROW),
    case("AdaptiveAvgPool1d", 4, x=ROW),
    case("AdaptiveAvgPool1d", 1, x=ROW),
    case("AdaptiveMaxPool1d", 4, x=ROW),
    case("AdaptiveMaxPool1d", 11, x=ROW),
    case("AdaptiveMaxPool2d", 1, x=IMAGE),
    case("AdaptiveMaxPool2d", (3, None), x=IMAGE),
    case("AdaptiveMaxPool2d", (9, 2), x=IMAGE),
    case("LPPool1d", 2, 3, x=ROW),
    case("LPPool2d", 3, (2, 3), (1, 2), x=IMAGE),
    case("LPPool2d", 1, 2, x=IMAGE),
]

REARRANGING = [
    case("PixelShuffle", 2, x=(2, 12, 3, 5)),
    case("PixelShuffle", 1, x=(12, 3, 5)),
    case("PixelUnshuffle", 3, x=(2, 2, 9, 6)),
    case("ChannelShuffle", 3, x=IMAGE),
    case("ChannelShuffle", 2, x=ROW),
    case("Unflatten", 1, (3, 2), x=IMAGE),
    case("Unflatten", -1, (-1, 11), x=ROW),
    case("Unfold", 3, x=IMAGE),
    case("Unfold", (2, 3), (2, 1), (1, 2), (1, 3), x=IMAGE),
    case("Fold", (6, 8), 2, stride=2, x=(2, 12, 12)),
    case("Fold", (5, 7), 3, x=(2, 18, 15)),
    case("Fold", (7, 9), (2, 3), (2, 1), (1, 2), (3, 2), x=(3, 12, 18)),
]

SCALING = [
    case("LocalResponseNorm", 3, x=IMAGE),
    case("LocalResponseNorm", 4, 0.5, 0.6, 2.0, x=IMAGE),
    case("LocalResponseNorm", 9, 1.0, x=ROW),
    case("RMSNorm", 7, x=IMAGE, eps=1e-3),
    case("RMSNorm", (5, 7), x=IMAGE, eps=1e-5, elementwise_affine=False),
    *(case(name, x=IMAGE, p=0.3) for name in ("AlphaDropout", "FeatureAlphaDropout")),
    case("Dropout1d", x=ROW),
]

SEQUENCE = (5, 2, 8)
MASK = np.random.default_rng(7).random((5, 7)) < 0.4
MASK[:, 2] = False
PADDED = np.zeros((2, 7), bool)
PADDED[1, 5:] = True


def attention(*shapes: tuple[int, ...], call: dict[str, Any] | None = None, **options: Any) -> Case:
    return Case("MultiheadAttention", (8, 2), shapes, options, call or {})


ATTENTION = [
    attention(SEQUENCE, SEQUENCE, SEQUENCE),
    attention((2, 5, 8), (2, 7, 8), (2, 7, 8), batch_first=True, bias=False),
    attention(SEQUENCE, (7, 2, 3), (7, 2, 9), kdim=3, vdim=9),
    attention((5, 8), (7, 8), (7, 8)),
    attention((5, 2, 8), (7, 2, 8), (7, 2, 8), call={"attn_mask": MASK, "need_weights": False}),
    attention(
        *((2, 5, 8), (2, 7, 8), (2, 7, 8)),
        batch_first=True,
        call={"attn_mask": MASK, "key_padding_mask": PADDED, "average_attn_weights": False},
    ),
    attention(
        *(SEQUENCE, (7, 2, 8), (7, 2, 8)),
        call={"attn_mask": np.round(np.random.default_rng(8).standard_normal((4, 5, 7)), 0)},
    ),
]

TRANSFORMERS = [
    Case("TransformerEncoderLayer", (8, 2, 12), (SEQUENCE,)),
    Case(
        "TransformerEncoderLayer",
        (8, 4, 5, 0.2, "gelu", 1e-3, True, True, False),
        ((2, 5, 8),),
        call={"src_key_padding_mask": PADDED[:, 2:]},
    ),
    Case("TransformerDecoderLayer", (8, 2, 12), (SEQUENCE, (7, 2, 8)), call={"memory_mask": MASK}),
    Case("TransformerDecoderLayer", (8, 2, 12), (SEQUENCE, (7, 2, 8)), {"norm_first": True}),
]

CASES = [*NORMALIZATIONS, *CONVOLUTIONS, *PADDINGS, *ACTIVATIONS, *RESIZING, *ATTENTION]
CASES += [*POOLING, *REARRANGING, *SCALING, *TRANSFORMERS]
