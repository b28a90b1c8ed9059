"""Lowers a :class:`.GraphSpec` to backend descriptors: tensors, operations, operation graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minidnn.cudnn.dtypes import element_type
from minidnn.cudnn.enums import ConvolutionMode, ReduceTensorOp
from minidnn.cudnn.graph.attributes import Attribute as A
from minidnn.cudnn.graph.descriptor import BackendDescriptor
from minidnn.cudnn.graph.enums import AttributeType as T
from minidnn.cudnn.graph.enums import DescriptorType as D
from minidnn.cudnn.graph.enums import GenStatsMode, PaddingMode, ResampleMode
from minidnn.cudnn.graph.operations import PARAMETERS, operation
from minidnn.cudnn.graph.spec import (
    Convolution,
    GraphSpec,
    Matmul,
    Pointwise,
    Reduction,
    Resample,
    Statistics,
    TensorSpec,
)

_CONVOLUTIONS = {
    "forward": (D.CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, "FORWARD", "X", "W", "Y"),
    "backward_data": (
        D.CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
        "BWD_DATA",
        "DX",
        "W",
        "DY",
    ),
    "backward_filter": (
        D.CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
        "BWD_FILTER",
        "X",
        "DW",
        "DY",
    ),
}


def uid(index: int) -> int:
    """cuDNN's unique id of the tensor at that index of ``GraphSpec.tensors``."""
    return index + 1


def operation_graph(spec: GraphSpec, handle: int | None) -> BackendDescriptor:
    """The finalized operation graph; ``handle`` is None when the device is absent.

    Raises:
        CuDNNError: cuDNN does not accept the graph.
    """
    order = _axis_order(spec)
    tensors = [_tensor(uid(index), tensor, order) for index, tensor in enumerate(spec.tensors)]
    operations = [_LOWER[type(node)](node, tensors) for node in spec.nodes]
    graph = BackendDescriptor(D.CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)
    if handle is not None:
        graph.set(A.CUDNN_ATTR_OPERATIONGRAPH_HANDLE, T.CUDNN_TYPE_HANDLE, handle)
    graph.set(A.CUDNN_ATTR_OPERATIONGRAPH_OPS, T.CUDNN_TYPE_BACKEND_DESCRIPTOR, *operations)
    return graph.finalize()


def _axis_order(spec: GraphSpec) -> tuple[int, ...] | None:
    """The permutation of axes with which cuDNN's element-wise engines take the graph, or None.

    They want the second axis innermost.  To element-wise operations it does not matter what an
    axis means, so channels-first tensors are described with their innermost axis second.
    """
    output = spec.tensors[spec.outputs[0]]
    dims = len(output.shape)
    if dims < 3 or not all(isinstance(node, Pointwise) for node in spec.nodes):
        return None
    if output.strides[1] == 1 or output.strides[-1] != 1:
        return None
    return (0, dims - 1, *range(1, dims - 1))


def _tensor(unique_id: int, spec: TensorSpec, order: tuple[int, ...] | None) -> BackendDescriptor:
    axes = range(len(spec.shape)) if order is None else order
    made = BackendDescriptor(D.CUDNN_BACKEND_TENSOR_DESCRIPTOR)
    made.set(A.CUDNN_ATTR_TENSOR_UNIQUE_ID, T.CUDNN_TYPE_INT64, unique_id)
    made.set(A.CUDNN_ATTR_TENSOR_DATA_TYPE, T.CUDNN_TYPE_DATA_TYPE, element_type(spec.dtype).code)
    shape, strides = [spec.shape[i] for i in axes], [spec.strides[i] for i in axes]
    made.set(A.CUDNN_ATTR_TENSOR_DIMENSIONS, T.CUDNN_TYPE_INT64, *shape)
    made.set(A.CUDNN_ATTR_TENSOR_STRIDES, T.CUDNN_TYPE_INT64, *strides)
    made.set(A.CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, T.CUDNN_TYPE_INT64, spec.alignment)
    if spec.virtual:
        made.set(A.CUDNN_ATTR_TENSOR_IS_VIRTUAL, T.CUDNN_TYPE_BOOLEAN, True)
    if spec.by_value:
        made.set(A.CUDNN_ATTR_TENSOR_IS_BY_VALUE, T.CUDNN_TYPE_BOOLEAN, True)
    return made.finalize()


