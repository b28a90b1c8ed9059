"""What the passes ask of a GPU: layouts, costs, and why a fusion is refused.

What each method answers is documented at :class:`~minidnn.fusion.target.Target`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...fusion.functions import LayerFunction, LibraryFunction, LibraryFunctions
from ...fusion.region import (
    FusedContraction,
    FusedGradient,
    FusedSequence,
    FusedSums,
    Region,
    why_not_point_by_point,
)
from ...fusion.stacks import reads_otherwise
from ...fusion.target import Target
from ...graph.ir import Node, Value
from ...graph.layout import CHANNELS_LAST, PLANAR, Layout
from ...graph.operator import (
    Contraction,
    Reshaping,
    Windowed,
    is_integer_product,
)
from ...graph.operators import (
    AdaptiveAvgPool2d,
    Concat,
    Conv2d,
    Conv2dInputGradient,
    Conv2dWeightGradient,
    Linear,
    Reorder,
    TakeChannels,
    Transpose,
)
from ...graph.types import HALF_DTYPES, INT8_DTYPES
from .contraction.gather import gather_precision, wants_gather
from .contraction.problem import has_one_layout
from .copy import MOST_SIDE_BY_SIDE
from .library.support import PRODUCTS, layer_functions, product_gradient, takes_layouts
from .prelude import TYPES
from .regions import REGION_KERNELS
from .tensor import LANES

_GRADIENTS = (Conv2dInputGradient, Conv2dWeightGradient)
_BOTH = (CHANNELS_LAST, PLANAR)
_DEPTHWISE_FIRST = 15.0
"""The assumed extra time of exact float32 depthwise convolutions in NCHW over NHWC, in multiples of
the time of their operations at peak.  It is what cuDNN needs in NCHW: 14 to 16 for windows of 7x7
(convnext_tiny), 16 to 31 for 3x3 (shufflenet_v2_x1_0), batch 32 on an H200.  Our depthwise NCHW
kernel needs less, but without this cost mobilenet_v2 takes 60 % longer at batch 1, although
efficientnet_b0 takes 16 % less at 32, on an H100."""
_EXACT_LAST = 3.0
"""The assumed extra time of other exact float32 convolutions in NHWC, in the same multiples.  It
explains the times of mobilenet_v2 (3.3), efficientnet_b0 (3.6), mnasnet1_0 (1.8) and
mobilenet_v3_large (0.5), batch 32 on an H200, with some of their 1x1 convolutions in NHWC."""

STORAGE = {
    "float32": "float32",
    "tf32": "float32",
    "float16": "float16",
    "bfloat16": "bfloat16",
}
"""The dtype that values have in memory at each precision."""


@dataclass(frozen=True)
class CudaTarget(Target):
    """A GPU: contractions on tensor cores prefer NHWC, exact float32 is faster in NCHW.

    Attributes:
        precision: a key of :data:`STORAGE`.
        any_size: whether kernels have to serve every spatial size without being compiled again.
    """

    precision: str = "float32"
    any_size: bool = False

    @property
    def storage(self) -> str:
        return STORAGE[self.precision]

    def is_exact(self, node: Node) -> bool:
        """Whether a node multiplies in float32: never in half precision or int8, whatever precision
        was asked for."""
        return self.precision != "tf32" and node.inputs[0].dtype not in (*HALF_DTYPES, *INT8_DTYPES)

    @property
    def multiplies_int8(self) -> bool:
        return self.storage == "float32"

    @property
    def contracts_matrices(self) -> bool:
        return True

    @property
    def drops_in_stacks(self) -> bool:
        return not self.any_size

    @property
    def transposes_products(self) -> bool:
        return True

    def layer_functions(self, node: Node) -> LibraryFunctions | str:
        return layer_functions(node, self.storage)

    def product_gradient(self, node: Node, operand: int) -> LibraryFunction | None:
        return product_gradient(node, operand, self.storage)

    def refuse_strategy(self, strategy: str) -> str | None:
        return None

    def layouts(self, node: Node) -> tuple[Layout, ...]:
        op = node.op
        if isinstance(op, FusedSequence) and op.summed:
            return (PLANAR,)
        if isinstance(op, Reshaping):
            planes = [value.type.plane[2:] for value in (*node.inputs, node.output)]
            return _BOTH if all(plane == (1, 1) for plane in planes) else (PLANAR,)
        if (layouts := _transposed_layouts(node)) is not None:
            return layouts[1:]
        if not _takes_layouts(node):
            return (PLANAR,)
        exact = self.is_exact(node)
        if isinstance(op, FusedGradient):
            return (CHANNELS_LAST,)
        if isinstance(op, _GRADIENTS):
            return (PLANAR,) if exact else (CHANNELS_LAST,)
        if isinstance(op, LayerFunction) and op.function in PRODUCTS:
            return (PLANAR,) if exact else (CHANNELS_LAST,)
        if isinstance(op, (Contraction, FusedContraction)) and not exact:
            return (CHANNELS_LAST,)
        plain = exact and self.precision not in HALF_DTYPES
        if plain and self.any_size:
            return (PLANAR,)  # also where channels last is faster for some sizes
        return (PLANAR, CHANNELS_LAST) if plain else _BOTH

    def reads(self, node: Node, value: Value, layout: Layout) -> Layout:
        """A Transpose to or from channels last reads the other layout, so that it moves no data."""
        layouts = _transposed_layouts(node)
        return layout if layouts is None else layouts[0]

    def reads_any(self, node: Node, value: Value) -> bool:
        """An image of few channels, and its filter, are gathered from any layout; a value of one
        pixel or one channel is the same in all layouts."""
        if isinstance(node.op, LayerFunction):
            return node.op.function in PRODUCTS and value.type.rank == 4 and has_one_layout(value)
        inner = _contraction(node)
        is_weight = isinstance(inner.op, Conv2d) and value is _weight(node)
        if is_weight and has_one_layout(value):
            return True
        read = is_weight or value is node.inputs[0]
        if not isinstance(inner.op, Conv2d) or not read or self.is_exact(node):
            return False
        precision = gather_precision(value.dtype, self.precision == "tf32")
        return wants_gather(inner.op, inner.inputs[1].shape, precision)

    def layout_seconds(self, node: Node, layout: Layout) -> float:
        op = node.op
        if not self.is_exact(node) or _is_linear(node):
            return 0.0
        if not isinstance(op, (Contraction, FusedContraction)):
            return 0.0
        slower, times = (
            (PLANAR, _DEPTHWISE_FIRST) if _is_depthwise(node) else (CHANNELS_LAST, _EXACT_LAST)
        )
        return times * self.compute_seconds(node) if layout == slower else 0.0

    def refuse_convolution_gradient(self, node: Node) -> str | None:
        assert isinstance(node.op, _GRADIENTS)
        if any(before != after for before, after in node.op.convolution.padding):
            return "padding differs from one side to the other, which cuDNN's gradients do not take"
        return None

    @property
    def adds_columns(self) -> bool:
        return not self.any_size

    def refuse_fusion(self, region: Region) -> str | None:
        if isinstance(region, FusedContraction):
            return self.refuse_around(region) or _why_not_moments(region)
        if (kernel := REGION_KERNELS.get(type(region))) is not None:
            return kernel.why_not(self, region)
        return super().refuse_fusion(region)

    @property
    def fuses_spatial_sums(self) -> bool:
        return self.precision in HALF_DTYPES and not self.any_size

    @property
    def computes_together(self) -> bool:
        return not self.any_size

    def refuse_prologue(self, contraction: Node, node: Node) -> str | None:
        exact = self.is_exact(contraction)
        if contraction.inputs[0].dtype in INT8_DTYPES:
            return "its int8 input is read without a prologue"
        if contraction.output.dtype not in HALF_DTYPES and not exact:
            return "no kernel does so in tf32"
        op, weight = contraction.op, contraction.inputs[1]
        if not isinstance(op, Conv2d) or op.groups != 1:
            return "only convolutions without groups do so"
        if not exact and (weight.shape[0] % LANES or weight.shape[1] % LANES):
            return f"its channels are no multiple of {LANES}"
        return super().refuse_prologue(contraction, node)

    def refuse_epilogue(self, contraction: Node, node: Node) -> str | None:
        if isinstance(contraction.op, Linear) and contraction.output.type.rank != 2:
            return f"its values have rank {contraction.output.type.rank}"
        if is_integer_product(*(value.type for value in contraction.inputs)):
            return _why_not_behind_sums(contraction, node)
        return reads_otherwise(node) or super().refuse_epilogue(contraction, node)

    def refuse_slice(self, node: Node, value: Value, channel: int) -> str | None:
        writers_of_vectors = (FusedContraction, FusedSums, Concat)
        if value.type.rank == 1 and isinstance(node.op, writers_of_vectors):
            return None
        if isinstance(node.op, (Reorder, FusedGradient, *_GRADIENTS)) or not _takes_layouts(node):
            return f"{node.op.name} writes a value of its own"
        if value.type.rank != 4:
            return f"it has rank {value.type.rank}"
        return None

    def refuse_part(self, node: Node, value: Value, channel: int) -> str | None:
        gradient = isinstance(node.op, FusedGradient) and value in _multiplied(node, node.op)
        if gradient or isinstance(node.op, _GRADIENTS):
            return "cuDNN copies it each time where pixels are not contiguous"
        contracts = isinstance(node.op, (Contraction, FusedContraction))
        if not _takes_layouts(node) or (contracts and value is _weight(node)):
            return f"{node.op.name} reads a value of its own"
        return None


def _why_not_moments(region: FusedContraction) -> str | None:
    """Why a contraction cannot give mean and variance of its result; None if it can, or need
    not."""
    if not region.reductions:
        return None
    core = region.core
    if region.body.outputs[0].dtype not in HALF_DTYPES:
        return "only kernels for half precision add up what they write"
    op, kernel = core.op, core.inputs[1].shape[2:]
    plain = isinstance(op, Conv2d) and op.groups == 1 and op.padding == ((0, 0), (0, 0))
    if not isinstance(op, Conv2d) or not plain or (*kernel, *op.stride) != (1, 1, 1, 1):
        return "only kernels of 1x1 convolutions add up what they write"
    return None


def _why_not_behind_sums(contraction: Node, node: Node) -> str | None:
    """Why a node cannot be an epilogue of int32 sums; None if it can."""
    if (reason := why_not_point_by_point(contraction, node)) is not None:
        return reason
    tensors = [value for value in node.tensors if value is not contraction.output]
    vectors = node.inputs[len(node.tensors) :]
    for value in (*tensors, *vectors, node.output):
        if value.dtype not in TYPES:
            return f"{value!r} is none of {', '.join(TYPES)}"
    return reads_otherwise(node)


def _transposed_layouts(node: Node) -> tuple[Layout, Layout] | None:
    """The layouts of operand and result with which a Transpose to or from channels last moves no
    data; None for other nodes."""
    if not isinstance(node.op, Transpose) or node.output.dtype not in TYPES:
        return None
    if node.op.dims == (0, 2, 3, 1):
        return CHANNELS_LAST, PLANAR
    return (PLANAR, CHANNELS_LAST) if node.op.dims == (0, 3, 1, 2) else None


def _takes_layouts(node: Node) -> bool:
    """Whether a node's values may have another layout than NCHW, or be slices of wider buffers."""
    if isinstance(node.op, Concat):
        return node.op.axis % node.output.type.rank == 1
    if isinstance(node.op, (Contraction, FusedContraction)):
        return not _is_linear(node)
    if isinstance(node.op, LayerFunction):
        return takes_layouts(node)
    if isinstance(node.op, _GRADIENTS):
        return True
    if isinstance(node.op, TakeChannels):
        return node.output.dtype in TYPES and node.output.shape[1] <= MOST_SIDE_BY_SIDE
    regions = (FusedSequence, FusedSums, FusedGradient)
    return isinstance(node.op, (*regions, Windowed, AdaptiveAvgPool2d, Reorder))


def _contraction(node: Node) -> Node:
    """The contraction node of a fused contraction; any other node itself."""
    return node.op.body.nodes[0] if isinstance(node.op, FusedContraction) else node


def _weight(node: Node) -> Value:
    """The operand that is a contraction's weight, or the constant in its body."""
    weight = _contraction(node).inputs[1]
    if isinstance(node.op, FusedContraction):
        return dict(zip(node.op.body.inputs, node.inputs, strict=True)).get(weight, weight)
    return weight


def _multiplied(node: Node, op: FusedGradient) -> list[Value]:
    """The operands of a fused region that its convolution's gradient reads."""
    outer = zip(op.body.inputs, node.inputs, strict=True)
    return [value for inner, value in outer if inner in op.core.inputs]


def _is_linear(node: Node) -> bool:
    return isinstance(_contraction(node).op, Linear)


def _is_depthwise(node: Node) -> bool:
    inner = _contraction(node)
    return isinstance(inner.op, Conv2d) and inner.op.groups > 1 and inner.inputs[1].shape[1] == 1
