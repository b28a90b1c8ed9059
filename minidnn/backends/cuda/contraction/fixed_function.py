"""Calls of cuDNN on addresses: its plans, and its fixed functions of convolutions and gradients.

Sources: cuDNN, ``cudnnConvolutionForward``, ``cudnnConvolutionBiasActivationForward``,
``cudnnConvolutionBackwardData``, ``cudnnConvolutionBackwardFilter``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ....cudnn import library
from ....cudnn.activation import ActivationDescriptor
from ....cudnn.convolution.choose import ADDS_IN_ANY_ORDER
from ....cudnn.convolution.key import ConvolutionKey, FilterKey, Operation, TensorKey
from ....cudnn.convolution.plan import FUNCTIONS, Problem
from ....cudnn.dtypes import BY_NAME, ONE, ZERO
from ....cudnn.enums import (
    ActivationMode,
    ConvolutionMode,
    DataType,
    MathType,
    Status,
    TensorFormat,
    is_coarse_winograd,
)
from ....cudnn.errors import CuDNNError, check
from ....cudnn.graph.execution import Execution
from ....cudnn.graph.spec import TensorSpec
from ....cudnn.handle import current_handle
from ....cudnn.tensor import TensorDescriptor
from .problem import FILTER_GRADIENT, IMAGE_GRADIENT, ContractionProblem, Direction, spec_of

_OPERATIONS: dict[Direction, Operation] = {
    "forward": "forward",
    IMAGE_GRADIENT: "backward_data",
    FILTER_GRADIENT: "backward_filter",
}


@dataclass(frozen=True)
class FixedConvolution:
    """An algorithm of a fixed function, for a problem.  The function that fuses bias, residual and
    ReLU has the descriptors ``bias`` and ``activation``; the others have neither."""

    descriptors: Problem
    algorithm: int
    workspace: int
    bias: TensorDescriptor | None = None
    activation: ActivationDescriptor | None = None

    @classmethod
    def of(cls, descriptors: Problem, algorithm: int, workspace: int) -> FixedConvolution:
        """Makes the descriptors of bias and ReLU as well, where the problem fuses these."""
        if not descriptors.key.fused:
            return cls(descriptors, algorithm, workspace)
        channels = descriptors.key.w.shape[0]
        kind = descriptors.key.y.dtype
        bias = TensorDescriptor.strided(kind, (1, channels, 1, 1), (channels, 1, 1, 1))
        activation = ActivationDescriptor.of(ActivationMode.CUDNN_ACTIVATION_RELU)
        return cls(descriptors, algorithm, workspace, bias, activation)

    @classmethod
    def restored(cls, stored: Sequence[Any]) -> FixedConvolution:
        """Restores what :meth:`stored` returned and JSON has kept."""
        key, algorithm, workspace = stored
        return cls.of(Problem(ConvolutionKey.restored(key)), algorithm, workspace)

    def stored(self) -> tuple[Any, ...]:
        """Returns it as plain data for a file."""
        return self.descriptors.key.stored(), self.algorithm, self.workspace

    def bind(self, addresses: Sequence[int]) -> Callable[[], None]:
        """Returns what launches it on CuPy's current stream.

        Args:
            addresses: of image, filter, result, bias, residual (0: none) and workspace.
        """
        x, w, y, bias, z, workspace = addresses
        descriptors = self.descriptors
        first, second, out = descriptors.operands()
        room = (workspace or None, self.workspace)
        first_at, second_at, result = descriptors.in_order(x, w, y)
        common = (first, first_at, second, second_at, descriptors.conv.value, self.algorithm, *room)
        if self.bias is None or self.activation is None:
            name = descriptors.functions.run
            last_arguments: tuple[object, ...] = (ZERO, out, result)
        else:
            name = "cudnnConvolutionBiasActivationForward"
            residual = (ONE, out, z) if z else (ZERO, out, y)
            last_arguments = (*residual, self.bias.value, bias, self.activation.value, out, y)
        call = getattr(library.load(), name)

        def run(kept: FixedConvolution = self) -> None:
            status = call(current_handle(), ONE, *common, *last_arguments)
            check(status, name, kept.descriptors.key.describe())

        return run


def fixed_convolution(
    problem: ContractionProblem, algorithm: int, stages: int, output: TensorSpec
) -> FixedConvolution | str:
    """The convolution with its first ``stages`` stages by that algorithm, its result in the layout
    ``output``; or why cuDNN does not compute it so."""
    kind = algorithms_of(problem)(algorithm)
    high = problem.accuracy == "high"
    if high and ("FFT" in kind.name or "WINO" in kind.name):
        return "it computes through Winograd or FFT"
    if is_coarse_winograd(kind.name, problem.w.shape[2:]):
        return "it is less accurate than TF32 with windows over 3"
    if problem.deterministic and kind.name in ADDS_IN_ANY_ORDER:
        return "it adds in any order"
    if any(before != after for before, after in problem.padding):
        return "padding differs from one side to the other"
    for stage in problem.stages[:stages]:
        if stage.mode == "add":
            residual = spec_of(problem.others[stage.index], problem.batch)
            if residual.strides != output.strides:
                return "its residual, which is read in the result's layout, has another layout"
    fused = stages > 0
    descriptors = Problem(_key(problem, algorithm, fused, output))
    try:
        workspace = descriptors.workspace(algorithm)
    except CuDNNError as error:
        # With BAD_PARAM cuDNN also refuses some algorithms for some layouts.
        if not error.unsupported and error.status != Status.CUDNN_STATUS_BAD_PARAM:
            raise
        return str(error).partition("\n")[0]
    return FixedConvolution.of(descriptors, algorithm, workspace)


def algorithms_of(problem: ContractionProblem) -> Any:
    """The enumeration of cuDNN's algorithms for a problem."""
    return FUNCTIONS[_OPERATIONS[problem.direction]].algorithm