def _convolution(node: Convolution, tensors: list[BackendDescriptor]) -> BackendDescriptor:
    modes = ConvolutionMode
    mode = modes.CUDNN_CONVOLUTION if node.flip else modes.CUDNN_CROSS_CORRELATION
    window = node.window
    settings = BackendDescriptor(D.CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR)
    settings.set(A.CUDNN_ATTR_CONVOLUTION_COMP_TYPE, T.CUDNN_TYPE_DATA_TYPE, _code(node.compute))
    settings.set(A.CUDNN_ATTR_CONVOLUTION_CONV_MODE, T.CUDNN_TYPE_CONVOLUTION_MODE, mode)
    settings.set(A.CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, T.CUDNN_TYPE_INT64, len(window.stride))
    settings.set(A.CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, T.CUDNN_TYPE_INT64, *window.before)
    settings.set(A.CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, T.CUDNN_TYPE_INT64, *window.after)
    settings.set(A.CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, T.CUDNN_TYPE_INT64, *window.stride)
    settings.set(A.CUDNN_ATTR_CONVOLUTION_DILATIONS, T.CUDNN_TYPE_INT64, *window.dilation)
    settings.finalize()
    kind, infix, x, w, y = _CONVOLUTIONS[node.kind]
    prefix = f"CUDNN_ATTR_OPERATION_CONVOLUTION_{infix}_"
    made = BackendDescriptor(kind)
    descriptor = T.CUDNN_TYPE_BACKEND_DESCRIPTOR
    made.set(A[prefix + "CONV_DESC"], descriptor, settings)
    made.set(A[prefix + x], descriptor, tensors[node.x])
    made.set(A[prefix + w], descriptor, tensors[node.w])
    made.set(A[prefix + y], descriptor, tensors[node.y])
    # alpha and beta are doubles where the computation is, floats elsewhere
    scale = T.CUDNN_TYPE_DOUBLE if node.compute == "float64" else T.CUDNN_TYPE_FLOAT
    made.set(A[prefix + "ALPHA"], scale, 1.0)
    made.set(A[prefix + "BETA"], scale, 0.0)
    return made.finalize()


