"""Lowers nodes that are functions of cuDNN to tasks.

Most nodes become one call.  A layer with a bias and dropout become two tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from ....cudnn.arrays import packed_strides
from ....cudnn.convolution.key import ConvolutionKey, FilterKey, TensorKey, exact_math
from ....cudnn.dtypes import BY_NAME
from ....cudnn.enums import ConvolutionMode, DataType, MathType, TensorFormat
from ....fusion.functions import LEAST_RANK, LayerFunction
from ....graph.ir import Constant, Node, Value
from ..task import InWorkspace, Pointer, Task, channels_last, pointer_to
from .call import ADD_TENSOR, FunctionCall, print_mask, reserve_bytes
from .convolution import ORDERS, LayerConvolution
from .support import (
    BIAS_GRADIENT,
    CONVOLUTION,
    DROPOUT,
    INPUT_GRADIENT,
    PRODUCTS,
    SOFTMAX,
    SOFTMAX_GRADIENT,
    WEIGHT_GRADIENT,
)

#: The operation in a convolution's key, by the name of the function.
_OPERATIONS = {
    CONVOLUTION: "forward",
    INPUT_GRADIENT: "backward_data",
    WEIGHT_GRADIENT: "backward_filter",
}
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Lowering:
    """Lowers nodes; the fields are what calls depend on beside their nodes.

    Attributes:
        is_planar: whether a value's layout is NCHW.
        tf32: whether contractions of float32 may use TF32 tensor cores.
        exactly: whether algorithms that compute through Winograd or FFT are excluded.
        deterministic: whether every run must give the same bits.
    """

    is_planar: Callable[[Value], bool]
    tf32: bool
    exactly: bool
    deterministic: bool

    def tasks(self, node: Node) -> Sequence[Task]:
        """The calls and launches of a node, in order."""
        op = node.op
        assert isinstance(op, LayerFunction)
        if op.function in PRODUCTS:
            return self._product(node, op)
        planar = self._all_planar(node)
        values = (*node.inputs, *node.outputs)
        pointers = tuple(_given(value, planar) for value in values)
        if op.function == DROPOUT:
            return self._dropout(node, op)
        keys: tuple[TensorKey, ...]
        if op.function == BIAS_GRADIENT:
            (dy,), db = node.inputs, node.output
            channels = db.type.size
            vector = TensorKey(BY_NAME[db.dtype], (1, channels, 1, 1), (channels, 1, 1, 1))
            keys = (_rows(dy) if op.numbers[0] else _tensor(dy, planar), vector)
        elif op.function in (SOFTMAX, SOFTMAX_GRADIENT):
            keys = tuple(_along(value, int(op.numbers[1])) for value in values)
        else:
            tensors = [value for value in values if value.type.rank >= LEAST_RANK]
            keys = tuple(_tensor(value, planar) for value in tensors)
        return (Task(node, FunctionCall(op.function, keys, op.numbers), pointers),)

    def _all_planar(self, node: Node) -> bool:
        """Whether all tensors of a node are NCHW; constants take either layout."""
        return all(
            self.is_planar(value)
            for value in (*node.inputs, *node.outputs)
            if value.type.rank == 4 and not isinstance(value, Constant)
        )

    def _product(self, node: Node, op: LayerFunction) -> Sequence[Task]:
        """A convolution or one of its gradients, and the addition of a bias if there is one."""
        *operands, bias = (*node.inputs, None) if len(node.inputs) == 2 else node.inputs
        values = [*(value for value in operands if value is not None), node.output]
        planar = self._all_planar(node)
        operation = _OPERATIONS[op.function]
        layer = self._convolution(op, operation, values, planar)
        tasks = [Task(node, layer, tuple(_given(value, planar) for value in values))]
        if bias is not None:
            channels = bias.type.size
            vector = TensorKey(layer.key.y.dtype, (1, channels, 1, 1), (channels, 1, 1, 1))
            call = FunctionCall(ADD_TENSOR, (vector, layer.key.y), ())
            tasks.append(Task(node, call, (_given(bias, planar), node.output)))
        return tasks

    def _convolution(
        self, op: LayerFunction, operation: str, values: Sequence[Value], planar: bool
    ) -> LayerConvolution:
        x, w, y = (values[i] for i in ORDERS[operation])
        dtype = BY_NAME[x.dtype]
        numbers = [int(number) for number in op.numbers]
        linear = w.type.rank == 2
        layout = TensorFormat.CUDNN_TENSOR_NCHW if planar else TensorFormat.CUDNN_TENSOR_NHWC
        key = ConvolutionKey(
            operation=operation,  # type: ignore[arg-type]
            x=_rows(x) if linear else _tensor(x, planar),
            w=FilterKey(dtype, layout, (*w.shape, 1, 1) if linear else w.shape),
            y=_rows(y) if linear else _tensor(y, planar),
            stride=tuple(numbers[:2]),
            padding=tuple(numbers[2:4]),
            dilation=tuple(numbers[4:6]),
            groups=numbers[6],
            mode=ConvolutionMode.CUDNN_CROSS_CORRELATION,
            compute=DataType.CUDNN_DATA_FLOAT,
            math=self._math(dtype),
            search="heuristic",
            deterministic=self.deterministic,
            workspace_limit=0,
            aligned=True,
            fused=False,
            device=0,
        )
        return LayerConvolution(key, self.exactly)

    def _math(self, dtype: DataType) -> MathType:
        """The math type of a convolution: in half precision cuDNN uses no tensor cores unless it is
        asked for them."""
        if dtype in (DataType.CUDNN_DATA_HALF, DataType.CUDNN_DATA_BFLOAT16):
            return MathType.CUDNN_TENSOR_OP_MATH
        return MathType.CUDNN_DEFAULT_MATH if self.tf32 else exact_math(dtype)

    def _dropout(self, node: Node, op: LayerFunction) -> Sequence[Task]:
        """The kernel that packs the mask into the workspace, and cuDNN's call that multiplies."""
        x, kept = node.inputs
        size, reserve = x.type.size, InWorkspace(0)
        bytes = reserve_bytes(size)
        call = FunctionCall(DROPOUT, (_key(x.dtype, (1, size, 1, 1)),), op.numbers)
        return (
            Task(node, print_mask(size), (pointer_to(kept), reserve), (), bytes),
            Task(node, call, (pointer_to(x), node.output, reserve), (), bytes),
        )


def _given(value: Value, planar: bool) -> Pointer:
    """A pointer to a value; a constant is in the layout of the other operands."""
    if planar or value.type.rank != 4 or not isinstance(value, Constant):
        return pointer_to(value)
    return channels_last(value)


def _key(dtype: str, shape: Shape, last: bool = False) -> TensorKey:
    return TensorKey(BY_NAME[dtype], shape, packed_strides(shape, last))


def _tensor(value: Value, planar: bool) -> TensorKey:
    return _key(value.dtype, value.type.plane, value.type.rank == 4 and not planar)


def _rows(value: Value) -> TensorKey:
    """The key of a matrix whose rows are images of one pixel, and whose columns are channels."""
    features = value.shape[-1]
    return _key(value.dtype, (value.type.size // features, features, 1, 1))


def _along(value: Value, axis: int) -> TensorKey:
    """The key of a tensor whose ``axis`` takes the place of the channels."""
    shape = value.shape
    return _key(value.dtype, (prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]), 1))
