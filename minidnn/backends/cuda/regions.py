"""Regions on a GPU: for each kind that has kernels of its own, its tasks, and why a region has
none.  Regions of contractions are lowered like contractions by themselves (:mod:`.lower`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ...errors import UnsupportedError
from ...fusion.attention import FusedAttention, FusedAttentionGradient
from ...fusion.device import Device
from ...fusion.product import FusedProduct
from ...fusion.region import FusedElements, FusedGradient, FusedSequence, FusedSums
from ...fusion.rows import FusedRows, region_of_row_operator
from ...graph.ir import Constant, Graph, Node, Value
from ...graph.layout import CHANNELS_LAST
from ...graph.operator import Operator
from ...graph.operators import AvgPool2d, Conv2dInputGradient
from ...graph.types import HALF_DTYPES
from ...memory import Annotations
from ...runtime.plan import Plan
from .constants import Data
from .contraction.epilogue_reduction import recorded
from .contraction.problem import Address, gradient_of
from .contraction.producer import MOST_PRODUCER_OPERATORS, producer_of
from .machine import Machine
from .product.attention import attention_tasks, why_not_attention
from .product.matmul import product_tasks
from .reduce import averages_images, print_image_average
from .row_region import print_rows, why_not_rows
from .row_tiles import RowTile
from .sequence.reschedule import print_region, print_variants
from .sequence.sums import choose_sums
from .sequence.vectors import are_separate_operands, print_vectors
from .strided import element_of, print_elements, strided_of
from .sums import print_sums
from .task import InWorkspace, Pointer, Task, pointer_to
from .tensor import LANES, Tensor, tensor_of

_FOR_SIZES = "only kernels for given sizes do so"


@dataclass(frozen=True)
class LoweringContext:
    """What lowering a node depends on, beside the node; see :func:`.lower.lower_plan`."""

    plan: Plan
    machine: Machine
    tf32: bool
    accuracy: str
    others: bool
    deterministic: bool
    any_size: bool

    def tensor(self, value: Value) -> Tensor:
        """The offset and strides of a value in its buffer; a constant is NCHW."""
        place = self.plan.annotations.within(value)
        return tensor_of(value.type, self.plan.layout(value), place.buffer.type, place.channel)

    def is_planar(self, value: Value) -> bool:
        """Whether a value is NCHW."""
        return self.plan.layout(value).block == 1

    def check_dense(self, node: Node, *values: Value) -> None:
        """UnsupportedError if a value is a slice of a concatenation's buffer."""
        slices = [value for value in values if value in self.plan.annotations.placements]
        if slices:
            raise UnsupportedError(
                f"node {node.name!r}: {node.op.name} cannot read {slices[0]!r}, which is a "
                "slice of a concatenation"
            )


class FusionTarget(Protocol):
    """What refusals of regions depend on; see :class:`.target.CudaTarget`."""

    @property
    def device(self) -> Device: ...

    @property
    def precision(self) -> str: ...

    @property
    def any_size(self) -> bool: ...


@dataclass(frozen=True)
class RegionKernel:
    """The kernels of a kind of region.

    Attributes:
        tasks: the tasks of a node whose operator is such a region.
        why_not: why there is no kernel for a region; None if there is one.
    """

    tasks: Callable[[LoweringContext, Node, Any], Sequence[Task]]
    why_not: Callable[[FusionTarget, Any], str | None] = lambda target, region: None


def outer_values(
    body: Graph, inputs: Sequence[Value], outputs: Sequence[Value]
) -> dict[Value, Value]:
    """The values outside of a region that its body's inputs and outputs stand for."""
    return dict(zip((*body.inputs, *body.outputs), (*inputs, *outputs), strict=True))


