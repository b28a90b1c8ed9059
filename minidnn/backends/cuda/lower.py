"""Lowers a plan to tasks: for each node of the graph its kernels or contraction, with pointers.

Kernels are printed here; algorithms of contractions and of cuDNN are chosen later
(:mod:`.prepare`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ...errors import UnsupportedError
from ...fusion.functions import LayerFunction
from ...fusion.region import (
    FusedContraction,
    FusedSequence,
    parts_of,
    region_of_sum,
    region_of_window,
)
from ...graph.index_map import IndexMap
from ...graph.ir import Constant, Node, Value
from ...graph.operator import Contraction as ContractionOperator
from ...graph.operator import Elementwise, Reshaping, Windowed
from ...graph.operators import (
    AdaptiveAvgPool2d,
    ArgMax,
    Concat,
    Conv2dInputGradient,
    Conv2dWeightGradient,
    GroupNorm,
    LayerNorm,
    LogSoftmax,
    MatMul,
    Reduce,
    Reorder,
    Softmax,
    SumOverRanks,
    TakeChannels,
    Variance,
)
from ...graph.types import ITEMSIZE, TensorType
from ...kernels.ops import lower, move, region
from ...kernels.ops.pitched import Pitched
from ...kernels.schedule import AxisSchedule
from ...memory import awaited
from ...runtime.plan import Plan
from .constants import Data
from .contraction.int8_filter import is_by_channel, packed_filter, why_not_bytes
from .contraction.problem import (
    BoundContraction,
    BytesOnly,
    ContractionProblem,
    contraction_of,
    gradient_of,
    has_one_layout,
)
from .copy import print_copy, print_take_channels
from .kernels import ANY_SIZE, SCHEDULE, Launch
from .library.lower import Lowering
from .machine import Machine
from .normalize import print_layer_norm, print_softmax
from .pointwise import has_any_size, print_chain_for_any_size, print_for_any_size
from .prelude import TYPES
from .rank_sums import RankSum
from .reduce import averages_images, print_argmax, print_reduce
from .regions import (
    REGION_KERNELS,
    LoweringContext,
    outer_values,
    plane_average,
    tasks_of_product,
    tasks_of_row_operator,
    tasks_of_sequence,
    tasks_of_sums,
)
from .strided import pitched, print_broadcast, strided_of
from .task import (
    InWorkspace,
    Pointer,
    Task,
    channels_last,
    data_of,
    numbers_of,
    pointer_at,
    pointer_to,
)
from .tensor import Tensor, tensor_of


def lower_plan(
    plan: Plan,
    machine: Machine,
    tf32: bool,
    accuracy: str = "normal",
    others: bool = False,
    deterministic: bool = True,
    any_size: bool = False,
) -> list[Task]:
    """The tasks of a plan for a machine, in the order in which they run.

    Args:
        tf32: whether contractions of float32 may use TF32 tensor cores.
        accuracy: "high" excludes algorithms that compute through Winograd or FFT.
        others: whether tasks have the kernels to measure beside the cost model's choice.
        deterministic: whether every run must give the same bits.
        any_size: whether kernels take spatial sizes as arguments, where such kernels exist.

    UnsupportedError names a node that no kernel computes with the layouts of this graph.
    """
    lowering = _Lowering(plan, machine, tf32, accuracy, others, deterministic, any_size)
    waits, nodes, tasks = awaited(plan.graph), plan.graph.nodes, list[Task]()
    for index in range(len(nodes) + 1):
        tasks += map(_wait, waits.get(index, ()))
        tasks += lowering.node(nodes[index]) if index < len(nodes) else ()
    return tasks


class _Lowering(LoweringContext):
    """Lowers the nodes of one plan."""

    def node(self, node: Node) -> Sequence[Task]:
        """The tasks of a node; none if it is a view of its operand."""
        op, annotations = node.op, self.plan.annotations
        if annotations.is_view(node):
            return ()
        if self.any_size and (tasks_of_any_size := self._of_any_size(node)) is not None:
            return tasks_of_any_size
        if (kernel := REGION_KERNELS.get(type(op))) is not None:
            return kernel.tasks(self, node, op)
        if isinstance(op, LayerFunction):
            return self._functions(node)
        if isinstance(op, Variance):  # outside of a region where optimization fuel ran out
            return tasks_of_sums(self, node, region_of_sum(node))
        if isinstance(op, Windowed):  # likewise
            return tasks_of_sequence(self, node, region_of_window(node))
        if isinstance(op, (FusedContraction, ContractionOperator)):
            return self._contraction(node)
        if isinstance(op, (Conv2dInputGradient, Conv2dWeightGradient)):
            return (self._gradient(node),)
        if isinstance(op, MatMul):
            return tasks_of_product(self, node, op)
        if isinstance(op, SumOverRanks):
            return self._sum_over_ranks(node, op)
        if isinstance(op, Concat):
            return self._concat(node, op)
        if isinstance(op, TakeChannels):
            return (self._take_channels(node, op),)
        if (tasks := tasks_of_row_operator(annotations, node)) is not None:
            return tasks
        if isinstance(op, (Softmax, LogSoftmax)):
            x = node.inputs[0]
            launch = print_softmax(op, x.type, strided_of(annotations, x))
        elif isinstance(op, AdaptiveAvgPool2d):
            x = node.inputs[0]
            is_global = node.output.shape[2:] == (1, 1) and not isinstance(x, Constant)
            if is_global and averages_images(x.shape[0], self.tensor(x)):
                return (plane_average(self, node),)
            launch = self._adaptive(node, SCHEDULE)
        elif isinstance(op, Elementwise):
            launch = print_broadcast(annotations, node)
        elif isinstance(op, (Reorder, Reshaping)):
            return (self._copy(node, node.inputs[0], self.tensor(node.output)),)
        else:
            return (self._other(node),)
        return (Task(node, launch, (*map(pointer_to, node.inputs), node.output)),)

    def _of_any_size(self, node: Node) -> Sequence[Task] | None:
        """The task of a node whose kernel takes spatial sizes as arguments, if there is one."""
        op = node.op
        if isinstance(op, AdaptiveAvgPool2d):
            pointers = pointer_to(node.inputs[0]), node.output
            return (Task(node, self._adaptive(node, ANY_SIZE), pointers),)
        nodes: Sequence[Node] = (node,)
        outputs, outer = node.outputs, dict[Value, Value]()
        if isinstance(op, FusedSequence):
            if op.summed:
                return None
            nodes, outputs = op.body.nodes, op.body.outputs
            outer = outer_values(op.body, node.inputs, node.outputs)
        elif not isinstance(op, (Elementwise, Windowed)):
            return None
        if not has_any_size(nodes):
            return None
        launch, values = print_for_any_size(nodes, outputs, lambda v: self.tensor(outer.get(v, v)))
        return (Task(node, launch, tuple(pointer_to(outer.get(v, v)) for v in values)),)

    def _adaptive(self, node: Node, schedule: AxisSchedule) -> Launch:
        x, y = node.inputs[0], node.output
        return Launch.of(
            region.lower_adaptive(x.shape[0], self.tensor(x), self.tensor(y), schedule)
        )

    def _other(self, node: Node) -> Task:
        """The task of an operator on strided values of any rank, whose axes are in NCHW order."""
        op, x = node.op, node.inputs[0]
        annotations = self.plan.annotations
        strided = strided_of(annotations, x)
        table: list[Pointer] = []
        operands = [pitched(annotations, value) for value in (*node.inputs, *node.outputs)]
        if (kernel := lower(op, operands, SCHEDULE)) is not None:
            launch = Launch.of(kernel)
            table += map(numbers_of, kernel.tables)
        elif isinstance(op, Reduce):
            launch = print_reduce(op, x.type, strided)
        elif isinstance(op, ArgMax):
            launch = print_argmax(op, x.type, strided)
        else:
            assert isinstance(op, (LayerNorm, GroupNorm)), f"no kernel for {op}"
            launch = print_layer_norm(op, x.type, strided, len(node.inputs) - 1)
        return Task(node, launch, (*map(pointer_to, node.inputs), *table, node.output))

    def _sum_over_ranks(self, node: Node, op: SumOverRanks) -> Sequence[Task]:
        self.check_dense(node, *node.inputs)
        types = tuple(value.type for value in node.inputs)
        work = RankSum(op, types, node.name, begins=True)
        begin = Task(node, work, (*map(pointer_to, node.inputs), *node.outputs))
        return (begin,) if op.lasts else (begin, _wait(node))

    def _functions(self, node: Node) -> Sequence[Task]:
        exactly = self.accuracy == "high"
        return Lowering(self.is_planar, self.tf32, exactly, self.deterministic).tasks(node)

    def _contraction(self, node: Node) -> Sequence[Task]:
        if (reason := why_not_bytes(parts_of(node))) is not None:
            raise UnsupportedError(f"node {node.name!r}: {reason}")
        bound = contraction_of(node, *self._given())
        if self.any_size:
            bound = replace(bound, problem=replace(bound.problem, any_size=True))
        self._check_rows(node, bound)
        packing, weight = self._filter(node, bound.weight, bound.problem, bound.whole)
        pointers: list[Pointer] = [
            pointer_at(bound.source),
            weight,
            bound.result,
            *map(pointer_at, bound.others),
            *map(pointer_to, bound.vectors),
            *map(pointer_to, bound.before_vectors),
            *map(pointer_to, bound.reduction),
        ]
        size = sum(task.workspace_bytes for task in packing)
        return *packing, Task(node, bound.problem, tuple(pointers), (), size)

    def _given(self) -> tuple[Callable[[Value], Tensor], Callable[[Value], bool], bool, str, bool]:
        """The arguments of ``contraction_of`` and ``gradient_of`` after the node."""
        return self.tensor, self.is_planar, self.tf32, self.accuracy, self.deterministic

    def _gradient(self, node: Node) -> Task:
        bound = gradient_of(node, *self._given())
        _, weight = self._filter(node, bound.weight, bound.problem)
        return Task(
            node, bound.problem, (pointer_at(bound.source), weight, pointer_at(bound.result))
        )

    def _filter(
        self,
        node: Node,
        weight: Value,
        problem: ContractionProblem,
        quantized: BytesOnly | None = None,
    ) -> tuple[Sequence[Task], Pointer]:
        """The pointer to a filter in the problem's layout, and the task that packs it if it is
        computed at run time for a gathered image; otherwise passes gave it that layout."""
        gather = problem.gather
        if isinstance(weight, Constant):
            return (), _packed(weight, problem, quantized)
        self.check_dense(node, weight)
        planar = self.is_planar(weight)
        if gather is None:
            assert weight.type.rank == 2 or has_one_layout(weight) or planar == problem.planar, node
            return (), weight
        kernel, channels = weight.shape[2:], weight.shape[1]
        indices = np.arange(1, 1 + weight.type.size)
        if planar:
            indices = indices.reshape(weight.shape)
        else:
            indices = indices.reshape(-1, *kernel, channels).transpose(0, 3, 1, 2)
        table = gather.filter(indices, weight.dtype).ravel() - 1
        ends = Pitched.dense(weight.type), Pitched.dense(TensorType(table.shape, weight.dtype))
        launch, packed = Launch.of(move.lower(IndexMap((table,)), *ends, SCHEDULE)), InWorkspace(0)
        size = table.size * ITEMSIZE[weight.dtype]
        return (Task(node, launch, (weight, numbers_of(table), packed), (), size),), packed

    def _check_rows(self, node: Node, contraction: BoundContraction) -> None:
        """UnsupportedError if a linear layer reads or writes a slice of a concatenation."""
        values = [a.value for a in (contraction.source, contraction.result, *contraction.others)]
        is_linear = contraction.weight.type.rank == 2
        slices = [value for value in values if value in self.plan.annotations.placements]
        if is_linear and slices:
            raise UnsupportedError(
                f"node {node.name!r}: a linear layer cannot read or write {slices[0]!r}, which "
                "is a slice of a concatenation"
            )

    def _take_channels(self, node: Node, op: TakeChannels) -> Task:
        sources, out = list(map(self.tensor, node.inputs)), self.tensor(node.output)
        launch, table = print_take_channels(op, node.output.shape[0], sources, out)
        return Task(node, launch, (*map(pointer_to, node.inputs), numbers_of(table), node.output))

    def _concat(self, node: Node, op: Concat) -> Sequence[Task]:
        """The copies of the operands that their producers did not write in place."""
        axis = op.axis % node.output.type.rank
        return [self._concat_copy(node, *each, axis) for each in self.plan.annotations.copied(node)]

    def _concat_copy(self, node: Node, value: Value, first: int, axis: int) -> Task:
        """Copies an operand into a concatenation's result, from index ``first`` of ``axis`` on."""
        out = node.output
        if axis == 1 and out.type.rank == 4 and out.dtype in TYPES:
            base = self.plan.annotations.place(out)
            layout = self.plan.layout(out)
            part = tensor_of(value.type, layout, base.buffer.type, base.channel + first)
            return self._copy(node, value, part)
        source, target = (pitched(self.plan.annotations, each) for each in (value, out))
        kernel = move.lower_copy(source, target, axis, first, SCHEDULE)
        return Task(node, Launch.of(kernel), (pointer_to(value), out))

    def _copy(self, node: Node, value: Value, target: Tensor) -> Task:
        """Copies a value into a view of the node's result."""
        batch, source = value.type.plane[0], self.tensor(value)
        if self.any_size and value.dtype in TYPES and target.dtype in TYPES:
            launch = print_chain_for_any_size(batch, [source], target)
        else:
            launch = print_copy(batch, source, target)
        return Task(node, launch, (pointer_to(value), node.output))


def _wait(node: Node) -> Task:
    """The task that waits for the sums over ranks that a node has begun."""
    assert isinstance(node.op, SumOverRanks)
    return Task(node, RankSum(node.op, (), node.name, begins=False), ())


def _packed(weight: Constant, problem: ContractionProblem, quantized: BytesOnly | None) -> Data:
    """A constant filter in the problem's layout."""
    gather = problem.gather
    if quantized is not None:
        order = (gather, problem.x.dtype, is_by_channel(problem))
        constants = (id(quantized.bias), quantized.zero, repr(quantized.numbers))
        make = packed_filter(weight, quantized, problem)
        return Data(make, weight.dtype, (id(weight), *constants, *order))
    if gather is not None:
        key = (id(weight), gather)
        return Data(lambda: gather.filter(weight.data, weight.dtype), weight.dtype, key)
    if problem.planar or weight.type.rank == 2:
        return data_of(weight)
    return channels_last(weight)
