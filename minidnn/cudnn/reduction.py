"""Reductions over any dimensions: c = alpha * reduce(a) + beta * c.

Source: cuDNN, ``cudnnReduceTensor``.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Self

from minidnn.cudnn.arrays import Shape, check_array, check_same_dtype, check_writable, scalars
from minidnn.cudnn.descriptor import Descriptor
from minidnn.cudnn.dtypes import compute_type, data_type
from minidnn.cudnn.enums import (
    DataType,
    IndicesType,
    NanPropagation,
    ReduceTensorIndices,
    ReduceTensorOp,
)
from minidnn.cudnn.errors import ArgumentError
from minidnn.cudnn.handle import call, query_size
from minidnn.cudnn.tensor import TensorDescriptor, descriptor_of
from minidnn.cudnn.workspace import acquire
from minidnn.gpu import cupy

PROPAGATE = NanPropagation.CUDNN_PROPAGATE_NAN
FLATTENED = ReduceTensorIndices.CUDNN_REDUCE_TENSOR_FLATTENED_INDICES
NO_INDICES = ReduceTensorIndices.CUDNN_REDUCE_TENSOR_NO_INDICES
WITH_INDICES = (
    ReduceTensorOp.CUDNN_REDUCE_TENSOR_MIN,
    ReduceTensorOp.CUDNN_REDUCE_TENSOR_MAX,
    ReduceTensorOp.CUDNN_REDUCE_TENSOR_AMAX,
)


class ReduceTensorInfo(NamedTuple):
    """What a reduction descriptor holds."""

    op: ReduceTensorOp
    compute_type: DataType
    nan: NanPropagation
    indices: ReduceTensorIndices
    indices_type: IndicesType


class ReduceTensorDescriptor(Descriptor):
    """A ``cudnnReduceTensorDescriptor_t``; ``ReduceTensorDescriptor()`` is not initialised."""

    __slots__ = ()
    KIND = "ReduceTensor"

    @classmethod
    def of(
        cls,
        op: ReduceTensorOp,
        compute: Any,
        nan: NanPropagation = PROPAGATE,
        indices: ReduceTensorIndices = NO_INDICES,
        indices_type: IndicesType = IndicesType.CUDNN_32BIT_INDICES,
    ) -> Self:
        """Describe a reduction; ``compute`` is a dtype or :class:`DataType`."""
        made = cls()
        made.set(op, compute, nan, indices, indices_type)
        return made

    def set(
        self,
        op: ReduceTensorOp,
        compute: Any,
        nan: NanPropagation,
        indices: ReduceTensorIndices,
        indices_type: IndicesType,
    ) -> None:
        """``cudnnSetReduceTensorDescriptor``."""
        values = (op, data_type(compute), nan, indices, indices_type)
        context = dict(zip(ReduceTensorInfo._fields, values, strict=True))
        self._set("cudnnSetReduceTensorDescriptor", *values, **context)

    def get(self) -> ReduceTensorInfo:
        """``cudnnGetReduceTensorDescriptor``."""
        op, data, nan, indices, width = self.query_ints("cudnnGetReduceTensorDescriptor", 5)
        return ReduceTensorInfo(
            ReduceTensorOp(op),
            DataType(data),
            NanPropagation(nan),
            ReduceTensorIndices(indices),
            IndicesType(width),
        )

    def workspace_size(self, a: TensorDescriptor, c: TensorDescriptor) -> int:
        """Bytes of workspace (``cudnnGetReductionWorkspaceSize``)."""
        return query_size("cudnnGetReductionWorkspaceSize", self.value, a.value, c.value)

    def indices_size(self, a: TensorDescriptor, c: TensorDescriptor) -> int:
        """Bytes for the indices (``cudnnGetReductionIndicesSize``)."""
        return query_size("cudnnGetReductionIndicesSize", self.value, a.value, c.value)


def reduce(
    op: ReduceTensorOp,
    a: Any,
    c: Any = None,
    *,
    axes: tuple[int, ...] | None = None,
    indices: bool = False,
    nan: NanPropagation = PROPAGATE,
    alpha: float = 1.0,
    beta: float = 0.0,
) -> Any:
    """Return c = alpha * reduce(a over ``axes``) + beta * c; reduced dimensions stay, as 1.

    ``axes`` is every dimension where ``c`` has extent 1 when ``c`` is given, else all.  With
    ``indices`` (MIN, MAX, AMAX) the result is ``(c, where)``: ``where`` holds for each element
    of ``c``, as uint32, the position among the reduced dimensions flattened.
    """
    check_array("a", a)
    if indices and op not in WITH_INDICES:
        names = ", ".join(known.name for known in WITH_INDICES)
        raise ArgumentError(f"{ReduceTensorOp(op).name} has no indices; {names} have")
    c = _output(a, c, axes, beta)
    a_desc, c_desc = descriptor_of(a, "a"), descriptor_of(c, "c")
    compute = compute_type(data_type(a.dtype))
    kind = FLATTENED if indices else NO_INDICES
    with ReduceTensorDescriptor.of(op, compute, nan, kind) as descriptor:
        bytes_of_indices = descriptor.indices_size(a_desc, c_desc) if indices else 0
        where = cupy().empty(max(bytes_of_indices // 4, c.size), "uint32") if indices else None
        need = descriptor.workspace_size(a_desc, c_desc)
        memory = acquire(need)
        one, zero = scalars(a, alpha, beta)
        pointer = None if where is None else where.data.ptr
        room = (pointer, bytes_of_indices, memory.ptr if memory else None, need)
        operands = (one, a_desc.value, a.data.ptr, zero, c_desc.value, c.data.ptr)
        context = {"op": ReduceTensorOp(op), "a": a, "c": c}
        call("cudnnReduceTensor", descriptor.value, *room, *operands, **context)
    return c if where is None else (c, where[: c.size].reshape(c.shape))


def _output(a: Any, c: Any, axes: tuple[int, ...] | None, beta: float) -> Any:
    if c is None:
        if beta != 0:
            raise ArgumentError(f"beta={beta} adds to c, so c must be given")
        return cupy().empty(_reduced_shape(a, axes), a.dtype)
    check_array("c", c)
    check_same_dtype("a", a, "c", c)
    check_writable("c", c)
    fits = c.ndim == a.ndim and all(s in (1, e) for s, e in zip(c.shape, a.shape, strict=True))
    if not fits or (axes is not None and c.shape != _reduced_shape(a, axes)):
        raise ArgumentError(
            f"c has shape {c.shape}; reducing a of shape {a.shape} over axes={axes} needs 1 in "
            "each reduced dimension and the extent of a in the others"
        )
    return c


def _reduced_shape(a: Any, axes: tuple[int, ...] | None) -> Shape:
    chosen = tuple(range(a.ndim)) if axes is None else axes
    if any(not -a.ndim <= axis < a.ndim for axis in chosen):
        raise ArgumentError(f"axes={axes} must lie in a, which has {a.ndim} dimensions")
    reduced = [axis % a.ndim for axis in chosen]
    return tuple(1 if axis in reduced else extent for axis, extent in enumerate(a.shape))