def tasks_of_sequence(context: LoweringContext, node: Node, op: FusedSequence) -> Sequence[Task]:
    """The tasks of a fused sequence: one kernel, which is preceded by one that packs vectors."""
    if _averages_planes(context, node, op):
        return (plane_average(context, node),)
    outer = outer_values(op.body, node.inputs, node.outputs)

    def tensor(value: Value) -> Tensor:
        return context.tensor(outer.get(value, value))

    scheduled = print_region(op, tensor, context.machine)
    values = [outer.get(slot.value, slot.value) for slot in scheduled.binding.slots]
    pointers: list[Pointer] = [pointer_to(value) for value in values]
    variants = print_variants(op, tensor, context.machine) if context.others else ()
    vectors = [outer.get(vector.value, vector.value) for vector in scheduled.binding.vectors]
    are_separate = are_separate_operands(scheduled.binding)
    if are_separate or all(isinstance(value, Constant) for value in vectors):
        if are_separate:
            pointers += map(pointer_to, vectors)
        elif vectors:
            pointers.append(Data(scheduled.kernel.vectors, "float32", (id(op), "vectors")))
        return (Task(node, scheduled.kernel.launch, tuple(pointers), tuple(variants)),)
    packing, size = print_vectors(scheduled.binding)
    packed = InWorkspace(0)
    return (
        Task(node, packing, (*map(pointer_to, vectors), packed), (), size),
        Task(node, scheduled.kernel.launch, (*pointers, packed), tuple(variants), size),
    )


def _averages_planes(context: LoweringContext, node: Node, op: FusedSequence) -> bool:
    """Whether a region is a global average that :func:`print_image_average` computes."""
    if len(op.body.nodes) != 1 or len(node.inputs) != 1:
        return False
    inner = op.body.nodes[0].op
    if not isinstance(inner, AvgPool2d) or isinstance(node.inputs[0], Constant):
        return False
    _, _, rows, columns = node.inputs[0].type.plane
    is_global = inner.kernel_size == (rows, columns) and inner.padding == (0, 0)
    divides_by_size = inner.divisor_override in (None, rows * columns)
    x = context.tensor(node.inputs[0])
    return is_global and divides_by_size and averages_images(node.output.shape[0], x)


def plane_average(context: LoweringContext, node: Node) -> Task:
    """The task that averages each plane of the node's operand."""
    x = node.inputs[0]
    source, target = context.tensor(x), context.tensor(node.output)
    launch = print_image_average(x.shape[0], source, target, context.machine)
    return Task(node, launch, (x, node.output))


def _why_not_sequence(target: FusionTarget, region: FusedSequence) -> str | None:
    """Why a sequence cannot add up planes that it computes; None if it can, or need not."""
    if not region.summed:
        return None
    if target.precision != "float32":
        return "values may become channels last, where no thread has a part of a plane"
    if choose_sums(region, target.device.local_bytes) is None:
        return "its planes do not stay in registers"
    return None


def tasks_of_sums(context: LoweringContext, node: Node, op: FusedSums) -> Sequence[Task]:
    """The tasks of a sweep: its kernel, and one that combines partial sums if there are any."""
    outer = outer_values(op.body, node.inputs, node.outputs)
    sums = print_sums(op, lambda value: context.tensor(outer.get(value, value)))
    operands = [pointer_to(outer.get(value, value)) for value in sums.operands]
    results = [node.outputs[i] for i in sums.sums]
    if sums.parts is None:
        return (Task(node, sums.first, (*operands, *results)),)
    parts = InWorkspace(0)
    return (
        Task(node, sums.first, (*operands, parts), (), sums.bytes),
        Task(node, sums.parts, (parts, *results), (), sums.bytes),
    )


def _why_not_sums(target: FusionTarget, region: FusedSums) -> str | None:
    rank = len(region.shape)
    return None if rank in (2, 4) else f"its values have rank {rank}"


