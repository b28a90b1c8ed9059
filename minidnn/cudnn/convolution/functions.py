"""The public functions: forward convolution, its gradients, and forward convolution with bias,
residual and activation in one call.

They share arguments: ``padding``, ``stride``, ``dilation`` are a number or one per spatial
dimension; ``algorithm`` is "heuristic" (cuDNN guesses), "find" (cuDNN measures on memory of its
own), "find_ex" (measures on the given inputs), or the number of an algorithm; ``math`` is a
:class:`~minidnn.cudnn.enums.MathType` (None: float32 is computed in float32; DEFAULT and
TENSOR_OP allow TF32); ``deterministic`` asks for the same bits every time; ``workspace_limit`` is
in bytes (None: :func:`minidnn.cudnn.workspace.get_limit`).
A repeated call with equal shapes looks its plan up and calls cuDNN, nothing else.

Source: cuDNN, ``cudnnConvolutionForward``, ``cudnnConvolutionBackwardData``,
``cudnnConvolutionBackwardFilter``, ``cudnnConvolutionBackwardBias``,
``cudnnConvolutionBiasActivationForward``.
"""

from __future__ import annotations

from typing import Any

from minidnn.cudnn import library, workspace
from minidnn.cudnn.activation import activation_descriptor
from minidnn.cudnn.arrays import (
    Shape,
    check_array,
    check_same_dtype,
    check_same_shape,
    check_writable,
    element_strides,
    empty,
    layouts,
    scalars,
)
from minidnn.cudnn.convolution.choose import plan_for
from minidnn.cudnn.convolution.key import (
    INTEGERS,
    NHWC,
    Operation,
    check_shapes,
    geometry,
    in_order,
    make_key,
)
from minidnn.cudnn.convolution.plan import ConvolutionPlan
from minidnn.cudnn.descriptor import Memo
from minidnn.cudnn.dtypes import data_type, is_double, scalar
from minidnn.cudnn.enums import ActivationMode, ConvolutionFwdAlgo, ConvolutionMode, MathType
from minidnn.cudnn.errors import ArgumentError, DTypeError
from minidnn.cudnn.handle import call, current_handle
from minidnn.cudnn.tensor import described, descriptor_of, operand
from minidnn.cudnn.workspace import acquire
from minidnn.errors import OutOfMemoryError
from minidnn.gpu import cupy

CROSS_CORRELATION = ConvolutionMode.CUDNN_CROSS_CORRELATION

# Plans by exactly what a caller passed, so that a warm call does nothing but this lookup.
_warm: Memo[ConvolutionPlan] = Memo(4096)


def _plan(
    operation: Operation,
    x: Any,
    w: Any,
    y: Any,
    padding: Any,
    stride: Any,
    dilation: Any,
    groups: int,
    mode: ConvolutionMode,
    compute: Any,
    math: MathType | None,
    algorithm: str | int,
    deterministic: bool,
    workspace_limit: int | None,
    fused: bool = False,
) -> ConvolutionPlan:
    """Return the plan for these arguments from memory, or check them all and make it."""
    device = cupy().cuda.runtime.getDevice()
    limit = workspace.get_limit() if workspace_limit is None else workspace_limit
    try:
        xd, wd, yd = x.data, w.data, y.data
        key = (
            operation, x.shape, x.strides, x.dtype, w.shape, w.strides, w.dtype,
            y.shape, y.strides, y.dtype, padding, stride, dilation, groups, mode, compute, math,
            algorithm, deterministic, limit, fused, (xd.ptr | wd.ptr | yd.ptr) & 15,
            device, xd.device_id, wd.device_id, yd.device_id,
        )  # fmt: skip
        found = _warm.get(key)
    except (AttributeError, TypeError):  # not CuPy arrays, or lists: make_key checks them
        key, found = None, None
    if found is None:
        full = make_key(
            operation, x, w, y, padding=padding, stride=stride, dilation=dilation, groups=groups,
            mode=mode, compute=compute, math=math, search=str(algorithm),
            deterministic=deterministic, workspace_limit=limit, fused=fused, device=device,
        )  # fmt: skip
        first, second, _ = in_order(operation, x, w, y)
        found = plan_for(full, (first.data.ptr, second.data.ptr))
        if key is not None:
            _warm.put(key, found)
    return found


