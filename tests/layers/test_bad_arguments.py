"""An argument that does not fit is one error: it names argument, value and what would be valid."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.errors import GraphError
from minidnn.graph import operators as ops
from minidnn.graph.types import TensorType
from minidnn.graph.window import Window, WindowAxis, average_window

ARGUMENTS: list[tuple[Callable[[], Any], str]] = [
    (lambda: L.Conv2d(0, 1, 1), "Conv2d: in_channels=0; valid is an int of at least 1"),
    (lambda: L.Conv2d(3, -4, 1), "Conv2d: out_channels=-4; valid is an int of at least 1"),
    (lambda: L.Conv2d(3, 4, 0), "Conv2d: kernel_size=0; valid is an int >= 1 or a pair of them"),
    (
        lambda: L.Conv2d(3, 4, (3, 3, 3)),  # type: ignore[arg-type]
        "Conv2d: kernel_size=(3, 3, 3); valid is an int >= 1 or a pair of them",
    ),
    (lambda: L.Conv2d(3, 4, 3, 0), "Conv2d: stride=0; valid is an int >= 1 or a pair of them"),
    (
        lambda: L.Conv2d(3, 4, 3, padding=-1),
        "Conv2d: padding=-1; valid is an int >= 0 or a pair of them",
    ),
    (
        lambda: L.Conv2d(3, 4, 3, padding=((0, 1), (0, -1))),
        "Conv2d: padding for columns=(0, -1); valid is an int >= 0 or a pair of them",
    ),
    (
        lambda: L.Conv2d(3, 4, 3, padding="full"),
        "Conv2d: padding='full'; valid are 'same', 'valid', an int or pairs of ints",
    ),
    (
        lambda: L.Conv2d(3, 4, 3, 2, "same"),
        "Conv2d: padding='same' with stride=(2, 2); valid is stride 1",
    ),
    (
        lambda: L.Conv2d(3, 4, 3, dilation=0),
        "Conv2d: dilation=0; valid is an int >= 1 or a pair of them",
    ),
    (
        lambda: L.Conv2d(3, 4, 3, groups=3),
        "Conv2d: groups=3 does not divide out_channels=4; valid is a common divisor of "
        "in_channels and out_channels",
    ),
    (
        lambda: L.Conv2d(3, 4, 3, padding_mode="mirror"),
        "Conv2d: padding_mode='mirror'; valid are 'zeros', 'reflect', 'replicate', 'circular'",
    ),
    (lambda: L.Linear(2.0, 1), "Linear: in_features=2.0; valid is an int of at least 1"),  # type: ignore[arg-type]
    (lambda: L.Linear(True, 1), "Linear: in_features=True; valid is an int of at least 1"),
    (lambda: L.BatchNorm2d(0), "BatchNorm2d: num_features=0; valid is an int of at least 1"),
    (
        lambda: L.BatchNorm2d(1, track_running_stats=False),
        "BatchNorm2d: track_running_stats=False; valid is True, as inference needs stored "
        "statistics",
    ),
    (
        lambda: L.BatchNorm2d(1, -1e-5),
        "BatchNorm(eps=-1e-05): eps=-1e-05; valid is a number of at least 0",
    ),
    (lambda: L.Conv1d(3, 4, (3, 3)), "Conv1d: kernel_size=(3, 3); valid is an int of at least 1"),
    (lambda: L.Conv1d(3, 4, 3, stride=0), "Conv1d: stride=0; valid is an int of at least 1"),
    (
        lambda: L.Conv1d(3, 4, 3, stride=2, padding="same"),
        "Conv1d: padding='same' with stride=(2,); valid is stride 1",
    ),
    (
        lambda: L.GroupNorm(3, 4),
        "GroupNorm: num_groups=3 does not divide num_channels=4; valid is a divisor",
    ),
    (lambda: L.GroupNorm(0, 4), "GroupNorm: num_groups=0; valid is an int of at least 1"),
    (
        lambda: L.LayerNorm(()),
        "LayerNorm: normalized_shape=(); valid is an int of at least 1, or a sequence of them",
    ),
    (lambda: L.InstanceNorm2d(0), "InstanceNorm2d: num_features=0; valid is an int of at least 1"),
    (lambda: L.PReLU(0), "PReLU: num_parameters=0; valid is an int of at least 1"),
    (lambda: L.PReLU(init="a"), "PReLU: init='a'; valid is a number"),  # type: ignore[arg-type]
    (lambda: L.ZeroPad2d((1, 2)), "ZeroPad2d: padding=(1, 2); valid is an int or 4 of them"),
    (lambda: L.ReflectionPad1d(1.5), "ReflectionPad1d: padding=1.5; valid is an int or 2 of them"),  # type: ignore[arg-type]
    (lambda: L.ConstantPad1d(1, "0"), "ConstantPad1d: value='0'; valid is a number"),  # type: ignore[arg-type]
    (
        lambda: L.ConvTranspose2d(2, 2, 3, 2, output_padding=2),
        "ConvTranspose2d: output_padding=2 with stride=2 and dilation=1; valid is less than one",
    ),
    (
        lambda: L.ConvTranspose1d(2, 2, 3, padding_mode="reflect"),
        "ConvTranspose1d: padding_mode='reflect'; valid is 'zeros'",
    ),
    (
        lambda: L.MultiheadAttention(8, 3),
        "MultiheadAttention: num_heads=3 does not divide embed_dim=8; valid is a divisor",
    ),
    (
        lambda: L.MultiheadAttention(8, 2, add_zero_attn=True),
        "MultiheadAttention: add_zero_attn=True; valid is False",
    ),
    (lambda: L.Upsample(), "Upsample: size=None, scale_factor=None; valid is one of them"),
    (
        lambda: L.Upsample(2, mode="area"),
        "Upsample: mode='area'; valid are 'nearest', 'nearest-exact', 'linear', 'bilinear', 'bicu",
    ),
    (
        lambda: L.Upsample(2, align_corners=True),
        "Upsample: align_corners=True with mode='nearest'; valid is None",
    ),
    (lambda: L.MaxPool2d(0), "MaxPool2d: kernel_size=0; valid is an int >= 1 or a pair of them"),
    (lambda: L.MaxPool2d(2, 0), "MaxPool2d: stride=0; valid is an int >= 1 or a pair of them"),
    (
        lambda: L.MaxPool2d(2, padding=True),
        "MaxPool2d: padding=True; valid is an int >= 0 or a pair of them",
    ),
    (
        lambda: L.MaxPool2d(3, padding=2),
        "MaxPool2d(kernel_size=(3, 3), stride=(3, 3), padding=(2, 2)): padding=(2, 2) is more "
        "than half of kernel_size=(3, 3); valid is at most half, so that no window is "
        "padding alone",
    ),
    (
        lambda: L.MaxPool2d(2, return_indices=True),
        "MaxPool2d: return_indices=True; valid is False",
    ),
    (
        lambda: L.AvgPool2d(2, divisor_override=0),
        "AvgPool2d(kernel_size=(2, 2), stride=(2, 2), divisor_override=0): divisor_override=0; "
        "valid is a non-zero int or None",
    ),
    (
        lambda: L.AdaptiveAvgPool2d(0),
        "AdaptiveAvgPool2d(output_size=(0, 0)): output_size=(0, 0); valid is a pair of ints of "
        "at least 1 or None",
    ),
    (
        lambda: L.AdaptiveAvgPool2d((1, 2, 3)),  # type: ignore[arg-type]
        "AdaptiveAvgPool2d(output_size=(1, 2, 3)): output_size=(1, 2, 3); valid is a pair of",
    ),
    (lambda: L.Dropout(1.5), "Dropout(p=1.5): p=1.5; valid is a probability from 0 to 1"),
    (lambda: L.Dropout(float("nan")), "Dropout(p=nan): p=nan; valid is a probability"),
    (
        lambda: L.LeakyReLU("0.1"),  # type: ignore[arg-type]
        "LeakyReLU(negative_slope=0.1): negative_slope='0.1' is a str; valid is a number",
    ),
    (lambda: L.ELU(None), "ELU(alpha=None): alpha=None is a NoneType; valid is a number"),  # type: ignore[arg-type]
    (
        lambda: L.GELU("erf"),
        "GELU(approximate=erf): approximate='erf'; valid are 'none' and 'tanh'",
    ),
    (lambda: L.Softmax(1.0), "Softmax(dim=1.0): dim=1.0; valid is an int"),  # type: ignore[arg-type]
    (lambda: L.Concat("1"), "Concat(axis=1): axis='1'; valid is an int"),  # type: ignore[arg-type]
    (lambda: L.Flatten(None), "Flatten(start_dim=None): start_dim=None; valid is an int"),  # type: ignore[arg-type]
    (lambda: L.Reshape(2, 3.0), "Reshape: shape=(2, 3.0); valid are ints, one of them may be -1"),  # type: ignore[arg-type]
    (
        lambda: L.Reshape(-1, -1),
        "Reshape(shape=(-1, -1)): shape=(-1, -1); valid are non-negative sizes, and -1 at most "
        "once",
    ),
    (
        lambda: L.Sequential(L.ReLU(), L.Tanh),  # type: ignore[arg-type]
        "Sequential: entry '1' is <class 'minidnn.layers.activations.Tanh'> (type); valid are "
        "layers",
    ),
    (
        lambda: L.Sequential([L.ReLU()]),  # type: ignore[arg-type]
        "Sequential: entry '0' is [ReLU()] (list); valid are layers",
    ),
    (
        lambda: L.Sequential({"a.b": L.ReLU()}),
        "Sequential: name 'a.b'; valid is a non-empty name without dots that is no attribute of "
        "Sequential and begins with no underscore",
    ),
    (lambda: L.Sequential({"forward": L.ReLU()}), "Sequential: name 'forward'; valid is a non-"),
    (lambda: L.Sequential({"": L.ReLU()}), "Sequential: name ''; valid is a non-empty name"),
    (lambda: L.Sequential({3: L.ReLU()}), "Sequential: name 3; valid is a non-empty name"),  # type: ignore[dict-item]
    (
        lambda: L.Sequential({"1": L.ReLU()}).append(L.ReLU()),
        "Sequential: the name '1' of the new layer is taken",
    ),
    (
        lambda: L.Sequential(L.ReLU())[1],
        "Sequential: index 1; valid is an int from -1 to 0, as it has 1 layers",
    ),
    (lambda: L.LayerList()["0"], "LayerList: index '0'; valid is an int from 0 to -1, as"),  # type: ignore[index]
    (lambda: L.ReLU().named("a.b"), "name='a.b'; valid is a non-empty name without dots"),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("wrong", "text"), ARGUMENTS, ids=[text[:60] for _, text in ARGUMENTS])
def test_arguments(wrong: Callable[[], Any], text: str) -> None:
    with pytest.raises(GraphError, match=f"^{re.escape(text)}"):
        wrong()


#: Operators are made by loaded graphs too, without a layer that checks their attributes.
OPERATORS: list[tuple[Callable[[], Any], str]] = [
    (lambda: ops.Conv2d(stride=(0, 1)), "stride=(0, 1); valid is a pair of ints of at least 1"),
    (lambda: ops.Conv2d(stride=2), "Conv2d(stride=2): stride=2; valid is a pair of ints"),  # type: ignore[arg-type]
    (
        lambda: ops.Conv2d(padding=((0, 0), (0, -1))),
        "padding=((0, 0), (0, -1)); valid is ((top, bottom), (left, right)), ints of at least 0",
    ),
    (lambda: ops.Conv2d(padding=1), "padding=1; valid is ((top, bottom), (left, right))"),  # type: ignore[arg-type]
    (lambda: ops.Conv2d(groups=1.0), "Conv2d(): groups=1.0; valid is an int"),  # type: ignore[arg-type]
    (lambda: ops.MaxPool2d((0, 1), (1, 1)), "kernel_size=(0, 1); valid is a pair of ints"),
    (lambda: ops.MaxPool2d(2, 2), "kernel_size=2; valid is a pair of ints of at least 1"),  # type: ignore[arg-type]
    (lambda: ops.MaxPool2d([2, 2], (1, 1)), "kernel_size=[2, 2]; valid is a pair of ints"),  # type: ignore[arg-type]
    (lambda: ops.MaxPool2d((1, 1), (1, 0)), "stride=(1, 0); valid is a pair of ints of at least 1"),
    (lambda: ops.MaxPool2d((1, 1), (True, 1)), "stride=(True, 1); valid is a pair of ints"),
    (
        lambda: ops.AvgPool2d((2, 2), (1, 1), (-1, 0)),
        "padding=(-1, 0); valid is a pair of ints of at least 0",
    ),
    (
        lambda: ops.MaxPool2d((2, 2), (1, 1), dilation=(0, 1)),
        "dilation=(0, 1); valid is a pair of ints of at least 1",
    ),
    (lambda: ops.Pool2d(3), "Pool2d(shape=3): shape=3; valid is a Window"),  # type: ignore[arg-type]
    *(
        (
            lambda axes=axes, pool=pool: ops.Pool2d(pool(*axes)),  # type: ignore[misc]
            f"{told} positions of the window, so that no window is padding alone",
        )
        for pool in (partial(Window, reduction="max"), average_window)
        for told, axes in (
            (
                "padding=(2, 0) of kernel=2, dilation=1; valid is less than the 2",
                (WindowAxis(2, 1, (2, 0)), WindowAxis(2)),
            ),
            (
                "padding=(0, 1) of kernel=1, dilation=1; valid is less than the 1",
                (WindowAxis(1, 2, (0, 1)), WindowAxis(2, 1, (1, 1))),
            ),
            (
                "padding=(1, 4) of kernel=2, dilation=3; valid is less than the 4",
                (WindowAxis(3), WindowAxis(2, 1, (1, 4), 3)),
            ),
        )
    ),
    (lambda: ops.GroupNorm(0), "groups=0; valid is an int of at least 1"),
    (
        lambda: ops.GroupNorm(2).infer(TensorType((1, 3, 4))),
        "groups=2 of an input (1, 3, 4); valid are divisors of its 3 channels",
    ),
    (
        lambda: ops.GroupNorm(3).infer(TensorType((1, 3, 4)), TensorType((3,))),
        "it has a weight alone; valid are weight and bias, or neither",
    ),
    (
        lambda: ops.GroupNorm(3).infer(TensorType((1, 3)), TensorType((3,)), TensorType((4,))),
        "bias has shape (4,); valid is (3,)",
    ),
    (lambda: ops.AdaptiveAvgPool2d(1), "output_size=1; valid is a pair of ints"),  # type: ignore[arg-type]
    (lambda: ops.Unfold2d(2), "kernel_size=2; valid is a pair of ints of at least 1"),  # type: ignore[arg-type]
    (lambda: ops.Transpose(3), "dims=3; valid is each axis once, from 0 on"),  # type: ignore[arg-type]
    (lambda: ops.Slice(1, 1, 1), "valid is a start and a size of at least 0 and a step"),  # type: ignore[arg-type]
    (lambda: ops.Expand([2]), "shape=[2]; valid are non-negative sizes"),  # type: ignore[arg-type]
    (lambda: ops.Pad(1, 1), "before=1, after=1; valid are two ints of at least 0 an axis"),  # type: ignore[arg-type]
    (lambda: ops.Take((1,)), "Take: indices=(1,); valid is a tuple with, for each axis, None or"),  # type: ignore[arg-type]
    (lambda: ops.Reshape(3), "shape=3; valid are non-negative sizes, and -1 at most once"),  # type: ignore[arg-type]
    (lambda: ops.View(3), "shape=3; valid are non-negative sizes"),  # type: ignore[arg-type]
    (lambda: ops.Reduce("mean", 2), "dims=2; valid are different axes from 0 on, in order"),  # type: ignore[arg-type]
    (lambda: ops.Formula(3), "Formula: body=3; valid is a scalar expression"),  # type: ignore[arg-type]
    (
        lambda: ops.AvgPool2d((2, 2), (1, 1), divisor_override=2.5),  # type: ignore[arg-type]
        "divisor_override=2.5; valid is a non-zero int or None",
    ),
    (
        lambda: ops.Formula(md.scalar.argument(2), 2),
        "the expression takes 3 operands, but 2 tensors and 0 channel vectors are declared",
    ),
    (
        lambda: ops.Formula(md.scalar.argument(0) > 1),
        "the expression is a comparison; valid is a number: where(comparison, 1.0, 0.0)",
    ),
]


@pytest.mark.parametrize(("wrong", "text"), OPERATORS, ids=[text[:60] for _, text in OPERATORS])
def test_operators(wrong: Callable[[], Any], text: str) -> None:
    with pytest.raises(GraphError, match=f"{re.escape(text)}"):
        wrong()