def _fused_gradient(context: LoweringContext, node: Node, op: FusedGradient) -> Sequence[Task]:
    """The task of a gradient with its prologue and its epilogue reductions."""
    outer = outer_values(op.body, node.inputs, node.outputs)
    gradient = op.core.output

    def tensor(value: Value) -> Tensor:
        unstored = value is gradient and not op.is_kept
        return tensor_of(gradient.type, CHANNELS_LAST) if unstored else context.tensor(outer[value])

    rest = (context.tf32, context.accuracy, context.deterministic)
    bound = gradient_of(op.core, tensor, lambda value: False, *rest)
    problem = bound.problem
    pointers: list[Pointer] = [
        Address(outer[gradient], bound.source.bytes) if op.is_kept else InWorkspace(0),
        pointer_to(outer[bound.weight]),
        Address(outer[bound.result.value], bound.result.bytes),
    ]
    if op.producer is not None:
        producer, others = producer_of(op.producer, tensor)
        problem = replace(problem, producer=producer)
        pointers += (pointer_to(outer[value]) for value in others)
    if (sums := op.sums) is not None:
        read = [value for value in sums.body.inputs[1:] if value.shape == sums.shape]
        stored = list(map(tensor, sums.stored.values()))
        reduction, others = recorded(sums, gradient, list(map(tensor, read)), stored, op.is_kept)
        problem = replace(problem, reduction=reduction)
        pointers += (pointer_to(outer[value]) for value in others)
        first = (op.producer is not None) + op.is_kept
        pointers += (node.outputs[first + i] for i in (*sums.stored, *sums.reductions))
    return (Task(node, problem, tuple(pointers)),)


def _why_not_gradient(target: FusionTarget, region: FusedGradient) -> str | None:
    return _why_not_sums_of(region) or _why_not_producer(target, region)


def _why_not_sums_of(region: FusedGradient) -> str | None:
    """Why a gradient cannot have sums of it as an epilogue; None if it can, or has none."""
    if region.sums is None:
        return None
    op, weight = region.core.op, region.core.inputs[1]
    assert isinstance(op, Conv2dInputGradient)
    geometry = op.convolution
    if region.core.output.dtype not in HALF_DTYPES:
        return "only kernels for half precision add up what they write"
    if geometry.groups != 1 or (*geometry.stride, *geometry.dilation) != (1, 1, 1, 1):
        return "only kernels of stride 1, with neither groups nor dilation, add up"
    if weight.shape[0] % LANES or weight.shape[1] % LANES:
        return f"its channels are no multiple of {LANES}"
    sides = zip(weight.shape[2:], geometry.padding, strict=True)
    if any(max(padding) >= size for size, padding in sides):
        return "its padding is wider than its window"
    return None


def _why_not_producer(target: FusionTarget, region: FusedGradient) -> str | None:
    """Why a gradient cannot have its prologue; None if it can, or has none."""
    if region.producer is None:
        return None
    if target.any_size:
        return _FOR_SIZES
    gradient = region.core
    if gradient.output.dtype not in HALF_DTYPES or not _is_pointwise(gradient):
        return "only kernels of 1x1 convolutions in half precision do so"
    if any(channels % LANES for channels in gradient.inputs[1].shape[:2]):
        return f"its channels are no multiple of {LANES}"
    (result,), read = region.producer.outputs, region.producer.inputs
    if any(node.output.shape != result.shape for node in region.producer.nodes):
        return "it computes vectors"
    tensors = [value for value in read if value.shape == result.shape]
    if any(value.dtype != result.dtype for value in tensors):
        return "what it reads has several dtypes"
    if len(tensors) > MOST_PRODUCER_OPERATORS:
        return f"it reads more than {MOST_PRODUCER_OPERATORS} tensors"
    vectors = [value for value in read if value.shape != result.shape]
    if any((v.dtype, v.type.size) != ("float32", result.shape[1]) for v in vectors):
        return "it reads other values than tensors and vectors of float32"
    return None