def plan(
    operation: Operation,
    x: Any,
    w: Any,
    y: Any,
    *,
    padding: int | Shape = 0,
    stride: int | Shape = 1,
    dilation: int | Shape = 1,
    groups: int = 1,
    mode: ConvolutionMode = CROSS_CORRELATION,
    compute: Any = None,
    math: MathType | None = None,
    algorithm: str | int = "heuristic",
    deterministic: bool = False,
    workspace_limit: int | None = None,
) -> ConvolutionPlan:
    """Return the plan that a call with these arguments uses: its choice, what was skipped.

    ``operation`` is "forward", "backward_data" or "backward_filter"; x, w, y are input, filter
    and output of the forward convolution, or arrays of their shapes for the gradients.
    """
    return _plan(
        operation, x, w, y, padding, stride, dilation, groups, mode, compute, math, algorithm,
        deterministic, workspace_limit,
    )  # fmt: skip


def forward(
    x: Any,
    w: Any,
    y: Any = None,
    *,
    padding: int | Shape = 0,
    stride: int | Shape = 1,
    dilation: int | Shape = 1,
    groups: int = 1,
    alpha: float = 1.0,
    beta: float = 0.0,
    mode: ConvolutionMode = CROSS_CORRELATION,
    compute: Any = None,
    math: MathType | None = None,
    algorithm: str | int = "heuristic",
    deterministic: bool = False,
    workspace_limit: int | None = None,
) -> Any:
    """Return y = alpha * convolution(x, w) + beta * y.

    x (N, C, ...), w (K, C / groups, ...), y (N, K, ...; new if None, in the layout of ``x``), all
    of one dtype; int8 x and w take int8 or float32 y.  Raises
    :class:`~minidnn.cudnn.errors.ArgumentError` or :class:`~minidnn.cudnn.errors.DTypeError`
    before cuDNN is called, :class:`~minidnn.cudnn.errors.CuDNNError` for what cuDNN refuses.
    """
    if y is None:
        _refuse_beta("y", beta)
        y = _new_output(x, w, padding, stride, dilation, groups)
    found = _plan(
        "forward", x, w, y, padding, stride, dilation, groups, mode, compute, math, algorithm,
        deterministic, workspace_limit,
    )  # fmt: skip
    found.run(x.data.ptr, w.data.ptr, y.data.ptr, alpha, beta)
    return y


def backward_data(
    w: Any,
    dy: Any,
    dx: Any = None,
    *,
    x_shape: Shape | None = None,
    padding: int | Shape = 0,
    stride: int | Shape = 1,
    dilation: int | Shape = 1,
    groups: int = 1,
    alpha: float = 1.0,
    beta: float = 0.0,
    mode: ConvolutionMode = CROSS_CORRELATION,
    compute: Any = None,
    math: MathType | None = None,
    algorithm: str | int = "heuristic",
    deterministic: bool = False,
    workspace_limit: int | None = None,
) -> Any:
    """Return dx = alpha * gradient by the input + beta * dx.

    Give ``dx``, or ``x_shape``: with a stride several shapes of x lead to one of y.
    """
    if dx is None:
        _refuse_beta("dx", beta)
        if x_shape is None:
            raise ArgumentError("give dx, or the shape of x as x_shape")
        _check_pair("w", w, "dy", dy)
        dx = empty(tuple(x_shape), dy.dtype, _is_nhwc(dy, w))
    found = _plan(
        "backward_data", dx, w, dy, padding, stride, dilation, groups, mode, compute, math,
        algorithm, deterministic, workspace_limit,
    )  # fmt: skip
    found.run(w.data.ptr, dy.data.ptr, dx.data.ptr, alpha, beta)
    return dx


