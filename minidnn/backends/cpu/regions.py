"""Regions on the CPU: for each kind that has kernels of its own, its tasks, and why a region has
none.  Regions of contractions are lowered like contractions by themselves (:mod:`.lower`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...fusion.region import FusedNormalization, FusedSequence, FusedSums
from ...graph.ir import Constant, Graph, Node, Value
from ...graph.operator import Operator, Windowed
from ...graph.types import INT8_DTYPES
from ...kernels.ops import region
from ...runtime.plan import Plan
from .contraction import Choose
from .execution.bind import Task, pointer_to, shaped_task, tasks_of_stages, with_packing
from .execution.packing import data_of
from .isa import Isa
from .operators.kernels import is_flat, print_flat, print_for_any_size
from .operators.layer_norm import print_channel_norm, why_not_channel_norm
from .operators.pooling import print_byte_window
from .operators.sums import print_sums, why_not_sums
from .sequences.sequence import print_sequence
from .tensor import ELEMENTS, Tensor, tensor_of


@dataclass(frozen=True)
class LoweringContext:
    """What lowering a node depends on, beside the node.

    ``images`` is how often the plan is run to compute the whole batch: once, or for each image of a
    group.  With ``any_size`` kernels serve any spatial size, where there are such kernels.
    """

    plan: Plan
    isa: Isa
    threads: int
    accuracy: str
    choose: Choose
    images: int = 1
    any_size: bool = False

    def tensor(self, value: Value) -> Tensor:
        """The layout and strides of a value in memory; a constant is NCHW."""
        buffer = self.plan.annotations.within(value).buffer
        return tensor_of(value.type, self.plan.layout(value), buffer.type)

    def is_dense(self, value: Value) -> bool:
        """Whether a value is NCHW and no part of a wider buffer."""
        alone = self.plan.annotations.within(value).buffer is value
        return self.plan.layout(value).block == 1 and alone

    def of_any_size(
        self, node: Node, body: Graph, outer: Mapping[Value, Value], channel: int = 0
    ) -> Task:
        """The task of a region for any spatial size; see :func:`print_for_any_size`."""

        def of(value: Value) -> Value:
            return outer.get(value, value)

        lanes = self.isa.lanes
        kernel, values = print_for_any_size(body, lambda v: self.tensor(of(v)), lanes, channel)
        return shaped_task(node, kernel, [pointer_to(of(value)) for value in values])


@dataclass(frozen=True)
class RegionKernel:
    """The kernels of a kind of region.

    Attributes:
        tasks: the tasks of a node whose operator is such a region.
        why_not: why there is no kernel for a region; None if there is one.
    """

    tasks: Callable[[LoweringContext, Node, Any], Sequence[Task]]
    why_not: Callable[[Any], str | None]


def tasks_of_sequence(context: LoweringContext, node: Node, op: FusedSequence) -> Sequence[Task]:
    """The tasks of a fused sequence: one kernel, which is preceded by those that pack vectors."""
    outer = dict(zip(op.body.inputs, node.inputs, strict=True))
    outer |= dict(zip(op.body.outputs, node.outputs, strict=True))
    first = op.body.nodes[0]
    if all(map(context.is_dense, (*node.inputs, *node.outputs))):
        if isinstance(first.op, Windowed) and first.output.dtype in INT8_DTYPES:
            x, y = node.inputs[0], node.output
            window = print_byte_window(first.op, x.type, y.type)
            return (shaped_task(node, window, (pointer_to(x), y)),)
        if is_flat(op.body, context.any_size):
            shaped, values = print_flat(op.body)
            pointers = [pointer_to(outer.get(value, value)) for value in values]
            return (shaped_task(node, shaped, (*pointers, node.output)),)
    if context.any_size and not op.summed and region.why_not(op.body.nodes, ELEMENTS) is None:
        return (context.of_any_size(node, op.body, outer),)
    kernel, binding = op.kernel
    inputs = [outer.get(slot.value, slot.value) for slot in binding.inputs]
    outputs = [outer[slot.value] for slot in binding.outputs]
    printed = print_sequence(
        kernel,
        binding,
        [context.tensor(value) for value in inputs],
        [context.tensor(value) for value in outputs],
        context.isa,
    )
    vectors = [printed.vectors] if binding.vectors else []
    given = (*map(pointer_to, (*inputs, *outputs)), *vectors)
    tasks = binding.batch * printed.tasks_per_image
    task = Task(node, printed.source, given, tasks, 1, printed.scratch_bytes)
    return with_packing([task], outer)


def _sums(context: LoweringContext, node: Node, op: FusedSums) -> Sequence[Task]:
    outer = dict(zip(op.body.inputs, node.inputs, strict=True))
    sums = print_sums(op, lambda value: context.tensor(outer.get(value, value)), context.isa)
    operands = [pointer_to(outer.get(value, value)) for value in sums.operands]
    return tasks_of_stages(node, sums.staged, (*operands, *node.outputs))


def _channel_norm(context: LoweringContext, node: Node, op: FusedNormalization) -> Sequence[Task]:
    outer = dict(zip(op.body.inputs, node.inputs, strict=True))
    source = outer[op.body.nodes[0].inputs[0]]
    staged = print_channel_norm(op, context.tensor(source), context.tensor(node.output))
    vectors = (outer.get(value, value) for value in op.vectors)
    operands = [partial(data_of, v) if isinstance(v, Constant) else v for v in vectors]
    return tasks_of_stages(node, staged, (source, *operands, node.output))


def _why_not_sequence(op: FusedSequence) -> str | None:
    return "this device adds up stored values" if op.summed else None


#: A kind of region that is missing here is refused, as targets refuse it by default.
REGION_KERNELS: Mapping[type[Operator], RegionKernel] = {
    FusedSequence: RegionKernel(tasks_of_sequence, _why_not_sequence),
    FusedSums: RegionKernel(_sums, why_not_sums),
    FusedNormalization: RegionKernel(_channel_norm, why_not_channel_norm),
}