def _is_pointwise(gradient: Node) -> bool:
    """Whether an input gradient is that of a 1x1 convolution: a matrix product over channels."""
    assert isinstance(gradient.op, Conv2dInputGradient)
    geometry, kernel = gradient.op.convolution, gradient.inputs[1].shape[2:]
    plain = geometry.groups == 1 and geometry.padding == ((0, 0), (0, 0))
    return plain and (*kernel, *geometry.stride) == (1, 1, 1, 1)


def tasks_of_rows(
    node: Node,
    op: FusedRows,
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    tile: RowTile | None = None,
) -> Sequence[Task]:
    """The tasks of a region on contiguous values: its kernel and, for column sums, one that adds
    partial sums.  The ``tile`` is the cost model's choice by default."""
    printed = print_rows(op, tile)
    outer = outer_values(op.body, inputs, outputs)
    pointers: list[Pointer] = [pointer_to(outer.get(v, v)) for v in printed.operands]
    if printed.parts is None:
        return (Task(node, printed.first, tuple(pointers)),)
    workspace, sums = InWorkspace(0), (outputs[i] for i in printed.sums)
    return (
        Task(node, printed.first, (*pointers, workspace), (), printed.bytes),
        Task(node, printed.parts, (workspace, *sums), (), printed.bytes),
    )


def tasks_of_row_operator(annotations: Annotations, node: Node) -> Sequence[Task] | None:
    """The tasks of a node that reduces or normalizes trailing axes; None if it does not, or if its
    rows are not contiguous or do not fit in registers."""
    op = region_of_row_operator(node) if node.inputs else None
    if op is None or why_not_rows(op) is not None:
        return None
    for value in node.inputs:
        if element_of("i", value.shape, strided_of(annotations, value)) != "i":
            return None
    return tasks_of_rows(node, op, node.inputs, node.outputs)


def _rows(context: LoweringContext, node: Node, op: FusedRows) -> Sequence[Task]:
    context.check_dense(node, *node.inputs)
    return tasks_of_rows(node, op, node.inputs, node.outputs)


def _why_not_rows(target: FusionTarget, region: FusedRows) -> str | None:
    return _FOR_SIZES if target.any_size else why_not_rows(region)


def _elements(context: LoweringContext, node: Node, op: FusedElements) -> Sequence[Task]:
    launch = print_elements(context.plan.annotations, node)
    values = (*node.inputs, *op.body.constants)
    return (Task(node, launch, (*map(pointer_to, values), *node.outputs)),)


def tasks_of_product(context: LoweringContext, node: Node, op: Operator) -> Sequence[Task]:
    """The task of a MatMul, or of a region of one; see :func:`.product.matmul.product_tasks`."""
    context.check_dense(node, *node.inputs)
    return product_tasks(node, context.machine, context.others)


def _attention(context: LoweringContext, node: Node, op: Operator) -> Sequence[Task]:
    context.check_dense(node, *node.inputs)
    return attention_tasks(node)


def _why_not_attention_gradient(target: FusionTarget, region: FusedAttentionGradient) -> str | None:
    shape = region.shape
    return why_not_attention(shape.attention, shape.g, shape.dq, shape.dk, shape.dv)


#: A kind of region that is missing here is refused, as targets refuse it by default.
REGION_KERNELS: Mapping[type[Operator], RegionKernel] = {
    FusedSequence: RegionKernel(tasks_of_sequence, _why_not_sequence),
    FusedSums: RegionKernel(tasks_of_sums, _why_not_sums),
    FusedRows: RegionKernel(_rows, _why_not_rows),
    FusedElements: RegionKernel(_elements),
    FusedGradient: RegionKernel(_fused_gradient, _why_not_gradient),
    FusedProduct: RegionKernel(tasks_of_product),
    FusedAttention: RegionKernel(_attention, lambda _, region: why_not_attention(region.shape)),
    FusedAttentionGradient: RegionKernel(_attention, _why_not_attention_gradient),
}