def backward_filter(
    x: Any,
    dy: Any,
    dw: Any = None,
    *,
    w_shape: Shape | None = None,
    padding: int | Shape = 0,
    stride: int | Shape = 1,
    dilation: int | Shape = 1,
    groups: int = 1,
    alpha: float = 1.0,
    beta: float = 0.0,
    mode: ConvolutionMode = CROSS_CORRELATION,
    compute: Any = None,
    math: MathType | None = None,
    algorithm: str | int = "heuristic",
    deterministic: bool = False,
    workspace_limit: int | None = None,
) -> Any:
    """Return dw = alpha * gradient by the filter + beta * dw.

    Give ``dw``, or ``w_shape``: with a stride several shapes of w lead to one of y.
    """
    if dw is None:
        _refuse_beta("dw", beta)
        if w_shape is None:
            raise ArgumentError("give dw, or the shape of w as w_shape")
        _check_pair("x", x, "dy", dy)
        dw = empty(tuple(w_shape), x.dtype, _is_nhwc(x, dy))
    found = _plan(
        "backward_filter", x, dw, dy, padding, stride, dilation, groups, mode, compute, math,
        algorithm, deterministic, workspace_limit,
    )  # fmt: skip
    found.run(x.data.ptr, dy.data.ptr, dw.data.ptr, alpha, beta)
    return dw


def backward_bias(dy: Any, db: Any = None, *, alpha: float = 1.0, beta: float = 0.0) -> Any:
    """Return db = alpha * sum of dy over all but its channels + beta * db, of shape (K,)."""
    check_array("dy", dy)
    if dy.ndim not in (3, 4, 5):
        raise ArgumentError(f"dy has shape {dy.shape}; it must be (N, K, ...)")
    channels = dy.shape[1]
    if db is None:
        _refuse_beta("db", beta)
        db = cupy().empty((channels,), dy.dtype)
    check_array("db", db)
    check_same_dtype("dy", dy, "db", db)
    check_writable("db", db)
    if db.size != channels or not db.flags.c_contiguous:
        raise ArgumentError(f"db has shape {db.shape}; it must be {channels} contiguous elements")
    one, zero = scalars(dy, alpha, beta)
    shape = (1, channels) + (1,) * max(2, dy.ndim - 2)
    target = described(db.dtype, shape, (channels,) + (1,) * (len(shape) - 1))
    arguments = (one, *operand(dy, "dy"), zero, target.value, db.data.ptr)
    call("cudnnConvolutionBackwardBias", *arguments, dy=dy, db=db)
    return db


def _check_pair(first: str, one: Any, second: str, other: Any) -> None:
    check_array(first, one)
    check_array(second, other)
    if one.ndim not in (3, 4, 5) or other.ndim != one.ndim:
        raise ArgumentError(
            f"{first} has shape {one.shape} and {second} has shape {other.shape}; both need one "
            "to three spatial dimensions, and as many"
        )


def _new_output(x: Any, w: Any, padding: Any, stride: Any, dilation: Any, groups: int) -> Any:
    """Return memory for the output of a forward convolution, in the layout of ``x``."""
    _check_pair("x", x, "w", w)
    window = geometry(max(1, x.ndim - 2), padding, stride, dilation)
    return empty(check_shapes(x.shape, w.shape, None, window, groups), x.dtype, _is_nhwc(x, w))


def _refuse_beta(name: str, beta: float) -> None:
    if beta != 0:
        raise ArgumentError(f"beta={beta} adds to {name}, so {name} must be given")


def _is_nhwc(one: Any, other: Any) -> bool:
    """Return whether an output should be channels-last: one input is, and none is NCHW only."""
    have = [
        layouts(array.shape, element_strides(name, array))
        for name, array in (("the first input", one), ("the second input", other))
    ]
    return (NHWC,) in have and all(NHWC in found or not found for found in have)


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
        y = _new_output(x, w, padding, stride, dilation, groups)
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
    """Run the fused convolution; on failure fall back as :meth:`ConvolutionPlan.run` does."""
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
