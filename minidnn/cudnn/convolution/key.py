"""The key of a convolution: plain data with everything that the choice of algorithm depends on."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, Literal, NamedTuple, TypeVar

from minidnn.cudnn.arrays import (
    Shape,
    at_least_4d,
    check_array,
    check_writable,
    element_strides,
    layouts,
    per_axis,
    settled_strides,
)
from minidnn.cudnn.dtypes import compute_type, data_type
from minidnn.cudnn.enums import ConvolutionMode, DataType, MathType, TensorFormat
from minidnn.cudnn.errors import ArgumentError, DTypeError
from minidnn.cudnn.tensor import filter_layouts

Operation = Literal["forward", "backward_data", "backward_filter"]
NCHW = TensorFormat.CUDNN_TENSOR_NCHW
NHWC = TensorFormat.CUDNN_TENSOR_NHWC
T = TypeVar("T")
INTEGERS = (DataType.CUDNN_DATA_INT8, DataType.CUDNN_DATA_UINT8)


def in_order(operation: Operation, x: T, w: T, y: T) -> tuple[T, T, T]:
    """Return the three in the operation's order: first input, second input, output."""
    if operation == "forward":
        return x, w, y
    if operation == "backward_data":
        return w, y, x
    return x, y, w


class TensorKey(NamedTuple):
    """Type, shape and strides (in elements) of a tensor."""

    dtype: DataType
    shape: Shape
    strides: Shape


class FilterKey(NamedTuple):
    """Type, layout and shape of a dense filter."""

    dtype: DataType
    format: TensorFormat
    shape: Shape


@dataclass(frozen=True, slots=True)
class ConvolutionKey:
    """One convolution on one device, and the constraints on its algorithm.

    ``x`` and ``y`` are input and output of the forward convolution in every operation.
    ``search`` is "heuristic", "find", "find_ex" or the number of an algorithm; ``math`` tells which
    units may compute; ``deterministic`` asks for equal bits every time; ``aligned`` says whether
    all addresses are multiples of 16 bytes; ``fused`` says whether bias and activation follow, so
    that fused and plain convolutions share no plan and no fallback.
    """

    operation: Operation
    x: TensorKey
    w: FilterKey
    y: TensorKey
    padding: Shape
    stride: Shape
    dilation: Shape
    groups: int
    mode: ConvolutionMode
    compute: DataType
    math: MathType
    search: str
    deterministic: bool
    workspace_limit: int
    aligned: bool
    fused: bool
    device: int

    def stored(self) -> list[Any]:
        """Return the values of all fields, in a form that JSON can hold."""
        return [getattr(self, field.name) for field in fields(self)]

    @classmethod
    def restored(cls, stored: list[Any]) -> ConvolutionKey:
        """Return the key whose :meth:`stored` values have gone through JSON."""
        data = dict(zip((field.name for field in fields(cls)), stored, strict=True))
        for name in ("x", "y"):
            dtype, shape, strides = data[name]
            data[name] = TensorKey(DataType(dtype), tuple(shape), tuple(strides))
        dtype, layout, shape = data["w"]
        data["w"] = FilterKey(DataType(dtype), TensorFormat(layout), tuple(shape))
        data |= {name: tuple(data[name]) for name in ("padding", "stride", "dilation")}
        kinds: dict[str, type[IntEnum]]
        kinds = {"mode": ConvolutionMode, "compute": DataType, "math": MathType}
        return cls(**data | {name: kind(data[name]) for name, kind in kinds.items()})

    def describe(self) -> dict[str, Any]:
        """Return what an error message should tell about the convolution, by name."""
        return {
            "x": _tensor_text(self.x),
            "w": f"shape={self.w.shape}, dtype={self.w.dtype.name}, layout={self.w.format.name}",
            "y": _tensor_text(self.y),
            "padding": self.padding,
            "stride": self.stride,
            "dilation": self.dilation,
            "groups": self.groups,
            "mode": self.mode,
            "compute type": self.compute,
            "math type": self.math,
            "algorithm search": self.search,
            "deterministic": self.deterministic,
            "workspace limit": self.workspace_limit,
            "device": self.device,
        }


def _tensor_text(key: TensorKey) -> str:
    have = layouts(key.shape, key.strides)
    layout = have[0].name if have else "strided"
    return f"shape={key.shape}, dtype={key.dtype.name}, strides={key.strides}, layout={layout}"


class Geometry(NamedTuple):
    """Checked padding, stride and dilation, one number for each spatial dimension."""

    padding: Shape
    stride: Shape
    dilation: Shape


def geometry(spatial: int, padding: Any, stride: Any, dilation: Any) -> Geometry:
    """Check the three arguments (a number, or one per dimension); None means the default."""
    full = []
    rows = (("padding", padding, 0), ("stride", stride, 1), ("dilation", dilation, 1))
    for name, value, least in rows:
        full.append(per_axis(name, least if value is None else value, spatial, least))
    return Geometry(*full)


