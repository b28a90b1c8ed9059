"""Lowering of a plan: each node of the optimized graph becomes tasks, which are kernel launches.

A task has a printed kernel, the pointers that it receives, and the number of its independent parts.
Pointers are values, workspace and constants here; :mod:`.execution.bind` gives them addresses.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ...fusion.contraction import parts_of
from ...fusion.region import (
    FusedContraction,
    FusedNormalization,
    FusedSequence,
    FusedSums,
    region_of_window,
)
from ...graph.ir import Constant, Graph, Node, Value
from ...graph.operator import Contraction, Elementwise, Reshaping, Windowed, is_integer_product
from ...graph.operators import (
    AdaptiveAvgPool2d,
    ArgMax,
    Concat,
    Conv2dInputGradient,
    Conv2dWeightGradient,
    GroupNorm,
    LayerNorm,
    Linear,
    LogSoftmax,
    MatMul,
    Reduce,
    Reorder,
    Softmax,
    SumOverRanks,
)
from ...graph.types import INT8_DTYPES, ITEMSIZE, TensorType
from ...kernels.ops import lower, move, region
from ...kernels.ops.pitched import Pitched
from ...memory import ALIGNMENT, Annotations
from ...runtime.arrays import to_bits
from ...runtime.plan import Plan
from .contraction import (
    Choose,
    choose_by_price,
    choose_for_any_size,
    print_choice,
    print_integer,
    question_of,
    why_not_in_blocks,
)
from .contraction.gradients import print_gradient
from .execution.bind import Pointer, Task
from .execution.packing import Packed, PackedVectors, data_of
from .execution.program import HostSum
from .isa import Isa
from .one_image import one_image
from .operators.copies import copied, needs_copies, print_conversion, print_copy, widened
from .operators.kernels import (
    SCHEDULE,
    Shaped,
    is_flat,
    print_broadcast,
    print_flat,
    print_for_any_size,
    shaped,
)
from .operators.layer_norm import print_channel_norm, print_layer_norm
from .operators.matmul import (
    print_linear,
    print_matmul,
    print_matmul_of_integers,
    reads_weight_unpacked,
)
from .operators.pooling import print_adaptive, print_byte_window
from .operators.reduce import print_argmax, print_reduce
from .operators.softmax import print_softmax
from .operators.sums import print_sums
from .sequences.sequence import print_sequence
from .sequences.transpose import is_reorder, print_reorder
from .stage import PrintedContraction, Staged, Workspace
from .tensor import ELEMENTS, Tensor, tensor_of


def lower_plan(
    plan: Plan,
    isa: Isa,
    threads: int,
    accuracy: str = "normal",
    choose: Choose = choose_by_price,
    only: Container[Node] | None = None,
    any_size: bool = False,
) -> list[Task]:
    """The tasks of a plan for a pool of ``threads``, in the order in which they run.

    ``accuracy``: see :func:`.contraction.question_of`; ``choose`` chooses the algorithms of
    contractions; ``only``: the nodes to lower, all by default; ``any_size``: with kernels that
    serve any spatial size.
    """
    choose = choose_for_any_size if any_size else choose
    lowering = _Lowering(plan, isa, threads, accuracy, choose, any_size=any_size)
    grouped = {node: group for group in plan.annotations.groups for node in group}
    tasks: list[Task] = []
    for node in plan.graph.nodes:
        if node not in grouped:
            tasks += lowering.node(node) if only is None or node in only else ()
        elif node is grouped[node][0]:
            tasks += _tile_batch(plan, grouped[node], lowering, only)
    return tasks


def _tile_batch(
    plan: Plan, group: tuple[Node, ...], batch_lowering: _Lowering, only: Container[Node] | None
) -> list[Task]:
    """The tasks of a group of nodes that is computed image after image: those of one image, which
    one thread computes."""
    image_plan, originals = one_image(plan, group)
    lowering = replace(
        batch_lowering, plan=image_plan, threads=1, images=group[0].outputs[0].shape[0]
    )
    return [
        replace(
            task,
            node=node,
            pointers=tuple(
                originals.get(p, p) if isinstance(p, Value) else p for p in task.pointers
            ),
            group=group,
        )
        for node, twin in zip(group, image_plan.graph.nodes, strict=True)
        if only is None or node in only
        for task in lowering.node(twin)
    ]


@dataclass(frozen=True)
class _Lowering:
    """Lowers the nodes of a plan.

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

    def node(self, node: Node) -> Sequence[Task]:
        """The tasks of a node; there are none if its result is a view."""
        op = node.op
        if self.plan.annotations.is_view(node):
            return ()
        if needs_copies(node):
            return self._widened(node)
        if isinstance(op, FusedSequence):
            dense = all(map(self._is_dense, (*node.inputs, *node.outputs)))
            first_node = op.body.nodes[0]
            if (
                dense
                and isinstance(first_node.op, Windowed)
                and first_node.output.dtype in INT8_DTYPES
            ):
                x, y = node.inputs[0], node.output
                window = print_byte_window(first_node.op, x.type, y.type)
                return (_shaped_task(node, window, (_pointer(x), y)),)
            flat = dense and is_flat(op.body, self.any_size)
            return (self._flat(node, op),) if flat else self._sequence(node, op)
        if isinstance(op, FusedSums):
            return self._sums(node, op)
        if isinstance(op, FusedNormalization):
            return self._channel_norm(node, op)
        if isinstance(op, Windowed):  # alone where the passes had no fuel
            return self._sequence(node, region_of_window(node))
        if reads_weight_unpacked(node, self.accuracy):
            return _tasks(node, print_linear(node, self.isa))
        if isinstance(op, (FusedContraction, Contraction)):
            return self._contraction(node)
        if isinstance(op, SumOverRanks):
            assert all(map(self._is_dense, node.inputs)), node
            work = HostSum(op, tuple(value.type for value in node.inputs))
            return (Task(node, work, (*map(_pointer, node.inputs), *node.outputs), 1),)
        if isinstance(op, Concat):
            return self._concat(node, op)
        if (staged := _staged(node, self.isa)) is not None:
            return _tasks(node, staged)
        if isinstance(op, AdaptiveAvgPool2d):
            x, y = node.inputs[0], node.output
            tensors = self.tensor(x), self.tensor(y)
            staged = print_adaptive(op, x.type, *tensors, self.isa, self.any_size)
            return _tasks(node, staged)
        if isinstance(op, (Conv2dInputGradient, Conv2dWeightGradient)):
            return _tasks(node, print_gradient(node, self.tensor, self.isa))
        if isinstance(op, Reshaping):
            return (_shaped_task(node, _copied_run(node.output.type, node.output.type, 0, 0)),)
        if isinstance(op, Reorder):
            return (self._copy(node, node.inputs[0], node.output),)
        return (_shaped_task(node, _shaped(node)),)

    def _widened(self, node: Node) -> Sequence[Task]:
        """The tasks of a node on float32 copies of its operands and results, in workspace."""
        rewritten = widened(node)
        layouts = {twin: self.plan.layout(value) for value, twin in rewritten.twins.items()}
        plan = replace(self.plan, graph=rewritten.graph, annotations=Annotations(layouts))
        lowering = replace(self, plan=plan)
        tasks = lowering.node(rewritten.graph.nodes[0])
        end = max(task.workspace_bytes for task in tasks)
        storage: dict[Pointer, Value | Workspace] = {t: v for v, t in rewritten.twins.items()}
        for value in rewritten.copied((*node.inputs, *node.outputs)):
            workspace = Workspace(-(-end // ALIGNMENT) * ALIGNMENT)
            twin = rewritten.twins[value]
            storage[twin], end = workspace, workspace.offset + plan.layout(twin).bytes(twin.type)

        def converted(value: Value, into: bool) -> Task:
            """The task that copies a value to its twin, or from it."""
            twin = rewritten.twins[value]
            ends = [
                (value.type, self.tensor(value), value),
                (twin.type, lowering.tensor(twin), storage[twin]),
            ]
            (from_type, source, read), (to_type, result, written) = ends if into else ends[::-1]
            if self._is_dense(value):
                return _shaped_task(node, print_conversion(from_type, to_type), (read, written))
            printed = print_copy(from_type, source, result, self.isa)
            tasks = from_type.plane[0] * printed.tasks_per_image
            scratch = printed.scratch_bytes
            return Task(node, printed.source, (read, written), tasks, 1, scratch)

        inner = [
            replace(t, node=node, pointers=tuple(storage.get(p, p) for p in t.pointers))
            for t in tasks
        ]
        copies_in = [converted(value, True) for value in rewritten.copied(node.inputs)]
        copies_out = [converted(value, False) for value in rewritten.copied(node.outputs)]
        return [replace(t, workspace_bytes=end) for t in (*copies_in, *inner, *copies_out)]

    def _is_dense(self, value: Value) -> bool:
        """Whether a value is NCHW and no part of a wider buffer."""
        alone = self.plan.annotations.within(value).buffer is value
        return self.plan.layout(value).block == 1 and alone

    def _flat(self, node: Node, op: FusedSequence) -> Task:
        outer = dict(zip(op.body.inputs, node.inputs, strict=True))
        shaped, values = print_flat(op.body)
        pointers = (_pointer(outer.get(value, value)) for value in values)
        return _shaped_task(node, shaped, (*pointers, node.output))

    def _of_any_size(
        self, node: Node, body: Graph, outer: Mapping[Value, Value], channel: int = 0
    ) -> Task:
        """The task of a region for any spatial size; see :func:`print_for_any_size`."""

        def of(value: Value) -> Value:
            return outer.get(value, value)

        lanes = self.isa.lanes
        kernel, values = print_for_any_size(body, lambda v: self.tensor(of(v)), lanes, channel)
        return _shaped_task(node, kernel, [_pointer(of(value)) for value in values])

    def _sequence(self, node: Node, op: FusedSequence) -> Sequence[Task]:
        """The tasks of a fused sequence, preceded by those that pack computed vectors."""
        outer = dict(zip(op.body.inputs, node.inputs, strict=True))
        outer |= dict(zip(op.body.outputs, node.outputs, strict=True))
        if self.any_size and not op.summed and region.why_not(op.body.nodes, ELEMENTS) is None:
            return (self._of_any_size(node, op.body, outer),)
        kernel, binding = op.kernel
        inputs = [outer.get(slot.value, slot.value) for slot in binding.inputs]
        outputs = [outer[slot.value] for slot in binding.outputs]
        printed = print_sequence(
            kernel,
            binding,
            [self.tensor(value) for value in inputs],
            [self.tensor(value) for value in outputs],
            self.isa,
        )
        vectors = [printed.vectors] if binding.vectors else []
        pointers = (*map(_pointer, (*inputs, *outputs)), *vectors)
        tasks = binding.batch * printed.tasks_per_image
        task = Task(node, printed.source, pointers, tasks, 1, printed.scratch_bytes)
        return _packing([task], outer)

    def _sums(self, node: Node, op: FusedSums) -> Sequence[Task]:
        outer = dict(zip(op.body.inputs, node.inputs, strict=True))
        sums = print_sums(op, lambda value: self.tensor(outer.get(value, value)), self.isa)
        operands = [_pointer(outer.get(value, value)) for value in sums.operands]
        return _tasks(node, sums.staged, (*operands, *node.outputs))

    def _channel_norm(self, node: Node, op: FusedNormalization) -> Sequence[Task]:
        outer = dict(zip(op.body.inputs, node.inputs, strict=True))
        source = outer[op.body.nodes[0].inputs[0]]
        staged = print_channel_norm(op, self.tensor(source), self.tensor(node.output))
        vectors = (outer.get(value, value) for value in op.vectors)
        operands = [partial(data_of, v) if isinstance(v, Constant) else v for v in vectors]
        return _tasks(node, staged, (source, *operands, node.output))

    def _contraction(self, node: Node) -> Sequence[Task]:
        """The tasks of a contraction with its prologue and epilogue, for the chosen algorithm."""
        parts = parts_of(node)
        outer = {parts.result: node.output}
        if isinstance(node.op, FusedContraction):
            outer |= dict(zip(node.op.body.inputs, node.inputs, strict=True))
        source, result = outer.get(parts.source, parts.source), node.output
        others = [outer.get(value, value) for value in parts.others]
        is_integer = is_integer_product(source.type, parts.node.inputs[1].type)
        if is_integer and why_not_in_blocks(parts, self.isa):
            printed = print_integer(parts, self.isa, self.any_size)
            return _stages(node, printed, [_pointer(v) for v in (source, *others, result)])
        batch = source.type.plane[0]
        tensors = [self.tensor(value) for value in (source, *others, result)]
        if isinstance(parts.node.op, Linear):
            batch = source.type.size // source.shape[-1]
            tensors = [_rows(value.type) for value in (source, *others, result)]
        question = question_of(
            parts,
            batch,
            tensors[0],
            tuple(tensors[1:-1]),
            tensors[-1],
            self.isa,
            self.threads,
            self.accuracy,
            self.images,
        )
        choice = self.choose(question)
        printed = print_choice(parts, choice, self.threads)
        values = [_pointer(value) for value in (source, *others, result)]
        tasks = [
            replace(task, question=question, choice=choice)
            for task in _stages(node, printed, values)
        ]
        return _packing(tasks, outer)

    def _concat(self, node: Node, op: Concat) -> Sequence[Task]:
        """The tasks of a concatenation: copies of operands that were not written in place."""
        axis = op.axis % node.output.type.rank
        copied = self.plan.annotations.copied(node)
        return [self._concat_copy(node, value, axis, offset) for value, offset in copied]

    def _concat_copy(self, node: Node, value: Value, axis: int, offset: int) -> Task:
        out = node.output
        if self.plan.layout(out).block == 1:
            run = _copied_run(value.type, out.type, axis, offset)
            return _shaped_task(node, run, (_pointer(value), out))
        return self._copy(node, value, out, offset)

    def _copy(self, node: Node, value: Value, out: Value, channel: int = 0) -> Task:
        """The task that copies a value to another layout, from ``channel`` of ``out`` on."""
        tensors = self.tensor(value), self.tensor(out)
        if self.any_size and value.dtype in ELEMENTS:
            if is_reorder(*tensors, self.isa.lanes, channel):
                moved = print_reorder(value.type, *tensors, self.isa.lanes, channel)
                return _shaped_task(node, moved, (_pointer(value), out))
            body = copied(value.type)
            outer = {body.inputs[0]: value, body.outputs[0]: out}
            return self._of_any_size(node, body, outer, channel)
        printed = print_copy(value.type, *tensors, self.isa, channel)
        tasks = value.type.plane[0] * printed.tasks_per_image
        pointers = (_pointer(value), out)
        return Task(node, printed.source, pointers, tasks, 1, printed.scratch_bytes)


def _packing(tasks: Sequence[Task], outer: Mapping[Value, Value]) -> Sequence[Task]:
    """The tasks of a node, preceded by those that pack weights and vectors that are no constants.

    Packed operands are in workspace, after what the tasks use of it.  ``outer`` maps the inputs of
    a region's body to the region's operands.
    """
    end = max(task.workspace_bytes for task in tasks)
    packing_tasks: list[Task] = []
    packed_at: dict[Pointer, Workspace] = {}
    for pointer in dict.fromkeys(p for task in tasks for p in task.pointers):
        if not isinstance(pointer, (Packed, PackedVectors)):
            continue
        values = [outer.get(value, value) for value in pointer.values]
        if all(isinstance(value, Constant) for value in values):
            continue
        packed = pointer if isinstance(pointer, Packed) else pointer.picked()
        target = packed_at[pointer] = Workspace(-(-end // ALIGNMENT) * ALIGNMENT)
        end = target.offset + ITEMSIZE["float32"] * packed.size
        pointers = (target, *map(_array, packed.numbers), *map(_pointer, values))
        source = packed.kernel or packed.function
        packing_tasks.append(Task(tasks[0].node, source, pointers, packed.tasks, packed.grain))
    if not packing_tasks:
        return tasks
    return [
        replace(
            task, pointers=tuple(packed_at.get(p, p) for p in task.pointers), workspace_bytes=end
        )
        for task in (*packing_tasks, *tasks)
    ]


def _array(array: np.ndarray) -> Pointer:
    return lambda: array


def _staged(node: Node, isa: Isa) -> Staged | None:
    """The kernels of softmax, reductions, normalizations and float32 matrix products, whose values
    are NCHW; None for other nodes."""
    op, types = node.op, [value.type for value in node.inputs]
    if isinstance(op, (Softmax, LogSoftmax)):
        return print_softmax(op, types[0])
    if isinstance(op, Reduce):
        return print_reduce(op, types[0])
    if isinstance(op, ArgMax):
        return print_argmax(op, types[0])
    if isinstance(op, (LayerNorm, GroupNorm)):
        return print_layer_norm(op, types[0], len(types))
    if isinstance(op, MatMul) and node.output.dtype == "float32":
        return print_matmul(types[0], types[1], node.output.type, isa)
    return None


def _tasks(node: Node, staged: Staged, given: Sequence[Pointer] = ()) -> list[Task]:
    """The tasks of stages for the pointers ``given``: by default the operands and the output."""
    return _stages(node, staged, given or (*map(_pointer, node.inputs), node.output))


def _stages(
    node: Node, staged: Staged | PrintedContraction, values: Sequence[Pointer]
) -> list[Task]:
    """The tasks of stages, whose pointers that are numbers refer to ``values``."""
    return [
        Task(
            node,
            stage.source,
            tuple(values[p] if isinstance(p, int) else p for p in stage.pointers),
            stage.tasks,
            stage.grain,
            stage.scratch_bytes,
            staged.workspace_bytes,
        )
        for stage in staged.stages
    ]


def _shaped_task(node: Node, shaped: Shaped, given: Sequence[Pointer] = ()) -> Task:
    """The task of a kernel whose sizes are an operand, for the pointers ``given``: by default the
    operands, the kernel's tables, and the output."""
    given = given or (*map(_pointer, node.inputs), *map(_array, shaped.tables), node.output)
    pointers, scratch = (*given, lambda: shaped.sizes), shaped.scratch_bytes
    return Task(node, shaped.source, pointers, shaped.tasks, shaped.grain, scratch)


def _copied_run(part: TensorType, target: TensorType, axis: int, first: int) -> Shaped:
    """The kernel that copies a dense value into another one, from ``first`` of an axis on."""
    return shaped(
        move.lower_copy(Pitched.dense(part), Pitched.dense(target), axis, first, SCHEDULE)
    )


def _shaped(node: Node) -> Shaped:
    """The kernel of a node over dense values, whose sizes are an operand."""
    op, types = node.op, [value.type for value in node.inputs]
    operands = [Pitched.dense(value.type) for value in (*node.inputs, *node.outputs)]
    if (kernel := lower(op, operands, SCHEDULE)) is not None:
        return shaped(kernel)
    if isinstance(op, Elementwise):
        return print_broadcast(node)
    assert isinstance(op, MatMul), op
    return print_matmul_of_integers(types[0], types[1], node.output.type)


def _rows(type: TensorType) -> Tensor:
    """A value as rows of features, as a linear layer has it: each row is an image of one pixel."""
    return Tensor(type.shape[-1], 1, 1, 1, type.shape[-1], type.dtype)


def _pointer(value: Value) -> Pointer:
    if not isinstance(value, Constant):
        return value
    return partial(_bits_of, value) if value.dtype == "bfloat16" else partial(data_of, value)


def _bits_of(value: Constant) -> np.ndarray:
    """A constant's elements as integers of their bits."""
    return to_bits(data_of(value), value.dtype)
