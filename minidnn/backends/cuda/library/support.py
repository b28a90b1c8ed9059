"""The functions of cuDNN's legacy API that compute layers, and why it has none for the others.

Source: cuDNN, "Legacy API": ``cudnnActivationForward``, ``cudnnPoolingForward``,
``cudnnSoftmaxForward``, ``cudnnDropoutForward``, ``cudnnBatchNormalizationForwardTraining``,
``cudnnConvolutionForward``, and the functions for their gradients.
"""

from __future__ import annotations

from ....cudnn.enums import ActivationMode, OpTensorOp, PoolingMode, SoftmaxAlgorithm
from ....fusion.functions import LEAST_RANK, LibraryFunction, LibraryFunctions, Precision
from ....graph import operators as ops
from ....graph.ir import Node
from ....graph.operator import Windowed
from ....graph.types import FLOATS

CONVOLUTION = "cudnnConvolutionForward"
INPUT_GRADIENT = "cudnnConvolutionBackwardData"
WEIGHT_GRADIENT = "cudnnConvolutionBackwardFilter"
BIAS_GRADIENT = "cudnnConvolutionBackwardBias"
PRODUCTS = (CONVOLUTION, INPUT_GRADIENT, WEIGHT_GRADIENT)
ACTIVATION, ACTIVATION_GRADIENT = "cudnnActivationForward", "cudnnActivationBackward"
POOLING, POOLING_GRADIENT = "cudnnPoolingForward", "cudnnPoolingBackward"
SOFTMAX, SOFTMAX_GRADIENT = "cudnnSoftmaxForward", "cudnnSoftmaxBackward"
STORED_NORM = "cudnnBatchNormalizationForwardInference"
BATCH_NORM = "cudnnBatchNormalizationForwardTraining"
BATCH_NORM_GRADIENT = "cudnnBatchNormalizationBackward"
DROPOUT = "cudnnDropoutBackward"
OP_TENSOR = "cudnnOpTensor"

#: Functions whose tensors stay NCHW.
_PLANAR = (SOFTMAX, SOFTMAX_GRADIENT, DROPOUT, BATCH_NORM, BATCH_NORM_GRADIENT)

#: The numbers of a linear layer as a 1x1 convolution: stride, padding and dilation along rows and
#: columns, and groups.
_LINEAR = (1, 1, 0, 0, 1, 1, 1)


def layer_functions(node: Node, storage: str) -> LibraryFunctions | str:
    """The functions of cuDNN for a node, or why it has none.

    The node's graph is in float32; its tensors will be stored in the dtype ``storage``.
    """
    op = node.op
    types = [value.type for value in (*node.inputs, *node.outputs)]
    if any(t.dtype in FLOATS and t.dtype not in ("float32", storage) for t in types):
        return f"its values are not in {storage}"
    if (activation := _activation(op)) is not None:
        if node.output.type.rank < LEAST_RANK:
            return "it is no tensor"
        return _both(ACTIVATION, ACTIVATION_GRADIENT, activation)
    if isinstance(op, (Windowed, ops.AdaptiveAvgPool2d)):
        return _pooling(node)
    if isinstance(op, (ops.Softmax, ops.LogSoftmax)):
        if node.output.type.rank < LEAST_RANK:
            return "it is no tensor"
        logs = isinstance(op, ops.LogSoftmax)
        kinds = SoftmaxAlgorithm
        kind = kinds.CUDNN_SOFTMAX_LOG if logs else kinds.CUDNN_SOFTMAX_ACCURATE
        numbers = (int(kind), op.dim % node.output.type.rank)
        forward = LibraryFunction(SOFTMAX, numbers, "full")
        return LibraryFunctions(forward, LibraryFunction(SOFTMAX_GRADIENT, numbers, "full"))
    # cuDNN has neither normalization nor dropout in bfloat16.
    precision: Precision = "full" if storage == "bfloat16" else "given"
    if isinstance(op, ops.BatchNorm):
        eps = (op.eps,)
        return LibraryFunctions(
            LibraryFunction(STORED_NORM, eps, precision),
            LibraryFunction(BATCH_NORM_GRADIENT, eps, precision),
            LibraryFunction(BATCH_NORM, eps, precision),
        )
    if isinstance(op, ops.RandomDrop):
        if op.p == 1:
            return "cuDNN drops no more than a part"
        return LibraryFunctions(LibraryFunction(DROPOUT, (op.p,), precision))
    if isinstance(op, (ops.Add, ops.Mul)):
        return _op_tensor(node)
    return _product(node)


def product_gradient(node: Node, operand: int, storage: str) -> LibraryFunction | None:
    """The function of cuDNN for the gradient of a convolution or linear layer with respect to an
    operand (0 input, 1 weight, 2 bias), where that gradient is no node that :func:`layer_functions`
    covers; None if there is none."""
    if operand == 2:
        # In half precision cuDNN also adds up in half precision; our kernel does so in float32.
        is_linear = int(isinstance(node.op, ops.Linear))
        return LibraryFunction(BIAS_GRADIENT, (is_linear,)) if storage == "float32" else None
    if not isinstance(node.op, ops.Linear):
        return None
    return LibraryFunction((INPUT_GRADIENT, WEIGHT_GRADIENT)[operand], _LINEAR, "half")