def output_shape(x: Shape, w: Shape, geometry: Geometry) -> Shape:
    """Return the shape of the forward output, (N, K, ...)."""
    extents = []
    for axis, (p, s, d) in enumerate(zip(*geometry, strict=True), start=2):
        reach = d * (w[axis] - 1) + 1
        if x[axis] + 2 * p < reach:
            raise ArgumentError(
                f"the filter (shape {w}, dilation {geometry.dilation}) reaches over {reach} in "
                f"dimension {axis}, but x of shape {x} with padding {geometry.padding} has only "
                f"{x[axis] + 2 * p}"
            )
        extents.append((x[axis] + 2 * p - reach) // s + 1)
    return (x[0], w[0], *extents)


def check_shapes(x: Shape, w: Shape, y: Shape | None, given: Geometry, groups: int) -> Shape:
    """Check the shapes against each other and return that of the forward output."""
    rank = len(x)
    if rank not in (3, 4, 5) or len(w) != rank:
        raise ArgumentError(
            f"x has shape {x} and w has shape {w}; a convolution takes (N, C, ...) and "
            "(K, C / groups, ...) with one to three spatial dimensions"
        )
    if groups < 1 or w[0] % groups:
        raise ArgumentError(f"groups={groups} must divide the {w[0]} filters of w (shape {w})")
    if x[1] != w[1] * groups:
        raise ArgumentError(
            f"x has {x[1]} channels (shape {x}), but w of shape {w} with groups={groups} takes "
            f"{w[1] * groups}"
        )
    expected = output_shape(x, w, given)
    if y is not None and y != expected:
        raise ArgumentError(
            f"y has shape {y}, but x of shape {x} and w of shape {w} with padding="
            f"{given.padding}, stride={given.stride}, dilation={given.dilation} give {expected}"
        )
    return expected


def check_dtypes(x: Any, w: Any, y: Any) -> None:
    """Raise for dtypes of which cuDNN has no convolution."""
    kinds = [data_type(array.dtype) for array in (x, w, y)]
    if kinds[0] in INTEGERS:
        if kinds[1] != DataType.CUDNN_DATA_INT8:
            raise DTypeError(f"w has dtype {w.dtype.name}; with {x.dtype.name} x it must be int8")
        return
    if kinds[1] != kinds[0] or kinds[2] != kinds[0]:
        raise DTypeError(
            f"x has dtype {x.dtype.name}, w {w.dtype.name}, y {y.dtype.name}; they must be equal"
        )


def exact_math(data: DataType) -> MathType:
    """Return the math type that keeps products as exact as the data: no TF32 for float32."""
    single = data == DataType.CUDNN_DATA_FLOAT
    return MathType.CUDNN_FMA_MATH if single else MathType.CUDNN_DEFAULT_MATH


def make_key(
    operation: Operation,
    x: Any,
    w: Any,
    y: Any,
    *,
    padding: Any,
    stride: Any,
    dilation: Any,
    groups: int,
    mode: ConvolutionMode,
    compute: Any,
    math: MathType | None,
    search: str,
    deterministic: bool,
    workspace_limit: int,
    fused: bool,
    device: int,
) -> ConvolutionKey:
    """Check arrays and arguments and return the key.  The three arrays are CuPy arrays."""
    for name, array in (("x", x), ("w", w), ("y", y)):
        check_array(name, array, device)
    given = geometry(max(1, x.ndim - 2), padding, stride, dilation)
    check_shapes(x.shape, w.shape, y.shape, given, groups)
    check_dtypes(x, w, y)
    check_writable(*in_order(operation, ("x", x), ("w", w), ("y", y))[2])
    prefer = _common_layout(x, w, y)
    if x.ndim == 3:  # cuDNN has no 1-d convolution: a second dimension of extent 1
        given = Geometry((*given.padding, 0), (*given.stride, 1), (*given.dilation, 1))
    data = data_type(x.dtype)
    addresses = x.data.ptr | w.data.ptr | y.data.ptr
    return ConvolutionKey(
        operation=operation,
        x=_tensor_key("x", x, prefer),
        w=_filter_key(w, prefer),
        y=_tensor_key("y", y, prefer),
        padding=given.padding,
        stride=given.stride,
        dilation=given.dilation,
        groups=groups,
        mode=ConvolutionMode(mode),
        compute=compute_type(data) if compute is None else data_type(compute),
        math=exact_math(data) if math is None else MathType(math),
        search=search,
        deterministic=bool(deterministic),
        workspace_limit=workspace_limit,
        aligned=addresses % 16 == 0,
        fused=fused,
        device=device,
    )


def _common_layout(x: Any, w: Any, y: Any) -> TensorFormat:
    """Return the layout that all three have, NCHW first; extents of 1 can be read either way."""
    have = [layouts(a.shape, element_strides(n, a)) for n, a in (("x", x), ("w", w), ("y", y))]
    for layout in (NCHW, NHWC):
        if all(layout in found for found in have):
            return layout
    votes = [found[0] for found in have if len(found) == 1]
    return votes[0] if votes else NCHW


def _tensor_key(name: str, array: Any, prefer: TensorFormat) -> TensorKey:
    shape, strides = at_least_4d(array.shape, element_strides(name, array))
    return TensorKey(data_type(array.dtype), shape, settled_strides(shape, strides, prefer))


def _filter_key(w: Any, prefer: TensorFormat) -> FilterKey:
    have = filter_layouts("w", w)
    shape = w.shape + (1,) * max(0, 4 - w.ndim)
    return FilterKey(data_type(w.dtype), prefer if prefer in have else have[0], shape)
