"""CuPy 13's convolution functions."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

from minidnn.cudnn.arrays import Shape, check_array
from minidnn.cudnn.compat.descriptors import (
    CROSS_CORRELATION,
    NCHW,
    check_contiguous,
    get_data_type,
    logical,
)
from minidnn.cudnn.convolution.choose import plan_for
from minidnn.cudnn.convolution.key import (
    ConvolutionKey,
    FilterKey,
    Operation,
    TensorKey,
    check_shapes,
    geometry,
    in_order,
)
from minidnn.cudnn.convolution.plan import ConvolutionPlan
from minidnn.cudnn.descriptor import Memo
from minidnn.cudnn.dtypes import DOUBLE_ONE, ONE, compute_type
from minidnn.cudnn.enums import DataType, MathType, TensorFormat
from minidnn.cudnn.errors import ArgumentError, DTypeError
from minidnn.cudnn.handle import call
from minidnn.cudnn.tensor import described
from minidnn.gpu import cupy

_max_workspace_size = 8 * 1024 * 1024
_warm: Memo[ConvolutionPlan] = Memo(4096)


def get_max_workspace_size() -> int:
    """Return the bytes of workspace that convolutions here may use; 8 MiB at first."""
    return _max_workspace_size


def set_max_workspace_size(size: int) -> None:
    """Set the bytes of workspace that convolutions here may use."""
    global _max_workspace_size
    _max_workspace_size = int(size)


def is_tensor_core_available(dtype: Any) -> bool:
    """Return what CuPy returns: whether dtype is float16 and the device a Volta (7.0).

    On later devices cuDNN uses tensor cores for float16 by itself.
    """
    return bool(dtype.char == "e") and _capability(cupy().cuda.runtime.getDevice()) == "70"


@cache
def _capability(device: int) -> str:
    return str(cupy().cuda.Device(device).compute_capability)


def _use_tensor_core(tensor_core: str, dtype: Any) -> bool:
    if tensor_core in ("auto", "always"):
        return is_tensor_core_available(dtype)
    if tensor_core == "never":
        return False
    raise ArgumentError('tensor_code_mode must be either of "always", "auto", or "never".')


def convolution_forward(
    x: Any,
    W: Any,
    b: Any,
    y: Any,
    pad: Shape,
    stride: Shape,
    dilation: Shape | None,
    groups: int,
    *,
    auto_tune: bool,
    tensor_core: str,
    d_layout: int = NCHW,
    w_layout: int = NCHW,
) -> None:
    """Write convolution(x, W) + b to y; b may be None."""
    x, W = _contiguous(x), _contiguous(W)
    found = _plan(
        "forward", x, W, y, pad, stride, dilation, groups, False, auto_tune, tensor_core,
        d_layout, w_layout,
    )  # fmt: skip
    found.run(x.data.ptr, W.data.ptr, y.data.ptr)
    if b is not None:
        _add_bias(found.out, y, b)


def convolution_backward_filter(
    x: Any,
    gy: Any,
    gW: Any,
    pad: Shape,
    stride: Shape,
    dilation: Shape | None,
    groups: int,
    *,
    deterministic: bool,
    auto_tune: bool,
    tensor_core: str,
    d_layout: int = NCHW,
    w_layout: int = NCHW,
) -> None:
    """Write the gradient by the filter to gW.  Deterministic: chosen without measuring."""
    x, gy = _contiguous(x), _contiguous(gy)
    found = _plan(
        "backward_filter", x, gW, gy, pad, stride, dilation, groups, deterministic, auto_tune,
        tensor_core, d_layout, w_layout,
    )  # fmt: skip
    found.run(x.data.ptr, gy.data.ptr, gW.data.ptr)


def convolution_backward_data(
    W: Any,
    x: Any,
    b: Any,
    y: Any,
    pad: Shape,
    stride: Shape,
    dilation: Shape | None,
    groups: int,
    *,
    deterministic: bool,
    auto_tune: bool,
    tensor_core: str,
    d_layout: int = NCHW,
    w_layout: int = NCHW,
) -> None:
    """Write the gradient by the input, plus b, to y; x is the output's gradient.

    (So it is also the forward pass of a transposed convolution, whose names these are.)
    """
    W, x = _contiguous(W), _contiguous(x)
    found = _plan(
        "backward_data", y, W, x, pad, stride, dilation, groups, deterministic, auto_tune,
        tensor_core, d_layout, w_layout,
    )  # fmt: skip
    found.run(W.data.ptr, x.data.ptr, y.data.ptr)
    if b is not None:
        _add_bias(found.out, y, b)


def _contiguous(array: Any) -> Any:
    return array if array.flags.c_contiguous else cupy().ascontiguousarray(array)


def _plan(operation: Operation, x: Any, w: Any, y: Any, *settings: Any) -> ConvolutionPlan:
    """Return the plan: x, w, y are input, filter and output of the forward convolution.

    The settings are the further arguments of :func:`_key`.
    """
    device = cupy().cuda.runtime.getDevice()
    first, second, out = in_order(operation, x, w, y)
    check_contiguous(out)
    key = (
        operation, x.shape, x.dtype, w.shape, w.dtype, y.shape, y.dtype, settings,
        _max_workspace_size, (x.data.ptr | w.data.ptr | y.data.ptr) & 15, device,
        x.data.device_id, w.data.device_id, y.data.device_id,
    )  # fmt: skip
    found = _warm.get(key)
    if found is None:
        full = _key(operation, x, w, y, *settings)
        found = _warm.put(key, plan_for(full, (first.data.ptr, second.data.ptr)))
        _warn_about_workspace(operation, found)
    return found


def _key(
    operation: Operation,
    x: Any,
    w: Any,
    y: Any,
    pad: Shape,
    stride: Shape,
    dilation: Shape | None,
    groups: int,
    deterministic: bool,
    auto_tune: bool,
    tensor_core: str,
    d_layout: int,
    w_layout: int,
) -> ConvolutionKey:
    for name, array in (("x", x), ("w", w), ("y", y)):
        check_array(name, array)
    if not x.dtype == w.dtype == y.dtype:
        raise DTypeError(
            f"the dtypes must be equal, not {x.dtype.name}, {w.dtype.name} and {y.dtype.name}"
        )
    if len(pad) != len(stride):
        raise ArgumentError("pad and stride must be of same length")
    dtype = DataType(get_data_type(x.dtype))
    (x_shape, x_strides), (y_shape, y_strides) = logical(x, d_layout), logical(y, d_layout)
    w_shape, _ = logical(w, w_layout)
    given = geometry(max(1, len(x_shape) - 2), pad, stride, dilation)
    check_shapes(x_shape, w_shape, y_shape, given, groups)
    # CuPy turns tensor cores off where cuDNN 7 could not use them; that is kept.
    use = not (deterministic and operation != "forward") and _use_tensor_core(tensor_core, x.dtype)
    dilated = any(d > 1 for d in given.dilation)
    use = use and not (dilated and operation != "backward_filter")
    tune = auto_tune and not deterministic
    return ConvolutionKey(
        operation=operation,
        x=TensorKey(dtype, x_shape, x_strides),
        w=FilterKey(dtype, TensorFormat(w_layout if w.ndim == 4 else NCHW), w_shape),
        y=TensorKey(dtype, y_shape, y_strides),
        padding=given.padding,
        stride=given.stride,
        dilation=given.dilation,
        groups=groups,
        mode=CROSS_CORRELATION,
        compute=compute_type(dtype),
        math=MathType.CUDNN_TENSOR_OP_MATH if use else MathType.CUDNN_DEFAULT_MATH,
        search="find_ex" if tune else "heuristic",
        deterministic=bool(deterministic),
        workspace_limit=_max_workspace_size,
        aligned=(x.data.ptr | w.data.ptr | y.data.ptr) % 16 == 0,
        fused=False,
        device=x.data.device_id,
    )


def _warn_about_workspace(operation: str, plan: ConvolutionPlan) -> None:
    """Warn as CuPy does when a better algorithm wanted more workspace (forward, heuristic)."""
    if operation == "forward" and plan.key.search == "heuristic" and plan.unfit:
        category = getattr(cupy()._util, "PerformanceWarning", RuntimeWarning)
        warnings.warn(
            "The best algo of conv fwd might not be selected due to lack of workspace size "
            f"({plan.key.workspace_limit})",
            category,
            stacklevel=4,
        )


def _add_bias(y_descriptor: int, y: Any, b: Any) -> None:
    """Add b to dimension C of y, whose descriptor is in logical order."""
    check_array("b", b)
    if b.dtype != y.dtype:
        raise DTypeError(f"b has dtype {b.dtype.name}, but y has {y.dtype.name}")
    b = _contiguous(b)
    shape = (1, b.size, *(1,) * (y.ndim - 2))
    one = DOUBLE_ONE if y.dtype.char == "d" else ONE
    descriptor = described(b.dtype, shape, (b.size, *(1,) * (y.ndim - 1)))
    arguments = (one, descriptor.value, b.data.ptr, one, y_descriptor, y.data.ptr)
    call("cudnnAddTensor", *arguments, b=b, y=y)
