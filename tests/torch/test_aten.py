"""Every ATen operation that is taken gives what PyTorch gives, and each has a case here."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import minidnn as md
from minidnn._torch_internals import pytree
from minidnn.frontends.torch.aten.call import key_of, known
from tests.torch.calls import Calls, Function, example

aten = torch.ops.aten


ONE: dict[str, Function] = {
    "select_scatter": lambda m, x: torch.select_scatter(x, x[:, 0] * 2, 1, 1),
    "slice_scatter": lambda m, x: torch.slice_scatter(x, x[:, :1] * 2, 1, 2, 3),
    "a tensor that code makes": lambda m, x: x * torch.tensor([1.5, -2.0]).sum(),
    "relu": lambda m, x: F.relu(x),
    "relu_": lambda m, x: F.relu_(x * 2),
    "relu6": lambda m, x: F.relu6(x * 9),
    "relu6 itself": lambda m, x: aten.relu6(x * 9),
    "hardtanh": lambda m, x: F.hardtanh(x, -0.5, 0.25),
    "clamp": lambda m, x: x.clamp(-0.5, 0.7),
    "clamp below": lambda m, x: x.clamp(min=-0.5),
    "clamp above": lambda m, x: x.clamp(max=0.5),
    "clamp_min": lambda m, x: aten.clamp_min(x, 0.1),
    "clamp_max": lambda m, x: aten.clamp_max(x, 0.1),
    "leaky_relu": lambda m, x: F.leaky_relu(x, 0.2),
    "elu": lambda m, x: F.elu(x, 0.7),
    "celu": lambda m, x: F.celu(x, 0.7),
    "selu": lambda m, x: F.selu(x),
    "sigmoid": lambda m, x: torch.sigmoid(x),
    "tanh": lambda m, x: torch.tanh(x),
    "gelu": lambda m, x: F.gelu(x),
    "gelu tanh": lambda m, x: F.gelu(x, approximate="tanh"),
    "silu": lambda m, x: F.silu(x),
    "hardswish": lambda m, x: F.hardswish(x * 3),
    "hardsigmoid": lambda m, x: F.hardsigmoid(x * 3),
    "softplus": lambda m, x: F.softplus(x * 20, 2.0, 5.0),
    "mish": lambda m, x: F.mish(x * 9),
    "prelu": lambda m, x: F.prelu(x, m.vector),
    "prelu of one": lambda m, x: F.prelu(x, m.vector[:1]),
    "exp": lambda m, x: x.exp(),
    "log": lambda m, x: x.abs().log(),
    "sqrt": lambda m, x: x.abs().sqrt(),
    "rsqrt": lambda m, x: x.abs().rsqrt(),
    "reciprocal": lambda m, x: x.reciprocal(),
    "neg": lambda m, x: -x,
    "square": lambda m, x: aten.square(x),
    "erf": lambda m, x: torch.erf(x),
    "expm1": lambda m, x: torch.expm1(x),
    "log1p": lambda m, x: torch.log1p(x.abs()),
    "pow 2": lambda m, x: x**2,
    "pow -3": lambda m, x: x**-3,
    "pow 0.5": lambda m, x: x.abs() ** 0.5,
    "pow 0.5 below": lambda m, x: x.abs() ** -0.5,
    "pow 2.5": lambda m, x: x.abs() ** 2.5,
    "pow 0": lambda m, x: x**0,
    "pow of tensors": lambda m, x: x.abs() ** (x + m.vector[:, None, None]),
    "pow of a number": lambda m, x: 2.5**x,
    "exp2": lambda m, x: torch.exp2(x * 9),
    "log2": lambda m, x: x.abs().log2(),
    "log10": lambda m, x: x.abs().log10(),
    "sin": lambda m, x: x.sin(),
    "cos": lambda m, x: x.cos(),
    "atan": lambda m, x: x.atan(),
    "floor": lambda m, x: (x * 3).floor(),
    "ceil": lambda m, x: (x * 3).ceil(),
    "round": lambda m, x: (x * 3).round(),
    "trunc": lambda m, x: (x * 3).trunc(),
    "sign": lambda m, x: (x.relu() - 0.5).sign(),
    "absolute": lambda m, x: aten.absolute(x),
    "negative": lambda m, x: aten.negative(x),
    "log_sigmoid": lambda m, x: F.logsigmoid(x * 9),
    "hardshrink": lambda m, x: F.hardshrink(x, 0.3),
    "softshrink": lambda m, x: F.softshrink(x, 0.3),
    "threshold": lambda m, x: F.threshold(x, 0.1, 7.0),
    "rrelu": lambda m, x: F.rrelu(x),
    "glu": lambda m, x: F.glu(x, -1) + F.glu(x, -1),
    "clamp between": lambda m, x: torch.clamp(x, m.plane, m.plane * 0.5),
    "clamp between one": lambda m, x: torch.clamp(x, max=m.plane),
    "addcmul": lambda m, x: torch.addcmul(m.plane, x, m.plane[0], value=0.3),
    "addcmul plain": lambda m, x: torch.addcmul(x, x, m.plane),
    "addcdiv plain": lambda m, x: torch.addcdiv(x, m.plane, x.abs() + 1),
    "addcdiv": lambda m, x: torch.addcdiv(x, m.plane, x.abs() + 1, value=-2),
    "lerp": lambda m, x: torch.lerp(x, m.plane, 0.3) + torch.lerp(x, m.plane, 0.9),
    "lerp of tensors": lambda m, x: torch.lerp(x, m.plane, x.abs()),
    "max of two": lambda m, x: torch.max(x, m.plane),
    "min of two": lambda m, x: torch.min(x, m.plane),
    "multiply": lambda m, x: aten.multiply.Scalar(aten.multiply(x, m.plane), 3),
    "subtract": lambda m, x: aten.subtract.Scalar(aten.subtract(x, m.plane), 3),
    "divide": lambda m, x: aten.divide.Scalar(aten.divide(x, m.plane.abs() + 1), 3),
    "true_divide": lambda m, x: aten.true_divide.Scalar(aten.true_divide(x, m.plane.abs() + 1), 3),
    "comparisons": lambda m, x: (x > 0.5, x >= m.plane, x < m.plane, x <= -0.5),
    "comparisons of tensors": lambda m, x: (x > m.plane, x >= 1, x < 1, x <= m.plane),
    "greater and less": lambda m, x: (
        *(aten.greater.Scalar(x, 1), aten.greater(x, m.plane), aten.greater_equal.Scalar(x, 1)),
        *(aten.greater_equal(x, m.plane), aten.less.Scalar(x, 1), aten.less(x, m.plane)),
        *(aten.less_equal.Scalar(x, 1), aten.less_equal(x, m.plane)),
        *(aten.not_equal.Scalar(x.relu(), 0), aten.not_equal(x.relu(), x)),
    ),
    "equal": lambda m, x: (x.relu() == 0, x.relu() != 0, x.relu() == x, x.relu() != x),
    "isnan": lambda m, x: x.log().isnan(),
    "bools": lambda m, x: (
        *((x > 0) & (x < 1), (x > 0) | (x < -1), (x > 0) ^ (x < 1), ~(x > 0)),
        *(torch.logical_and(x > 0, x < 1), torch.logical_or(x > 0, x < -1)),
        *(torch.logical_xor(x > 0, x < 1), torch.logical_not(x > 0)),
        *(torch.bitwise_and(x > 0, x < 1), torch.bitwise_or(x > 0, x < -1)),
        torch.bitwise_xor(x > 0, x < 1),
    ),
    "where": lambda m, x: torch.where(x > 0, x, m.plane),
    "where of numbers": lambda m, x: torch.where(x > 0, x, 0.5) + torch.where(x > 0, 0.5, x),
    "masked_fill": lambda m, x: x.masked_fill(x > 0, -1.5).masked_fill(x < -1, m.vector[0]),
    "dropout": lambda m, x: F.relu(F.dropout(x, 0.5, False)),
    "feature_dropout": lambda m, x: F.relu(F.dropout2d(x, 0.5, False)),
    "alpha_dropout": lambda m, x: F.relu(F.alpha_dropout(x, 0.5, False)),
    "feature_alpha_dropout": lambda m, x: F.relu(F.feature_alpha_dropout(x, 0.5, False)),
    "add numbers": lambda m, x: 1.5 + x + 2,
    "add alpha": lambda m, x: torch.add(x, x.abs(), alpha=0.25),
    "add constant first": lambda m, x: m.plane + x,
    "add.Scalar": lambda m, x: aten.add.Scalar(x, 3),
    "sub": lambda m, x: torch.sub(x - 0.5, m.plane, alpha=2),
    "sub.Scalar": lambda m, x: aten.sub.Scalar(x, 3, 2),
    "rsub": lambda m, x: torch.rsub(x, 0.5, alpha=2),
    "rsub.Tensor": lambda m, x: torch.rsub(x, m.plane, alpha=2),
    "mul": lambda m, x: m.plane * x * 0.5,
    "mul.Scalar": lambda m, x: aten.mul.Scalar(x, 3),
    "div": lambda m, x: x / (m.plane.abs() + 1) / 3,
    "div.Scalar": lambda m, x: aten.div.Scalar(x, 3),
    "maximum": lambda m, x: torch.maximum(x, m.plane),
    "minimum": lambda m, x: torch.minimum(x, m.plane),
    "conv2d": lambda m, x: F.conv2d(x, m.kernel, m.six, stride=2, padding=1),
    "convolution": lambda m, x: aten.convolution(
        x, m.kernel, None, [1, 1], [1, 0], [1, 1], False, [0, 0], 1
    ),
    "conv2d same": lambda m, x: F.conv2d(x, m.narrow, padding="same", groups=4, dilation=2),
    "conv2d valid": lambda m, x: F.conv2d(x, m.narrow, padding="valid", groups=4),
    "conv1d": lambda m, x: F.conv1d(x.mean(2), m.kernel[:, :2, 0], None, 2, 1, groups=2),
    "conv1d bias": lambda m, x: F.conv1d(x.mean(2), m.kernel[:, :, 0], m.six, dilation=2),
    "conv1d same": lambda m, x: F.conv1d(x.mean(2), m.kernel[:, :, 0], padding="same"),
    "conv1d valid": lambda m, x: F.conv1d(x.mean(2), m.kernel[:, :, 0], padding="valid"),
    "conv1d twice": lambda m, x: F.conv1d(
        F.conv1d(x.mean(2), m.kernel[:4, :, 0]), m.kernel[:4, :, 0]
    ),
    "conv_transpose2d": lambda m, x: F.conv_transpose2d(x, m.narrow[:4], m.vector, 2, 1, 1, 4),
    "conv_transpose2d dilated": lambda m, x: F.conv_transpose2d(
        x, m.kernel[:4], m.vector, (2, 3), (0, 2), dilation=(3, 2)
    ),
    "conv_transpose1d": lambda m, x: F.conv_transpose1d(x.mean(2), m.kernel[:4, :, 0], None, 3, 1),
    "convolution transposed": lambda m, x: aten.convolution(
        x, m.narrow[:4], None, [2], [1], [1], True, [1], 2
    ),
    "scaled_dot_product_attention": lambda m, x: F.scaled_dot_product_attention(
        x, x.relu(), x, is_causal=True
    ),
    "linear": lambda m, x: F.linear(x, m.matrix, m.five),
    "addmm": lambda m, x: torch.addmm(m.five, x.mean((2, 3)), m.matrix[:, :4].t()),
    "mm": lambda m, x: torch.mm(x.mean((2, 3)), m.matrix[:4, :4]),
    "matmul": lambda m, x: x @ m.matrix.t(),
    "batch_norm": lambda m, x: F.batch_norm(x, m.vector, m.variance, m.vector, m.variance),
    "batch_norm plain": lambda m, x: F.batch_norm(x, m.vector, m.variance, eps=0.1),
    "batch_norm legit": lambda m, x: aten._native_batch_norm_legit_no_training(
        x, m.vector, m.variance, m.vector, m.variance, 0.1, 1e-5
    )[0],
    "max_pool2d": lambda m, x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    "max_pool2d default stride": lambda m, x: F.max_pool2d(x, (2, 3)),
    "max_pool2d_with_indices": lambda m, x: aten.max_pool2d_with_indices(x, [2, 2], [1, 1])[0],
    "avg_pool2d": lambda m, x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "avg_pool2d divisor": lambda m, x: F.avg_pool2d(x, 2, divisor_override=3),
    "adaptive_avg_pool2d": lambda m, x: F.adaptive_avg_pool2d(x, (3, 4)),
    "_adaptive_avg_pool2d": lambda m, x: aten._adaptive_avg_pool2d(x, [2, 2]),
    "softmax": lambda m, x: F.softmax(x, 1),
    "_softmax": lambda m, x: aten._softmax(x, -1, False),
    "log_softmax": lambda m, x: F.log_softmax(x, -1),
    "_log_softmax": lambda m, x: aten._log_softmax(x, 1, False),
    "mean": lambda m, x: x.mean((2, 3)),
    "mean keepdim": lambda m, x: x.mean((-1, -2), keepdim=True),
    "cat": lambda m, x: torch.cat([x, x.relu(), m.plane[None].expand(2, 4, 8, 8)], 1),
    "concat": lambda m, x: aten.concat([x, x.relu()], -1),
    "flatten": lambda m, x: torch.flatten(x, 2).relu(),
    "view": lambda m, x: x.view(2, -1).relu(),
    "_unsafe_view": lambda m, x: aten._unsafe_view(x, [2, 256]).relu(),
    "unflatten": lambda m, x: x.relu().unflatten(1, (2, 2)).relu(),
    "reshape": lambda m, x: x.reshape(2, 2, 2, 8, 8).relu(),
    "unsqueeze and squeeze": lambda m, x: x.unsqueeze(1).relu().squeeze(1).sqrt(),
    "squeeze all": lambda m, x: aten.squeeze(x.unsqueeze(1).relu()).sqrt(),
    "squeeze dims": lambda m, x: aten.squeeze(x.unsqueeze(1).relu(), [1]).sqrt(),
    "contiguous": lambda m, x: (
        x.relu().clone(memory_format=torch.channels_last).contiguous().sqrt()
    ),
    "clone": lambda m, x: x.relu().clone().sqrt(),
    "detach": lambda m, x: x.relu().detach().sqrt(),
    "alias": lambda m, x: aten.alias(x.relu()).sqrt(),
    "lift_fresh_copy": lambda m, x: aten.lift_fresh_copy(x.relu()).sqrt(),
    "_to_copy": lambda m, x: aten._to_copy(x.relu()).sqrt(),
    "to.dtype": lambda m, x: x.relu().to(torch.float32).sqrt(),
    "to.dtype_layout": lambda m, x: aten.to.dtype_layout(x.relu(), dtype=torch.float32).sqrt(),
    "to.device": lambda m, x: x.relu().to("cpu", torch.float32).sqrt(),
    "view of the batch": lambda m, x: x.relu().view(4, 2, 8, 8).sqrt(),
    "flatten of no axes": lambda m, x: x.sum().flatten().relu(),
    "permute": lambda m, x: x.relu().permute(0, 3, -2, 1).sqrt(),
    "transpose": lambda m, x: x.relu().transpose(1, -1).sqrt(),
    "t": lambda m, x: x.mean((2, 3)).t().tanh(),
    "numpy_T": lambda m, x: aten.numpy_T(x.mean((2, 3)).relu()).sqrt(),
    "mT": lambda m, x: aten.mT(x.relu()).sqrt(),
    "slice": lambda m, x: x.relu()[:, 1:-1, ::3, 2:100].sqrt(),
    "narrow": lambda m, x: aten.narrow(x.relu(), 1, 1, 2).sqrt(),
    "select": lambda m, x: x.relu()[:, -2].sqrt(),
    "chunk": lambda m, x: torch.cat(x.relu().chunk(2, 1)[::-1], 1).sqrt(),
    "split": lambda m, x: torch.cat(x.relu().split(3, 1)[::-1], 1).sqrt(),
    "split_with_sizes": lambda m, x: torch.cat(aten.split_with_sizes(x.abs(), [1, 3], 1), 1).sqrt(),
    "tensor_split": lambda m, x: x.abs().tensor_split(3, 2)[1].sqrt(),
    "unsafe_chunk": lambda m, x: aten.unsafe_chunk(x.abs(), 3, 1)[1].sqrt(),
    "unsafe_split": lambda m, x: aten.unsafe_split(x.abs(), 3, -1)[2].sqrt(),
    "unbind": lambda m, x: x.abs().unbind(1)[2].sqrt(),
    "expand": lambda m, x: x.mean((2, 3), True).relu().expand(-1, -1, 5, 6).sqrt(),
    "expand_as": lambda m, x: x.mean((2, 3), True).relu().expand_as(x).sqrt(),
    "broadcast_to": lambda m, x: aten.broadcast_to(x.mean((2, 3), True), [2, 4, 2, 3]).abs(),
    "stack": lambda m, x: torch.stack([x, x.relu()], 1).abs(),
    "pad": lambda m, x: F.pad(x.relu(), (1, 2, 0, 3), value=0.5).sqrt(),
    "pad reflect": lambda m, x: F.pad(x.relu(), (1, 2, 0, 3), mode="reflect").sqrt(),
    "pad replicate": lambda m, x: F.pad(x.relu(), (1, 2, 0, 3), mode="replicate").sqrt(),
    "pad circular": lambda m, x: aten.pad(x.relu(), [1, 2, 0, 3], "circular").sqrt(),
    "constant_pad_nd": lambda m, x: aten.constant_pad_nd(x.relu(), [1, 2], 2).sqrt(),
    "reflection_pad2d": lambda m, x: aten.reflection_pad2d(x.relu(), [1, 2, 3, 0]).sqrt(),
    "reflection_pad1d": lambda m, x: aten.reflection_pad1d(x.mean(1).relu(), [1, 2]).sqrt(),
    "replication_pad2d": lambda m, x: aten.replication_pad2d(x.relu(), [1, 2, 3, 0]).sqrt(),
    "replication_pad1d": lambda m, x: aten.replication_pad1d(x.mean(1).relu(), [1, 2]).sqrt(),
    "pixel_shuffle": lambda m, x: F.pixel_shuffle(x.relu(), 2).sqrt(),
    "channel_shuffle": lambda m, x: aten.channel_shuffle(x.relu(), 2).sqrt(),
    "pixel_unshuffle": lambda m, x: F.pixel_unshuffle(x.relu(), 4).sqrt(),
    "flip": lambda m, x: x.relu().flip(1, -1).sqrt(),
    "roll": lambda m, x: x.relu().roll((3, -1, 2), (2, 1, 2)).sqrt(),
    "reshape_as": lambda m, x: x.relu().reshape_as(x.flatten(1)).sqrt(),
    "view_as": lambda m, x: x.relu().view_as(x.flatten(1)).sqrt(),
    "movedim": lambda m, x: x.relu().movedim(1, -1).sqrt(),
    "movedim of several": lambda m, x: x.relu().movedim((-1, 0), (1, 2)).sqrt(),
    "moveaxis": lambda m, x: aten.moveaxis(aten.moveaxis(x.relu(), [0, 1], [2, 0]), 3, 0).sqrt(),
    "swapaxes": lambda m, x: aten.swapdims(x.relu().swapaxes(1, 2), 0, -1).sqrt(),
    "concatenate": lambda m, x: aten.concatenate([x, x.relu()], 1).abs(),
    "repeat": lambda m, x: x.relu().repeat(3, 1, 2, 1, 2).sqrt(),
    "tile": lambda m, x: x.relu().tile(2, 3).sqrt(),
    "repeat_interleave": lambda m, x: (
        *(x.relu().repeat_interleave(2, 1).sqrt(), x.relu().repeat_interleave(3).sqrt()),
        x.relu().repeat_interleave(2, -1).sqrt(),
    ),
    "index_select": lambda m, x: x.relu().index_select(1, m.indices).sqrt(),
    "unfold": lambda m, x: (x.relu().unfold(2, 3, 2).sqrt(), x.relu().unfold(-1, 5, 1).sqrt()),
    "im2col": lambda m, x: F.unfold(x.relu(), (3, 2), (1, 2), (2, 1), (3, 2)).sqrt(),
    "im2col plain": lambda m, x: F.unfold(x.relu(), 3).sqrt(),
    "col2im": lambda m, x: F.fold(x.view(2, 8, 32).relu(), (16, 8), (2, 2), stride=2).sqrt(),
    "col2im with a rest": lambda m, x: F.fold(
        x.view(2, 16, 16).relu(), (19, 9), (4, 2), stride=(4, 2)
    ).sqrt(),
    "col2im overlapping": lambda m, x: F.fold(x.view(2, 8, 32).relu(), (5, 9), 2).sqrt(),
    "embedding": lambda m, x: F.embedding(x.argmax(1), m.matrix),
    "tril": lambda m, x: (x.tril(), x.tril(-2), x[..., :5].tril(1)),
    "triu": lambda m, x: (x.triu(), x.triu(-2), x[..., :5].triu(1)),
    "adaptive_max_pool2d": lambda m, x: (
        *(F.adaptive_max_pool2d(x, (3, 5)), F.adaptive_max_pool2d(x, (2, 8))),
        *(F.adaptive_max_pool2d(x, 1), F.adaptive_max_pool2d(x, (11, 7))),
    ),
    "adaptive_max_pool1d": lambda m, x: F.adaptive_max_pool1d(x.mean(2), 3),
    "adaptive_avg_pool1d": lambda m, x: F.adaptive_avg_pool1d(x.mean(2), 3),
    "upsample_nearest1d": lambda m, x: F.interpolate(x.mean(2), 13).abs(),
    "upsample_nearest3d": lambda m, x: F.interpolate(x[:, :, None], (2, 5, 17)).abs(),
    "upsample_nearest_exact": lambda m, x: (
        F.interpolate(x.mean(2), 13, mode="nearest-exact").abs(),
        F.interpolate(x, (5, 19), mode="nearest-exact").abs(),
        F.interpolate(x, scale_factor=(2.3, 0.7), mode="nearest-exact").abs(),
        F.interpolate(x[:, :, None], (2, 5, 17), mode="nearest-exact").abs(),
    ),
    "upsample_linear1d": lambda m, x: F.interpolate(x.mean(2), 13, mode="linear"),
    "upsample_trilinear3d": lambda m, x: F.interpolate(
        x.view(2, 2, 2, 8, 8), (3, 5, 17), mode="trilinear"
    ),
    "upsample_bicubic2d": lambda m, x: F.interpolate(x, (5, 19), mode="bicubic"),
    "upsample_bicubic2d corners": lambda m, x: F.interpolate(
        x, (8, 19), mode="bicubic", align_corners=True
    ),
    "upsample_bicubic2d to one": lambda m, x: F.interpolate(
        x, (1, 1), mode="bicubic", align_corners=True
    ),
    "upsample_bicubic2d by factors": lambda m, x: F.interpolate(
        x, scale_factor=(2.3, 0.7), mode="bicubic"
    ),
    "grid_sample": lambda m, x: (
        F.grid_sample(x, x.view(2, 8, 16, 2), "bilinear", "zeros", False),
        F.grid_sample(x, x.view(2, 16, 8, 2), "nearest", "border", True),
        F.grid_sample(x, x.view(2, 8, 16, 2), "bicubic", "reflection", False),
    ),
    "grid_sample of volumes": lambda m, x: F.grid_sample(
        x.view(2, 2, 2, 8, 8), x[:, :3].reshape(2, 4, 4, 4, 3), align_corners=True
    ),
    "grid_sampler_2d": lambda m, x: aten.grid_sampler_2d(x, x.view(2, 8, 16, 2), 0, 2, True),
    "grid_sampler_3d": lambda m, x: aten.grid_sampler_3d(
        x.view(2, 2, 2, 8, 8), x[:, :3].reshape(2, 4, 4, 4, 3), 1, 1, False
    ),
    "affine_grid": lambda m, x: (
        F.affine_grid(x[:, 0, 0, :6].reshape(2, 2, 3), [2, 3, 5, 7], align_corners=False),
        F.affine_grid(x[:, 0, 0, :6].reshape(2, 2, 3), [2, 3, 5, 4], align_corners=True),
        F.affine_grid(x[:, 0, :2, :6].reshape(2, 3, 4), [2, 3, 3, 4, 2], align_corners=False),
    ),
    "upsample_nearest2d": lambda m, x: F.interpolate(x, (5, 19)).abs(),
    "upsample_nearest2d by factors": lambda m, x: F.interpolate(x, scale_factor=(2.3, 0.7)).abs(),
    "upsample_nearest2d as many": lambda m, x: F.interpolate(x, scale_factor=(2.1, 1.1)).abs(),
    "upsample_bilinear2d": lambda m, x: F.interpolate(x, (5, 19), mode="bilinear"),
    "upsample_bilinear2d corners": lambda m, x: F.interpolate(
        x, (1, 19), mode="bilinear", align_corners=True
    ),
    "upsample_bilinear2d by factors": lambda m, x: F.interpolate(
        x, scale_factor=(2.3, 0.7), mode="bilinear"
    ),
    "group_norm": lambda m, x: F.group_norm(x * 3 + 1, 2, m.vector, m.variance),
    "group_norm plain": lambda m, x: F.group_norm(x * 3 + 1, 2, eps=0.1),
    "group_norm bias": lambda m, x: F.group_norm(x * 3 + 1, 4, None, m.variance),
    "instance_norm": lambda m, x: F.instance_norm(x * 3 + 1, weight=m.vector, eps=0.01),
    "max_pool1d": lambda m, x: F.max_pool1d(x.mean(2), 3, 2, 1, ceil_mode=True),
    "avg_pool3d": lambda m, x: (
        *(F.avg_pool3d(x[:, None], (2, 3, 2), (1, 2, 2)), F.avg_pool3d(x[:, None], (3, 1, 1), 1)),
        F.avg_pool3d(x[:, None], 2),
    ),
    "avg_pool1d": lambda m, x: F.avg_pool1d(x.mean(2), 3, 2, 1, True, False),
    "avg_pool1d default stride": lambda m, x: F.avg_pool1d(x.mean(2), 3),
    "layer_norm": lambda m, x: F.layer_norm(x, (8, 8), m.plane[0], m.plane[1], 0.1),
    "layer_norm plain": lambda m, x: F.layer_norm(x, (8,)),
    "native_layer_norm": lambda m, x: aten.native_layer_norm(x, [8], None, None, 1e-5)[0],
    "sum": lambda m, x: x.sum((1, -1)) + x.sum(),
    "mean of other axes": lambda m, x: x.mean(1, keepdim=True) + x.mean(),
    "amax": lambda m, x: x.amax((1, 2), keepdim=True) + x.max(),
    "amin": lambda m, x: x.amin(-1) - x.min(),
    "argmax": lambda m, x: x.relu().argmax(1),
    "argmax of all": lambda m, x: (x.argmax(), x.argmax(keepdim=True)),
    "argmin": lambda m, x: (x.relu().argmin(1), x.argmin(-1, keepdim=True)),
    "max.dim": lambda m, x: (x.relu().max(0), x.max(-1, keepdim=True)[0], x.max(2)[1]),
    "min.dim": lambda m, x: (x.relu().min(1), x.min(-1, keepdim=True)[0], x.min(2)[1]),
    "prod": lambda m, x: x.prod(1) * x[0, 0, 0].prod(),
    "any": lambda m, x: ((x > 2).any(1), (x > 2).any(), aten.any.dims(x.relu(), [1, 3], True)),
    "all": lambda m, x: ((x > -1).all(1), (x > -9).all(), aten.all.dims(x.relu(), [1, 3], True)),
    "logsumexp": lambda m, x: x.logsumexp(1) + (x * 99).logsumexp((1, 3)).sum(),
    "var": lambda m, x: (x.var(), x.var(1), x.var((0, 3), False, True), x.var(1, correction=3)),
    "std": lambda m, x: (x.std(), x.std(1), x.std((0, 3), False, True), x.std(1, correction=0)),
    "var_mean": lambda m, x: (
        *torch.var_mean(x),
        *torch.var_mean(x, 1),
        *torch.var_mean(x, [1, 2], correction=0),
    ),
    "std_mean": lambda m, x: (
        *torch.std_mean(x),
        *torch.std_mean(x, 1),
        *torch.std_mean(x, [1, 2], correction=0),
    ),
    "variance by overloads": lambda m, x: (
        *(aten.var(x, False), aten.var.dim(x, [1]), aten.std(x, False), aten.std.dim(x, [1])),
        *(*aten.var_mean(x, False), *aten.var_mean.dim(x, [1]), *aten.std_mean(x, False)),
        *aten.std_mean.dim(x, [1], False, True),
    ),
    "linalg_vector_norm": lambda m, x: [
        torch.linalg.vector_norm(x, order, (1, 3), True)
        for order in (2, 1, 0, 3, 2.5, float("inf"), -float("inf"), -1)
    ],
    "linalg_norm": lambda m, x: (
        *(torch.linalg.norm(x), torch.linalg.norm(x, dim=(2, 3)), torch.linalg.norm(x, 3, 1)),
        aten.linalg_norm(x, 1.0, [-1], True),
    ),
    "norm": lambda m, x: aten.norm.Scalar(x) + aten.norm.ScalarOpt_dim(x, 3, [1], True),
    "normalize": lambda m, x: F.normalize(x, dim=1),
    "cosine_similarity": lambda m, x: F.cosine_similarity(x, m.plane, 1, 0.1),
    "rms_norm": lambda m, x: F.rms_norm(x, (8, 8), m.plane[0], 0.1) + F.rms_norm(x, (8,)),
    "bmm": lambda m, x: torch.bmm(x[:, 0].relu(), x[:, 1].relu()),
    "matmul of values": lambda m, x: x @ x.transpose(2, 3),
    "products with vectors": lambda m, x: (
        *(x @ m.vector.repeat(2), m.vector.repeat(2) @ x, x[0, 0, 0] @ x[0, 0, 1]),
        *(
            m.matrix @ x[0, 0, 0],
            torch.mv(x[0, 0], x[0, 0, 1]),
            torch.dot(x[0, 0, 0], m.plane[0, 0]),
        ),
        F.linear(x[0, 0, 0], m.matrix, m.five),
    ),
    "baddbmm": lambda m, x: (
        *(
            torch.baddbmm(m.plane[:2], x[:, 0], x[:, 1]),
            torch.baddbmm(x[:, 0, :1], x[:, 0], x[:, 1]),
        ),
        torch.baddbmm(x[:, 0], x[:, 0], x[:, 1], beta=0.5, alpha=2),
        torch.baddbmm(x[:, 0].log(), x[:, 0], x[:, 1], beta=0, alpha=2),
    ),
    "einsum": lambda m, x: (
        *(torch.einsum("bhid,bhjd->bhij", x, x.relu()), torch.einsum("bhij,hjk->ikbh", x, m.plane)),
        *(torch.einsum("bchw,cd->bdhw", x, x[0, 0, :4]), torch.einsum("bchw, od", x, m.matrix)),
        *(torch.einsum("bchw,dc->bdhw", x, m.matrix[:, :4]), torch.einsum("abcd,abcd->", x, x)),
        *(torch.einsum("bchw->hbwc", x * 2), torch.einsum("dbca", x * 2)),
        *(torch.einsum("bchw->wb", x), torch.einsum("bchw->", x), torch.einsum("bchw->bchw", x)),
        *(
            torch.einsum("i,j->ij", x[0, 0, 0], m.vector),
            torch.einsum("ab,bc", x[0, 0], m.plane[0]),
        ),
    ),
    "type_as": lambda m, x: x.relu().type_as(m.plane).sqrt(),
}

SEEN: set[str] = set()
#: Through these no gradient flows, or to places that are known at run time alone.
LEFT_IN_TRAINING = {"detach", "embedding", "index_select"}


#: Capturing a program takes most of what a call does, so several calls share one; which of them is
#: wrong the full run says.
TOGETHER = [list(ONE)[i : i + 6] for i in range(0, len(ONE), 6)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("names", TOGETHER, ids=" ".join)
def test_they_give_what_pytorch_gives(names: list[str]) -> None:
    check_calls(lambda module, x: tuple(ONE[name](module, x) for name in names))


@pytest.mark.full
@pytest.mark.parametrize("name", ONE)
def test_it_gives_what_pytorch_gives(name: str) -> None:
    check_calls(ONE[name])


def check_calls(function: Function) -> None:
    module, x = Calls(function).eval(), example()
    fast = md.optimize(module, x, device="reference", strict=True)
    SEEN.update(key_of(node) for node in fast.programs[0].captured.operations)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), module(x), rtol=1e-5, atol=1e-5)
    assert len(fast.programs) == 1


@pytest.mark.full
@pytest.mark.parametrize("name", ONE)
def test_it_trains_as_pytorch_does(name: str) -> None:
    torch.manual_seed(0)
    module, x = Calls(ONE[name]), example()
    fast = md.optimize(module, device="reference", strict=name not in LEFT_IN_TRAINING)
    found, expected = _with_gradients(fast, module, x), _with_gradients(module, module, x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def _with_gradients(run: Any, module: Any, x: torch.Tensor) -> list[Any]:
    """The results, and the gradients by the argument and the parameters."""
    module.zero_grad()
    x = x.clone().requires_grad_()
    results = [each for each in pytree.tree_leaves(run(x)) if each.requires_grad]
    if results:
        by = [torch.linspace(-1, 1, each.numel()).reshape(each.shape) for each in results]
        torch.autograd.backward(results, by)
    return [*results, x.grad, *(each.grad for each in module.parameters())]


def is_taken_apart(name: str) -> bool:
    """Whether PyTorch makes others of an operation where it makes a graph functional: it does so
    with those that it composes of others, if their results may lie in the memory of arguments."""
    packet, _, overload = name.partition(".")
    operation = getattr(getattr(aten, packet), overload)
    aliases = any(each.alias_info is not None for each in operation._schema.arguments)
    return operation._can_decompose() and (
        aliases or torch.Tag.maybe_aliasing_or_mutating in operation.tags
    )


def test_every_operation_has_a_case(request: pytest.FixtureRequest) -> None:
    if len([item for item in request.session.items if item.path == request.path]) < len(ONE):
        pytest.skip("not all cases of this file are run")
    norm = md.optimize(torch.nn.BatchNorm2d(4).train(), example(), device="reference")
    SEEN.update(key_of(node) for node in norm.programs[0].captured.operations)
    # Captures of whole modules have these, as torch.export makes them; trained ones, the last.
    whole = {"lift_fresh_copy.default", "type_as.default", "bernoulli.p"}
    found = sorted(set(known()) - SEEN - whole)
    missing = [name for name in found if not is_taken_apart(name)]
    assert missing == [], ", ".join(missing)


@pytest.mark.parametrize(
    ("function", "x"),
    [
        # The least integer has no opposite, by which the place of the smallest is found.
        (lambda x: x.argmin(1), torch.tensor([[3, -(2**31), 5]], dtype=torch.int32)),
        # What is infinite is not taken from itself.
        (lambda x: x.logsumexp(1), torch.tensor([[torch.inf, 1.0], [-torch.inf, -torch.inf]])),
        (lambda x: x.logsumexp(1), torch.tensor([[1e30, 1.0], [200.0, 200.0]])),
    ],
)
def test_edges_of_numbers(function: Function, x: torch.Tensor) -> None:
    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return function(x)

    with torch.no_grad():
        found = md.optimize(Net(), x, device="reference", strict=True)(x)
    torch.testing.assert_close(found, function(x), equal_nan=True)
