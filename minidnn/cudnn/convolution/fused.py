"""Convolution, bias, residual and activation in one call.

Source: cuDNN, ``cudnnConvolutionBiasActivationForward``.
"""

from __future__ import annotations

from typing import Any

from minidnn.cudnn import library
from minidnn.cudnn.activation import activation_descriptor
from minidnn.cudnn.arrays import Shape, check_array, check_same_dtype, check_same_shape, empty
from minidnn.cudnn.convolution.functions import (
    CROSS_CORRELATION,
    _check_pair,
    _is_nhwc,
    _plan,
)
from minidnn.cudnn.convolution.key import INTEGERS, check_shapes, geometry
from minidnn.cudnn.convolution.plan import ConvolutionPlan
from minidnn.cudnn.dtypes import data_type, is_double
from minidnn.cudnn.enums import ActivationMode, ConvolutionFwdAlgo, ConvolutionMode, MathType
from minidnn.cudnn.errors import ArgumentError, DTypeError
from minidnn.cudnn.handle import current_handle
from minidnn.cudnn.scalars import scalar
from minidnn.cudnn.tensor import described, descriptor_of
from minidnn.cudnn.workspace import acquire
from minidnn.errors import OutOfMemoryError

IDENTITY = ActivationMode.CUDNN_ACTIVATION_IDENTITY
RELU = ActivationMode.CUDNN_ACTIVATION_RELU
PRECOMP_GEMM = ConvolutionFwdAlgo.CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM


def bias_activation_forward(
    x: Any,
    w: Any,
    bias: Any,
    y: Any = None,
    *,
    z: Any = None,
    activation: ActivationMode = RELU,
    coefficient: float = 0.0,
    padding: int | Shape = 0,
    stride: int | Shape = 1,
    dilation: int | Shape = 1,
    groups: int = 1,
    alpha: float = 1.0,
    alpha_z: float = 1.0,
    mode: ConvolutionMode = CROSS_CORRELATION,
    compute: Any = None,
    math: MathType | None = None,
    algorithm: str | int = "heuristic",
    workspace_limit: int | None = None,
) -> Any:
    """Return y = activation(alpha * convolution(x, w) + alpha_z * z + bias).

    ``bias`` has K elements (float32 for int8 x), ``z`` the shape of y (may be y).  cuDNN takes
    ReLU and identity; identity runs with IMPLICIT_PRECOMP_GEMM only, which is used for it.
    """
    if activation not in (RELU, IDENTITY):
        raise ArgumentError(
            f"activation={ActivationMode(activation).name} cannot be fused by cuDNN, which takes "
            "CUDNN_ACTIVATION_RELU and CUDNN_ACTIVATION_IDENTITY here; call activation.forward "
            "after the convolution"
        )
    if y is None:
        _check_pair("x", x, "w", w)
        given = geometry(max(1, x.ndim - 2), padding, stride, dilation)
        y = empty(check_shapes(x.shape, w.shape, None, given, groups), x.dtype, _is_nhwc(x, w))
    if activation == IDENTITY and algorithm in ("heuristic", "find", "find_ex"):
        algorithm = int(PRECOMP_GEMM)
    plan = _plan(
        "forward", x, w, y, padding, stride, dilation, groups, mode, compute, math, algorithm,
        False, workspace_limit, fused=True,
    )  # fmt: skip
    channels = w.shape[0]
    check_array("bias", bias)
    if bias.size != channels or not bias.flags.c_contiguous:
        raise ArgumentError(
            f"bias has shape {bias.shape}; it must be {channels} contiguous elements"
        )
    if data_type(x.dtype) not in INTEGERS:
        check_same_dtype("x", x, "bias", bias)
    elif bias.dtype.name != "float32":
        raise DTypeError(f"bias has dtype {bias.dtype.name}; with {x.dtype.name} x it is float32")
    if z is not None:
        check_array("z", z)
        check_same_shape("y", y, "z", z)
        check_same_dtype("y", y, "z", z)
    _run(plan, x, w, y, z, bias, activation, coefficient, alpha, alpha_z)
    return y


def _run(
    plan: ConvolutionPlan,
    x: Any,
    w: Any,
    y: Any,
    z: Any,
    bias: Any,
    activation: ActivationMode,
    coefficient: float,
    alpha: float,
    alpha_z: float,
) -> None:
    key = plan.key
    double = is_double(data_type(x.dtype))
    ones = (1,) * (len(key.y.shape) - 2)
    bias_shape = (1, bias.size, *ones)
    bias_descriptor = described(bias.dtype, bias_shape, (bias.size, *(1,) * (len(ones) + 1)))
    act = activation_descriptor(activation, coefficient)
    # Without z, cuDNN still wants a tensor there: y, which it does not read at a factor of zero.
    z_array = y if z is None else z
    z_value = plan.out if z is None else descriptor_of(z, "z").value
    z_factor = scalar(0.0 if z is None else alpha_z, double)
    while True:
        state = plan.state
        size = state.workspace
        try:
            memory = acquire(size)
        except OutOfMemoryError as error:
            plan.fall_back(state, str(error), error)
            continue
        status = library.load().cudnnConvolutionBiasActivationForward(
            current_handle(),
            scalar(alpha, double),
            plan.first,
            x.data.ptr,
            plan.second,
            w.data.ptr,
            state.conv_value,
            state.algorithm,
            memory.ptr if memory is not None else None,
            size,
            z_factor,
            z_value,
            z_array.data.ptr,
            bias_descriptor.value,
            bias.data.ptr,
            act.value,
            plan.out,
            y.data.ptr,
        )
        if not status:
            return
        more = {"bias": bias, "z": z, "activation": ActivationMode(activation)}
        plan.failed(status, state, "cudnnConvolutionBiasActivationForward", more)