def _pointwise(node: Pointwise, tensors: list[BackendDescriptor]) -> BackendDescriptor:
    kind = operation(node.mode)
    settings = BackendDescriptor(D.CUDNN_BACKEND_POINTWISE_DESCRIPTOR)
    settings.set(A.CUDNN_ATTR_POINTWISE_MODE, T.CUDNN_TYPE_POINTWISE_MODE, kind.mode)
    settings.set(A.CUDNN_ATTR_POINTWISE_MATH_PREC, T.CUDNN_TYPE_DATA_TYPE, _code(node.compute))
    for name, value in node.attributes:
        if name == "axis":
            settings.set(PARAMETERS[name], T.CUDNN_TYPE_INT64, int(value))
        else:
            settings.set(PARAMETERS[name], T.CUDNN_TYPE_DOUBLE, value)
    settings.finalize()
    made = BackendDescriptor(D.CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
    descriptor = T.CUDNN_TYPE_BACKEND_DESCRIPTOR
    made.set(A.CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, descriptor, settings)
    prefix = "CUDNN_ATTR_OPERATION_POINTWISE_"
    slots = ("DYDESC", "XDESC") if kind.backward else ("XDESC", "BDESC", "TDESC")
    for slot, index in zip(slots, node.inputs, strict=False):
        made.set(A[prefix + slot], descriptor, tensors[index])
    made.set(A[prefix + ("DXDESC" if kind.backward else "YDESC")], descriptor, tensors[node.output])
    return made.finalize()


def _matmul(node: Matmul, tensors: list[BackendDescriptor]) -> BackendDescriptor:
    settings = BackendDescriptor(D.CUDNN_BACKEND_MATMUL_DESCRIPTOR)
    settings.set(
        A.CUDNN_ATTR_MATMUL_COMP_TYPE, T.CUDNN_TYPE_DATA_TYPE, _code(node.compute)
    ).finalize()
    made = BackendDescriptor(D.CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)
    descriptor = T.CUDNN_TYPE_BACKEND_DESCRIPTOR
    made.set(A.CUDNN_ATTR_OPERATION_MATMUL_ADESC, descriptor, tensors[node.a])
    made.set(A.CUDNN_ATTR_OPERATION_MATMUL_BDESC, descriptor, tensors[node.b])
    made.set(A.CUDNN_ATTR_OPERATION_MATMUL_CDESC, descriptor, tensors[node.c])
    made.set(A.CUDNN_ATTR_OPERATION_MATMUL_DESC, descriptor, settings)
    return made.finalize()


def _resample(node: Resample, tensors: list[BackendDescriptor]) -> BackendDescriptor:
    settings = BackendDescriptor(D.CUDNN_BACKEND_RESAMPLE_DESCRIPTOR)
    mode = ResampleMode[f"CUDNN_RESAMPLE_{node.mode.upper()}"]
    outside = PaddingMode[f"CUDNN_{node.padding_mode.upper()}"]
    settings.set(A.CUDNN_ATTR_RESAMPLE_MODE, T.CUDNN_TYPE_RESAMPLE_MODE, mode)
    settings.set(A.CUDNN_ATTR_RESAMPLE_COMP_TYPE, T.CUDNN_TYPE_DATA_TYPE, _code(node.compute))
    settings.set(A.CUDNN_ATTR_RESAMPLE_PADDING_MODE, T.CUDNN_TYPE_PADDING_MODE, outside)
    settings.set(A.CUDNN_ATTR_RESAMPLE_SPATIAL_DIMS, T.CUDNN_TYPE_INT64, len(node.window))
    settings.set(A.CUDNN_ATTR_RESAMPLE_WINDOW_DIMS, T.CUDNN_TYPE_INT64, *node.window)
    settings.set(A.CUDNN_ATTR_RESAMPLE_PRE_PADDINGS, T.CUDNN_TYPE_INT64, *node.before)
    settings.set(A.CUDNN_ATTR_RESAMPLE_POST_PADDINGS, T.CUDNN_TYPE_INT64, *node.after)
    settings.set(A.CUDNN_ATTR_RESAMPLE_STRIDES, T.CUDNN_TYPE_INT64, *node.stride)
    settings.finalize()
    made = BackendDescriptor(D.CUDNN_BACKEND_OPERATION_RESAMPLE_FWD_DESCRIPTOR)
    descriptor = T.CUDNN_TYPE_BACKEND_DESCRIPTOR
    made.set(A.CUDNN_ATTR_OPERATION_RESAMPLE_FWD_DESC, descriptor, settings)
    made.set(A.CUDNN_ATTR_OPERATION_RESAMPLE_FWD_XDESC, descriptor, tensors[node.x])
    made.set(A.CUDNN_ATTR_OPERATION_RESAMPLE_FWD_YDESC, descriptor, tensors[node.y])
    if node.index is not None:
        made.set(A.CUDNN_ATTR_OPERATION_RESAMPLE_FWD_IDXDESC, descriptor, tensors[node.index])
    return made.finalize()


def _reduction(node: Reduction, tensors: list[BackendDescriptor]) -> BackendDescriptor:
    settings = BackendDescriptor(D.CUDNN_BACKEND_REDUCTION_DESCRIPTOR)
    operator = ReduceTensorOp[f"CUDNN_REDUCE_TENSOR_{node.operator.upper()}"]
    settings.set(A.CUDNN_ATTR_REDUCTION_OPERATOR, T.CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, operator)
    settings.set(A.CUDNN_ATTR_REDUCTION_COMP_TYPE, T.CUDNN_TYPE_DATA_TYPE, _code(node.compute))
    settings.finalize()
    made = BackendDescriptor(D.CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)
    descriptor = T.CUDNN_TYPE_BACKEND_DESCRIPTOR
    made.set(A.CUDNN_ATTR_OPERATION_REDUCTION_DESC, descriptor, settings)
    made.set(A.CUDNN_ATTR_OPERATION_REDUCTION_XDESC, descriptor, tensors[node.x])
    made.set(A.CUDNN_ATTR_OPERATION_REDUCTION_YDESC, descriptor, tensors[node.y])
    return made.finalize()


def _statistics(node: Statistics, tensors: list[BackendDescriptor]) -> BackendDescriptor:
    made = BackendDescriptor(D.CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR)
    mode = GenStatsMode.CUDNN_GENSTATS_SUM_SQSUM
    made.set(A.CUDNN_ATTR_OPERATION_GENSTATS_MODE, T.CUDNN_TYPE_GENSTATS_MODE, mode)
    compute = _code(node.compute)
    made.set(A.CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC, T.CUDNN_TYPE_DATA_TYPE, compute)
    descriptor = T.CUDNN_TYPE_BACKEND_DESCRIPTOR
    made.set(A.CUDNN_ATTR_OPERATION_GENSTATS_XDESC, descriptor, tensors[node.x])
    made.set(A.CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC, descriptor, tensors[node.sums])
    made.set(A.CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC, descriptor, tensors[node.squares])
    return made.finalize()


def _code(dtype: str) -> int:
    return element_type(dtype).code


_LOWER: dict[type, Callable[[Any, list[BackendDescriptor]], BackendDescriptor]] = {
    Convolution: _convolution,
    Pointwise: _pointwise,
    Matmul: _matmul,
    Resample: _resample,
    Reduction: _reduction,
    Statistics: _statistics,
}
