"""CuPy 13's batch normalisation."""

from __future__ import annotations

import ctypes
import warnings
from math import prod
from typing import Any, NamedTuple

from minidnn.cudnn.arrays import Shape, check_array, packed_strides
from minidnn.cudnn.batch_norm import derived_descriptor
from minidnn.cudnn.compat.descriptors import NCHW, NHWC, get_data_type, logical
from minidnn.cudnn.descriptor import Memo
from minidnn.cudnn.dtypes import DOUBLE_ONE, DOUBLE_ZERO, ONE
from minidnn.cudnn.enums import BatchNormMode, BatchNormOps, ErrQueryMode
from minidnn.cudnn.errors import ArgumentError
from minidnn.cudnn.handle import call, query_size
from minidnn.cudnn.tensor import TensorDescriptor, described
from minidnn.errors import stack_level
from minidnn.gpu import cupy

OPS = BatchNormOps.CUDNN_BATCHNORM_OPS_BN
PERSISTENT = BatchNormMode.CUDNN_BATCHNORM_SPATIAL_PERSISTENT
PER_ACTIVATION = BatchNormMode.CUDNN_BATCHNORM_PER_ACTIVATION


class _Described(NamedTuple):
    """Descriptors of x and of its parameters, and the shape of x in the order N, C, ..."""

    x: TensorDescriptor
    parameters: TensorDescriptor
    shape: Shape
    dtype: str  # of scale, bias and statistics


_described: Memo[_Described] = Memo(1024)


