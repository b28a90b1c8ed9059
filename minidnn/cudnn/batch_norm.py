"""Batch normalisation: inference, training with running statistics, gradient.

Mode SPATIAL has one scale per channel, PER_ACTIVATION one per element of an image,
SPATIAL_PERSISTENT is SPATIAL with a faster kernel for some shapes.  Scale, bias and statistics
are float32 for float16, bfloat16 and float32 data, and float64 for float64.

Source: cuDNN, ``cudnnBatchNormalizationForwardInference``, ``...ForwardTrainingEx``,
``...BackwardEx``.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

from minidnn.cudnn.activation import ActivationDescriptor
from minidnn.cudnn.arrays import check_array, check_inputs, output, scalars
from minidnn.cudnn.descriptor import Memo
from minidnn.cudnn.dtypes import data_type, is_double
from minidnn.cudnn.enums import BatchNormMode, BatchNormOps
from minidnn.cudnn.errors import ArgumentError, DTypeError
from minidnn.cudnn.handle import call, query_size
from minidnn.cudnn.tensor import TensorDescriptor, descriptor_of, operand
from minidnn.cudnn.workspace import acquire
from minidnn.gpu import cupy

SPATIAL = BatchNormMode.CUDNN_BATCHNORM_SPATIAL
PER_ACTIVATION = BatchNormMode.CUDNN_BATCHNORM_PER_ACTIVATION

_derived: Memo[TensorDescriptor] = Memo(1024)


class Training(NamedTuple):
    """What the forward pass of training returns, and what the backward pass takes."""

    y: Any
    mean: Any
    inverse_deviation: Any
    reserve: Any


def derived_descriptor(x: TensorDescriptor, mode: BatchNormMode) -> TensorDescriptor:
    """Return a new descriptor of scale, bias and statistics (``cudnnDeriveBNTensorDescriptor``)."""
    made = TensorDescriptor()
    made.call("cudnnDeriveBNTensorDescriptor", x.value, mode, mode=mode)
    return made


def _parameters(x: Any, mode: BatchNormMode, **arrays: Any) -> int:
    """Check scale, bias and statistics; return the address of their shared descriptor."""
    double = is_double(data_type(x.dtype))
    dtype = "float64" if double else "float32"
    if x.ndim < 2:
        raise ArgumentError(f"x has shape {x.shape}; batch normalisation wants (N, C, ...)")
    count = prod(x.shape[1:]) if mode == PER_ACTIVATION else x.shape[1]
    for name, array in arrays.items():
        if array is None:
            continue
        check_array(name, array)
        if array.dtype.name != dtype:
            raise DTypeError(
                f"{name} has dtype {array.dtype.name}; for {x.dtype.name} data it must be {dtype}"
            )
        if array.size != count or not array.flags.c_contiguous:
            raise ArgumentError(
                f"{name} has shape {array.shape}; it must be contiguous with {count} elements for "
                f"x of shape {x.shape} and mode {BatchNormMode(mode).name}"
            )
    described = descriptor_of(x, "x")
    key = (x.dtype, x.shape, x.strides, mode)
    found = _derived.get(key)
    if found is None:
        found = _derived.put(key, derived_descriptor(described, mode))
    return found.value


def forward_inference(
    x: Any,
    scale: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    y: Any = None,
    *,
    mode: BatchNormMode = SPATIAL,
    epsilon: float = 1e-5,
    alpha: float = 1.0,
    beta: float = 0.0,
) -> Any:
    """Return y = alpha * (scale * (x - mean) / sqrt(variance + epsilon) + bias) + beta * y."""
    check_inputs(x=x)
    parameters = _parameters(x, mode, scale=scale, bias=bias, mean=mean, variance=variance)
    y = output("y", y, "x", x, beta)
    one, zero = scalars(x, alpha, beta)
    vectors = (array.data.ptr for array in (scale, bias, mean, variance))
    operands = (*operand(x, "x"), *operand(y, "y"), parameters, *vectors)
    name = "cudnnBatchNormalizationForwardInference"
    context = {"mode": BatchNormMode(mode), "epsilon": epsilon, "x": x, "y": y}
    call(name, mode, one, zero, *operands, epsilon, **context)
    return y


def forward_training(
    x: Any,
    scale: Any,
    bias: Any,
    y: Any = None,
    *,
    running_mean: Any = None,
    running_variance: Any = None,
    momentum: float = 0.1,
    mode: BatchNormMode = SPATIAL,
    epsilon: float = 1e-5,
    z: Any = None,
    activation: ActivationDescriptor | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
) -> Training:
    """Normalise by the batch's statistics and update the running ones.

    ``running = (1 - momentum) * running + momentum * batch``, the batch's variance unbiased.
    With ``activation``, y = activation(bn(x)), or activation(bn(x) + z) where ``z`` is given;
    cuDNN takes that for float16 NHWC in mode SPATIAL_PERSISTENT.
    """
    check_inputs(x=x) if z is None else check_inputs(x=x, z=z)
    if (running_mean is None) != (running_variance is None):
        raise ArgumentError("give both running_mean and running_variance, or none")
    if z is not None and activation is None:
        raise ArgumentError("z is added before an activation, so activation must be given")
    running = {"running_mean": running_mean, "running_variance": running_variance}
    parameters = _parameters(x, mode, scale=scale, bias=bias, **running)
    y = output("y", y, "x", x, beta)
    ops = _ops(z, activation)
    act = activation.value if activation else None
    xs, ys = descriptor_of(x, "x").value, descriptor_of(y, "y").value
    zs = descriptor_of(z, "z").value if z is not None else xs  # ignored, but not NULL
    name = "cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize"
    need = query_size(name, mode, ops, xs, zs, ys, parameters, act)
    keep = query_size("cudnnGetBatchNormalizationTrainingExReserveSpaceSize", mode, ops, act, xs)
    memory = acquire(need)
    reserve = cupy().empty(keep, "uint8")
    mean, deviation = cupy().empty_like(scale), cupy().empty_like(scale)
    one, zero = scalars(x, alpha, beta)
    context = {"mode": BatchNormMode(mode), "ops": ops, "epsilon": epsilon, "x": x, "y": y, "z": z}
    call(
        "cudnnBatchNormalizationForwardTrainingEx", mode, ops, one, zero,
        xs, x.data.ptr, zs, _pointer(z), ys, y.data.ptr, parameters, scale.data.ptr, bias.data.ptr,
        momentum, _pointer(running_mean), _pointer(running_variance), epsilon,
        mean.data.ptr, deviation.data.ptr, act, memory.ptr if memory else None, need,
        reserve.data.ptr if keep else None, keep, **context,
    )  # fmt: skip
    return Training(y, mean, deviation, reserve)


class Gradients(NamedTuple):
    """What the backward pass returns; ``dz`` is None unless z was added."""

    dx: Any
    dscale: Any
    dbias: Any
    dz: Any


def backward(
    x: Any,
    dy: Any,
    scale: Any,
    forward: Training,
    dx: Any = None,
    *,
    bias: Any = None,
    mode: BatchNormMode = SPATIAL,
    epsilon: float = 1e-5,
    activation: ActivationDescriptor | None = None,
    with_z: bool = False,
    alpha: float = 1.0,
    beta: float = 0.0,
) -> Gradients:
    """Return the gradients by x, scale and bias (and z), from what forward_training returned.

    ``bias`` is needed when an ``activation`` was fused.
    """
    check_inputs(x=x, dy=dy)
    mean, deviation = forward.mean, forward.inverse_deviation
    parameters = _parameters(x, mode, scale=scale, bias=bias, mean=mean, deviation=deviation)
    if activation is not None and bias is None:
        raise ArgumentError("with a fused activation, bias must be given")
    dx = output("dx", dx, "x", x, beta)
    dz = cupy().empty_like(x) if with_z else None
    ops = _ops(dz, activation)
    act = activation.value if activation else None
    xs, dys, dxs = (descriptor_of(a, n).value for a, n in ((x, "x"), (dy, "dy"), (dx, "dx")))
    ys = descriptor_of(forward.y, "y").value if activation else xs
    dzs = descriptor_of(dz, "dz").value if dz is not None else xs
    name = "cudnnGetBatchNormalizationBackwardExWorkspaceSize"
    need = query_size(name, mode, ops, xs, ys, dys, dzs, dxs, parameters, act)
    memory = acquire(need)
    dscale, dbias = cupy().empty_like(scale), cupy().empty_like(scale)
    one, zero = scalars(x, alpha, beta)
    param_one, param_zero = scalars(x, 1.0, 0.0)
    keep = forward.reserve.nbytes if forward.reserve is not None else 0
    context = {"mode": BatchNormMode(mode), "ops": ops, "epsilon": epsilon, "x": x, "dy": dy}
    call(
        "cudnnBatchNormalizationBackwardEx", mode, ops, one, zero, param_one, param_zero,
        xs, x.data.ptr, ys, forward.y.data.ptr if activation else None, dys, dy.data.ptr,
        dzs, _pointer(dz), dxs, dx.data.ptr, parameters, scale.data.ptr, _pointer(bias),
        dscale.data.ptr, dbias.data.ptr, epsilon, mean.data.ptr, deviation.data.ptr, act,
        memory.ptr if memory else None, need, forward.reserve.data.ptr if keep else None, keep,
        **context,
    )  # fmt: skip
    return Gradients(dx, dscale, dbias, dz)


def _ops(z: Any, activation: ActivationDescriptor | None) -> BatchNormOps:
    if activation is None:
        return BatchNormOps.CUDNN_BATCHNORM_OPS_BN
    if z is None:
        return BatchNormOps.CUDNN_BATCHNORM_OPS_BN_ACTIVATION
    return BatchNormOps.CUDNN_BATCHNORM_OPS_BN_ADD_ACTIVATION


def _pointer(array: Any) -> int | None:
    return None if array is None else array.data.ptr
