"""Operations that are not known, or not so, are left to PyTorch with the reason."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import minidnn as md
from minidnn.errors import UnsupportedError
from tests.torch.calls import Calls, Function, example

REFUSED: dict[str, tuple[Function, str]] = {
    "elu": (
        lambda m, x: torch.ops.aten.elu(x, 1, 2),
        "elu.default: scale=2, input_scale=1; known is 1",
    ),
    "bits": (
        lambda m, x: x.argmax(1) & 3,
        "__and__.Scalar: it is not known",
    ),
    "no bools": (
        lambda m, x: torch.logical_and(x, x.relu()),
        "operands have dtypes float32; known are bools",
    ),
    "random": (lambda m, x: F.rrelu(x, training=True), "rrelu.default: it is in training mode"),
    "antialias": (
        lambda m, x: F.interpolate(x, (5, 5), mode="bicubic", antialias=True),
        "_upsample_bicubic2d_aa.vec: antialias=True: an output is made of as many elements",
    ),
    "places in windows": (
        lambda m, x: F.adaptive_max_pool2d(x, 3, return_indices=True),
        "adaptive_max_pool2d.default: its result 1 is not computed",
    ),
    "matrix norm": (lambda m, x: torch.linalg.norm(x, 2, (2, 3)), "ord=2 of matrices"),
    "dropout": (
        lambda m, x: F.dropout(x, 0.5, True),
        "it is in training mode, and draws random",
    ),
    "batch_norm": (
        lambda m, x: F.batch_norm(x, None, None, training=True),
        "_native_batch_norm_legit.no_stats: it is not known",
    ),
    "weight": (
        lambda m, x: F.conv2d(x, x[:, :, :3, :3]),
        "conv2d.default: weight is computed at run",
    ),
    "transposed weight": (
        lambda m, x: F.conv_transpose2d(x, x[:, :, :3, :3].mean(0, True).expand(4, 4, 3, 3)),
        "conv_transpose2d.input: weight is computed at run time",
    ),
    "transposed without a batch": (
        lambda m, x: F.conv_transpose2d(x[0], m.narrow[:4]),
        "input (4, 8, 8) and weight (4, 1, 3, 2); known is 1-d, 2-d, with a batch",
    ),
    "unknown": (lambda m, x: torch.fft.fft2(x).real, "aten.fft_fft2.default: it is not known"),
    "no batch": (lambda m, x: F.max_pool2d(x[0], 2), "input has shape (4, 8, 8) of rank 3"),
    "int": (
        lambda m, x: x.int() * 2,
        "aten._to_copy.default: it makes int32[2, 4, 8, 8] of float32",
    ),
    "letters": (
        lambda m, x: torch.einsum("...ij,...jk->...ik", x, x),
        "'...ij,...jk->...ik'; known are 1 or 2 operands, each letter once, and no '...'",
    ),
    "repeated axes": (
        lambda m, x: torch.einsum("bchw,bchw->bc", x, x[:, :1] * 1),
        "'bchw,bchw->bc' of (2, 4, 8, 8) and (2, 1, 8, 8) repeats an axis",
    ),
    "cut off": (lambda m, x: F.pad(x.relu(), (-1, 0)), "padding=[-1, 0] cuts elements off"),
    "statistics": (
        lambda m, x: F.instance_norm(x, m.vector, m.variance, use_input_stats=False),
        "instance_norm.default: it has stored statistics",
    ),
    "no axes": (lambda m, x: x.relu().roll(3), "it rolls the whole as one vector"),
    "indices": (
        lambda m, x: F.max_pool2d(x, 2, return_indices=True),
        "max_pool2d_with_indices.default: its result 1 is not computed",
    ),
    "comparison": (
        lambda m, x: x > x.argmax(1, keepdim=True),
        "gt.Tensor: operands have dtypes float32, int64",
    ),
    "device": (lambda m, x: x.to("meta").relu(), "is on meta"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_is_left_with_the_reason(name: str) -> None:
    function, text = REFUSED[name]
    with pytest.raises(UnsupportedError) as caught:
        md.optimize(Calls(function).eval(), example(), device="reference", strict=True)
    assert text in str(caught.value)