def _describe(x: Any, is_for_conv2d: bool, mode: int, d_layout: int) -> _Described:
    check_array("x", x)
    key = (x.shape, x.dtype, is_for_conv2d, mode, d_layout)
    found = _described.get(key)
    if found is None:
        get_data_type(x.dtype)
        if is_for_conv2d:
            shape, strides = logical(x, d_layout)
        else:
            last = x.shape[-1] if x.ndim else 1
            shape = (x.size // last, last, 1, 1)
            strides = packed_strides(shape)
        prefer = NHWC if is_for_conv2d and x.ndim == 4 and d_layout == NHWC else NCHW
        descriptor = described(x.dtype, shape, strides, prefer)
        parameters = derived_descriptor(descriptor, BatchNormMode(mode))
        dtype = "float64" if x.dtype.char == "d" else "float32"
        found = _described.put(key, _Described(descriptor, parameters, shape, dtype))
    return found


def _check_parameters(about: _Described, mode: int, **arrays: Any) -> None:
    """Raise unless each array has as many elements as cuDNN will read or write."""
    count = prod(about.shape[1:]) if mode == PER_ACTIVATION else about.shape[1]
    for name, array in arrays.items():
        check_array(name, array)
        if array.size != count:
            raise ArgumentError(
                f"{name} has shape {array.shape}, {array.size} elements; x of shape "
                f"{about.shape} (N, C, ...) with {BatchNormMode(mode).name} needs {count}"
            )


def _as(array: Any, dtype: str) -> Any:
    return cupy().ascontiguousarray(array, dtype=dtype)


def _one(x: Any) -> Any:
    return DOUBLE_ONE if x.dtype.char == "d" else ONE


def batch_normalization_forward_training(
    x: Any,
    gamma: Any,
    beta: Any,
    running_mean: Any,
    running_var: Any,
    mean: Any,
    inv_std: Any,
    eps: float,
    decay: float,
    is_for_conv2d: bool,
    cudnn_mode: int,
    debug: bool,
    d_layout: int = NCHW,
) -> Any:
    """Return y, save_mean, save_inv_std; only y where mean and inv_std are given to write to.

    running = decay * running + (1 - decay) * batch, in place.
    """
    reserve, y, save_mean, save_inv_std = _forward_training(
        x, gamma, beta, running_mean, running_var, mean, inv_std, eps, decay, is_for_conv2d,
        cudnn_mode, debug, d_layout,
    )  # fmt: skip
    if reserve is not None:
        warnings.warn(
            "Could be faster by calling batch_normalization_forward_training_ex() instead of "
            "batch_normalization_forward_training().",
            getattr(cupy()._util, "PerformanceWarning", RuntimeWarning),
            stacklevel=2,
        )
    return (y, save_mean, save_inv_std) if mean is None else y


def batch_normalization_forward_training_ex(
    x: Any,
    gamma: Any,
    beta: Any,
    running_mean: Any,
    running_var: Any,
    mean: Any,
    inv_std: Any,
    eps: float,
    decay: float,
    is_for_conv2d: bool,
    cudnn_mode: int,
    debug: bool,
    d_layout: int = NCHW,
) -> Any:
    """Return reserve_space, y, save_mean, save_inv_std; the first two where mean is given.

    ``reserve_space`` is None, or memory for the backward pass (persistent mode, float16 NHWC).
    """
    reserve, y, save_mean, save_inv_std = _forward_training(
        x, gamma, beta, running_mean, running_var, mean, inv_std, eps, decay, is_for_conv2d,
        cudnn_mode, debug, d_layout,
    )  # fmt: skip
    return (reserve, y, save_mean, save_inv_std) if mean is None else (reserve, y)


def _forward_training(
    x: Any,
    gamma: Any,
    beta: Any,
    running_mean: Any,
    running_var: Any,
    mean: Any,
    inv_std: Any,
    eps: float,
    decay: float,
    is_for_conv2d: bool,
    mode: int,
    debug: bool,
    d_layout: int,
) -> tuple[Any, Any, Any, Any]:
    if (mean is None) != (inv_std is None):
        raise ArgumentError("Both mean and inv_std must be None if one is.")
    x = cupy().ascontiguousarray(x)
    about = _describe(x, is_for_conv2d, mode, d_layout)
    given = {"gamma": gamma, "beta": beta, "running_mean": running_mean, "running_var": running_var}
    _check_parameters(about, mode, **given)
    gamma, beta = _as(gamma, about.dtype), _as(beta, about.dtype)
    run_mean, run_var = _as(running_mean, about.dtype), _as(running_var, about.dtype)
    if mean is None:
        save_mean = cupy().empty(gamma.shape, about.dtype)
        save_inv_std = cupy().empty(gamma.shape, about.dtype)
    else:
        save_mean, save_inv_std = mean, inv_std
        _check_saved(about, mode, mean, inv_std)
    y = cupy().empty(x.shape, x.dtype)
    xd = about.x.value
    alloc = cupy().cuda.memory.alloc
    workspace = reserve = None
    need = keep = 0
    if _has_fast_nhwc(x, mode, d_layout):
        name = "cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize"
        need = query_size(name, mode, OPS, xd, xd, xd, about.parameters.value, None)
        workspace = alloc(need)
        name = "cudnnGetBatchNormalizationTrainingExReserveSpaceSize"
        keep = query_size(name, mode, OPS, None, xd)
        reserve = alloc(keep)
    context = {"mode": BatchNormMode(mode), "x": x, "gamma": gamma, "eps": eps}
    call(
        "cudnnBatchNormalizationForwardTrainingEx", mode, OPS, _one(x), DOUBLE_ZERO,
        xd, x.data.ptr, xd, None, xd, y.data.ptr,
        about.parameters.value, gamma.data.ptr, beta.data.ptr,
        1.0 - decay, run_mean.data.ptr, run_var.data.ptr, eps,
        save_mean.data.ptr, save_inv_std.data.ptr, None,
        workspace.ptr if workspace else None, need, reserve.ptr if reserve else None, keep,
        **context,
    )  # fmt: skip
    if debug and mode == PERSISTENT:
        _warn_of_overflow()
    for temporary, target in ((run_mean, running_mean), (run_var, running_var)):
        if temporary is not target:
            cupy().copyto(target, temporary.reshape(target.shape), casting="unsafe")
    return reserve, y, save_mean, save_inv_std


def _check_saved(about: _Described, mode: int, mean: Any, inv_std: Any) -> None:
    _check_parameters(about, mode, mean=mean, inv_std=inv_std)
    for name, array in (("mean", mean), ("inv_std", inv_std)):
        if array.dtype.name != about.dtype or not array.flags.c_contiguous:
            raise ArgumentError(
                f"{name} has dtype {array.dtype.name}; it is written to, so it must be contiguous "
                f"{about.dtype}"
            )


def _has_fast_nhwc(x: Any, mode: int, d_layout: int) -> bool:
    """Return whether cuDNN has a faster NHWC kernel, which needs workspace and reserve space."""
    right_kind = mode == PERSISTENT and x.dtype.char == "e" and d_layout == NHWC
    return bool(right_kind and x.shape[3] % 4 == 0)


def _warn_of_overflow() -> None:
    """Ask, after waiting for the kernel, whether the persistent mode overflowed."""
    found = ctypes.c_int()
    blocking = ErrQueryMode.CUDNN_ERRQUERY_BLOCKING
    call("cudnnQueryRuntimeError", ctypes.byref(found), blocking, None)
    if found.value:
        warnings.warn(
            "A numerical overflow might have happened in cuDNN batch normalization "
            f"(status:{found.value})",
            RuntimeWarning,
            stacklevel=stack_level(),  # the forward functions have one more frame
        )


def batch_normalization_forward_inference(
    x: Any,
    gamma: Any,
    beta: Any,
    mean: Any,
    var: Any,
    eps: float,
    is_for_conv2d: bool,
    cudnn_mode: int,
    d_layout: int = NCHW,
) -> Any:
    """Return gamma * (x - mean) / sqrt(var + eps) + beta."""
    x = cupy().ascontiguousarray(x)
    about = _describe(x, is_for_conv2d, cudnn_mode, d_layout)
    _check_parameters(about, cudnn_mode, gamma=gamma, beta=beta, mean=mean, var=var)
    gamma, beta, mean, var = (_as(array, about.dtype) for array in (gamma, beta, mean, var))
    y = cupy().empty(x.shape, x.dtype)
    xd = about.x.value
    context = {"mode": BatchNormMode(cudnn_mode), "x": x, "gamma": gamma, "eps": eps}
    call(
        "cudnnBatchNormalizationForwardInference", cudnn_mode, _one(x), DOUBLE_ZERO,
        xd, x.data.ptr, xd, y.data.ptr, about.parameters.value,
        gamma.data.ptr, beta.data.ptr, mean.data.ptr, var.data.ptr, eps, **context,
    )  # fmt: skip
    return y


def batch_normalization_backward(
    x: Any,
    gamma: Any,
    gy: Any,
    mean: Any,
    inv_std: Any,
    eps: float,
    is_for_conv2d: bool,
    cudnn_mode: int,
    debug: bool,
    d_layout: int = NCHW,
    *,
    reserve_space: Any = None,
) -> tuple[Any, Any, Any]:
    """Return the gradients by x, gamma and beta; the latter in the dtype of x if gamma's is not
    what cuDNN computes in.
    """
    x, gy = cupy().ascontiguousarray(x), cupy().ascontiguousarray(gy)
    if gy.shape != x.shape or gy.dtype != x.dtype:
        raise ArgumentError(
            f"gy has shape {gy.shape} and dtype {gy.dtype.name}, x {x.shape} and {x.dtype.name}"
        )
    about = _describe(x, is_for_conv2d, cudnn_mode, d_layout)
    _check_parameters(about, cudnn_mode, gamma=gamma, mean=mean, inv_std=inv_std)
    cast = gamma.dtype.name != about.dtype
    gamma, mean, inv_std = (_as(array, about.dtype) for array in (gamma, mean, inv_std))
    gx = cupy().empty(x.shape, x.dtype)
    ggamma, gbeta = (cupy().empty(gamma.shape, about.dtype) for _ in range(2))
    xd, parameters = about.x.value, about.parameters.value
    name = "cudnnGetBatchNormalizationBackwardExWorkspaceSize"
    need = query_size(name, cudnn_mode, OPS, xd, xd, xd, xd, xd, parameters, None)
    workspace = cupy().cuda.memory.alloc(need)
    keep = reserve_space.mem.size if reserve_space is not None else 0
    context = {"mode": BatchNormMode(cudnn_mode), "x": x, "gamma": gamma, "eps": eps}
    call(
        "cudnnBatchNormalizationBackwardEx", cudnn_mode, OPS,
        _one(x), DOUBLE_ZERO, _one(x), DOUBLE_ZERO,
        xd, x.data.ptr, xd, None, xd, gy.data.ptr, xd, None, xd, gx.data.ptr,
        parameters, gamma.data.ptr, None, ggamma.data.ptr, gbeta.data.ptr, eps,
        mean.data.ptr, inv_std.data.ptr, None,
        workspace.ptr or None, need, reserve_space.ptr if keep else None, keep, **context,
    )  # fmt: skip
    if debug and cudnn_mode == PERSISTENT:
        _warn_of_overflow()
    if cast:
        ggamma, gbeta = ggamma.astype(x.dtype), gbeta.astype(x.dtype)
    return gx, ggamma, gbeta