def _math(problem: ContractionProblem) -> MathType:
    """The math mode: in half precision cuDNN uses no tensor cores unless it is told to."""
    if problem.is_exact:
        return MathType.CUDNN_FMA_MATH
    half_precision = problem.x.dtype != "float32"
    return MathType.CUDNN_TENSOR_OP_MATH if half_precision else MathType.CUDNN_DEFAULT_MATH


def _key(
    problem: ContractionProblem, algorithm: int, fused: bool, output: TensorSpec
) -> ConvolutionKey:
    """The key of the descriptors, whose result has the layout ``output``."""
    kind = BY_NAME[problem.x.dtype]
    layout = TensorFormat.CUDNN_TENSOR_NCHW if problem.planar else TensorFormat.CUDNN_TENSOR_NHWC
    return ConvolutionKey(
        operation=_OPERATIONS[problem.direction],
        x=TensorKey(kind, problem.input.shape, problem.input.strides),
        w=FilterKey(kind, layout, problem.w.shape),
        y=TensorKey(kind, output.shape, output.strides),
        padding=tuple(before for before, _ in problem.padding),
        stride=problem.stride,
        dilation=problem.dilation,
        groups=problem.groups,
        mode=ConvolutionMode.CUDNN_CROSS_CORRELATION,
        compute=DataType.CUDNN_DATA_FLOAT,
        math=_math(problem),
        search=str(algorithm),
        deterministic=problem.deterministic,
        workspace_limit=1 << 62,
        aligned=True,
        fused=fused,
        device=0,
    )


@dataclass(frozen=True)
class PlanCall:
    """A plan; no work in flight writes its inputs with the indices ``settled``, such as weights."""

    plan: Execution
    settled: tuple[int, ...] = ()

    def bind(self, addresses: Sequence[int]) -> Callable[[], None]:
        """Returns what launches it on CuPy's current stream.

        Args:
            addresses: of the inputs, the output and the workspace.
        """
        *tensors, workspace = addresses
        return self.plan.bind_pointers(tensors, workspace, self.plan, self.settled)