def takes_layouts(node: Node) -> bool:
    """Whether the tensors of a function may have another layout than NCHW.

    cuDNN's normalizations are fast in NCHW alone: in NHWC they take 20 to 40 times as long.
    """
    tensors = [v for v in (*node.inputs, *node.outputs) if v.type.rank >= LEAST_RANK]
    is_matrix = node.op.name == BIAS_GRADIENT and bool(getattr(node.op, "numbers", (0,))[0])
    planar = node.op.name in _PLANAR or is_matrix
    return not planar and all(value.type.rank == 4 for value in tensors)


def _both(forward: str, backward: str, numbers: tuple[float, ...]) -> LibraryFunctions:
    return LibraryFunctions(LibraryFunction(forward, numbers), LibraryFunction(backward, numbers))


def _activation(op: object) -> tuple[float, ...] | None:
    modes = ActivationMode
    match op:
        case ops.ReLU():
            return (int(modes.CUDNN_ACTIVATION_RELU), 0.0)
        case ops.ReLU6():
            return (int(modes.CUDNN_ACTIVATION_CLIPPED_RELU), 6.0)
        case ops.ELU(alpha):
            return (int(modes.CUDNN_ACTIVATION_ELU), alpha)
        case ops.Sigmoid():
            return (int(modes.CUDNN_ACTIVATION_SIGMOID), 0.0)
        case ops.Tanh():
            return (int(modes.CUDNN_ACTIVATION_TANH), 0.0)
        case ops.SiLU():
            return (int(modes.CUDNN_ACTIVATION_SWISH), 1.0)
    return None


def _pooling(node: Node) -> LibraryFunctions | str:
    op, x = node.op, node.inputs[0]
    modes = PoolingMode
    if isinstance(op, ops.AdaptiveAvgPool2d):
        sizes = op.sizes(x.type)
        if any(size % out for size, out in zip(x.shape[2:], sizes, strict=True)):
            return "cuDNN's windows are all of one size"
        window = tuple(size // out for size, out in zip(x.shape[2:], sizes, strict=True))
        mode = modes.CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING
        return _both(POOLING, POOLING_GRADIENT, (int(mode), *window, 0, 0, *window))
    if isinstance(op, ops.MaxPool2d):
        if op.dilation != (1, 1):
            return "cuDNN's windows have no dilation"
        mode = modes.CUDNN_POOLING_MAX_DETERMINISTIC
    elif isinstance(op, ops.AvgPool2d):
        if op.divisor_override is not None:
            return "cuDNN's averages have no other divisor"
        include = op.count_include_pad
        mode = modes.CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING
        mode = mode if include else modes.CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING
    else:
        return "cuDNN has no function for it"
    floor_sizes = [
        (size + 2 * pad - kernel) // stride + 1
        for size, pad, kernel, stride in zip(
            x.shape[2:], op.padding, op.kernel_size, op.stride, strict=True
        )
    ]
    if tuple(floor_sizes) != node.output.shape[2:]:
        return "cuDNN's windows end inside"
    return _both(POOLING, POOLING_GRADIENT, (int(mode), *op.kernel_size, *op.padding, *op.stride))


def _op_tensor(node: Node) -> LibraryFunctions | str:
    left, right = node.inputs
    if left.type != right.type or left.dtype not in FLOATS or left.type.rank < LEAST_RANK:
        return "its operands are not two tensors of one shape"
    kind = OpTensorOp.CUDNN_OP_TENSOR_ADD
    if isinstance(node.op, ops.Mul):
        kind = OpTensorOp.CUDNN_OP_TENSOR_MUL
    return LibraryFunctions(LibraryFunction(OP_TENSOR, (int(kind),)))


def _product(node: Node) -> LibraryFunctions | str:
    op = node.op
    if node.inputs and node.inputs[0].dtype not in FLOATS:
        return "cuDNN has no function for it"
    if isinstance(op, ops.Linear):
        return LibraryFunctions(LibraryFunction(CONVOLUTION, _LINEAR, "half"))
    if isinstance(op, ops.Conv2d):
        name, convolution = CONVOLUTION, op
    elif isinstance(op, ops.Conv2dInputGradient):
        name, convolution = INPUT_GRADIENT, op.convolution
    elif isinstance(op, ops.Conv2dWeightGradient):
        name, convolution = WEIGHT_GRADIENT, op.convolution
    else:
        return "cuDNN has no function for it"
    if any(before != after for before, after in convolution.padding):
        return "padding differs from one side to the other"
    padding = (before for before, _ in convolution.padding)
    numbers = (*convolution.stride, *padding, *convolution.dilation, convolution.groups)
    return LibraryFunctions(LibraryFunction(name, numbers, "half"))
