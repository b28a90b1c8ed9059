"""Element-wise work on tensors: binary operations with broadcasting, add, fill, scale.

Source: cuDNN, ``cudnnOpTensor``, ``cudnnAddTensor``, ``cudnnSetTensor``, ``cudnnScaleTensor``.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Self

from minidnn.cudnn.arrays import check_array, check_same_dtype, check_writable, output, scalars
from minidnn.cudnn.descriptor import Descriptor
from minidnn.cudnn.dtypes import compute_type, data_type, is_double, scalar
from minidnn.cudnn.enums import DataType, NanPropagation, OpTensorOp
from minidnn.cudnn.errors import ArgumentError
from minidnn.cudnn.handle import call
from minidnn.cudnn.tensor import operand

PROPAGATE = NanPropagation.CUDNN_PROPAGATE_NAN
UNARY = (OpTensorOp.CUDNN_OP_TENSOR_SQRT, OpTensorOp.CUDNN_OP_TENSOR_NOT)


class OpTensorInfo(NamedTuple):
    """What an op-tensor descriptor holds."""

    op: OpTensorOp
    compute_type: DataType
    nan: NanPropagation


class OpTensorDescriptor(Descriptor):
    """A ``cudnnOpTensorDescriptor_t``; ``OpTensorDescriptor()`` is not initialised."""

    __slots__ = ()
    KIND = "OpTensor"

    @classmethod
    def of(cls, op: OpTensorOp, compute: Any, nan: NanPropagation = PROPAGATE) -> Self:
        """Describe an operation; ``compute`` is a dtype or :class:`DataType`."""
        made = cls()
        made.set(op, compute, nan)
        return made

    def set(self, op: OpTensorOp, compute: Any, nan: NanPropagation = PROPAGATE) -> None:
        """``cudnnSetOpTensorDescriptor``."""
        data = data_type(compute)
        context = {"op": op, "compute_type": data, "nan": nan}
        self._set("cudnnSetOpTensorDescriptor", op, data, nan, **context)

    def get(self) -> OpTensorInfo:
        """``cudnnGetOpTensorDescriptor``."""
        op, data, nan = self.query_ints("cudnnGetOpTensorDescriptor", 3)
        return OpTensorInfo(OpTensorOp(op), DataType(data), NanPropagation(nan))


def apply(
    op: OpTensorOp,
    a: Any,
    b: Any = None,
    c: Any = None,
    *,
    alpha1: float = 1.0,
    alpha2: float = 1.0,
    beta: float = 0.0,
    nan: NanPropagation = PROPAGATE,
) -> Any:
    """Return c = op(alpha1 * a, alpha2 * b) + beta * c.

    Each extent of ``b`` is that of ``a`` or 1 (broadcast).  SQRT and NOT (1 - a) take no ``b``.
    """
    check_array("a", a)
    if (b is None) != (op in UNARY):
        needs = "takes no b" if op in UNARY else "needs b"
        raise ArgumentError(f"{OpTensorOp(op).name} {needs}")
    if b is None:
        b = a
    else:
        check_array("b", b)
        check_same_dtype("a", a, "b", b)
        _check_broadcast("b", b, "a", a)
    c = output("c", c, "a", a, beta)
    double = is_double(data_type(a.dtype))
    with OpTensorDescriptor.of(op, compute_type(data_type(a.dtype)), nan) as descriptor:
        first = (scalar(alpha1, double), *operand(a, "a"))
        second = (scalar(alpha2, double), *operand(b, "b"))
        result = (scalar(beta, double), *operand(c, "c"))
        context = {"op": OpTensorOp(op), "a": a, "b": b, "c": c}
        call("cudnnOpTensor", descriptor.value, *first, *second, *result, **context)
    return c


def add(a: Any, c: Any, *, alpha: float = 1.0, beta: float = 1.0) -> Any:
    """Return c = alpha * a + beta * c in place; each extent of ``a`` is that of ``c`` or 1."""
    check_array("a", a)
    check_array("c", c)
    check_same_dtype("c", c, "a", a)
    check_writable("c", c)
    _check_broadcast("a", a, "c", c)
    one, zero = scalars(c, alpha, beta)
    call("cudnnAddTensor", one, *operand(a, "a"), zero, *operand(c, "c"), a=a, c=c)
    return c


def fill(y: Any, value: float) -> Any:
    """Set every element of ``y`` (floating or int8) to ``value`` and return ``y``."""
    check_array("y", y)
    check_writable("y", y)
    # As for alpha and beta, cuDNN reads a float here whatever the type of y, except double.
    pointer = scalar(value, is_double(data_type(y.dtype)))
    call("cudnnSetTensor", *operand(y, "y"), pointer, y=y, value=value)
    return y


def scale(y: Any, alpha: float) -> Any:
    """Multiply every element of ``y`` by ``alpha`` and return ``y``."""
    check_array("y", y)
    check_writable("y", y)
    factor = scalar(alpha, is_double(data_type(y.dtype)))
    call("cudnnScaleTensor", *operand(y, "y"), factor, y=y, alpha=alpha)
    return y


def _check_broadcast(name: str, small: Any, big_name: str, big: Any) -> None:
    fits = small.ndim == big.ndim and all(
        s in (1, e) for s, e in zip(small.shape, big.shape, strict=True)
    )
    if not fits:
        raise ArgumentError(
            f"{name} has shape {small.shape}; each extent must be 1 or that of {big_name}, "
            f"{big.shape}"
        )
