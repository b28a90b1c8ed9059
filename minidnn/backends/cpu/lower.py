"""Lowering of a plan: each node of the optimized graph becomes tasks, which are kernel launches.

A task has a printed kernel, the pointers that it receives, and the number of its independent parts.
Pointers are values, workspace and constants here; :mod:`.execution.bind` gives them addresses.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace

from ...fusion.region import (
    FusedContraction,
    parts_of,
    region_of_window,
)
from ...graph.ir import Node, Value
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
from ...graph.types import TensorType
from ...kernels.ops import lower, move
from ...kernels.ops.pitched import Pitched
from ...memory import ALIGNMENT, Annotations
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
from .execution.bind import (
    Pointer,
    Task,
    bound_stages,
    pointer_to,
    shaped_task,
    tasks_of_stages,
    with_packing,
)
from .execution.program import HostSum
from .isa import Isa
from .one_image import one_image
from .operators.copies import copied, needs_copies, print_conversion, print_copy, widened
from .operators.kernels import (
    SCHEDULE,
    Shaped,
    print_broadcast,
    shaped,
)
from .operators.layer_norm import print_layer_norm
from .operators.matmul import (
    print_linear,
    print_matmul,
    print_matmul_of_integers,
    reads_weight_unpacked,
)
from .operators.pooling import print_adaptive
from .operators.reduce import print_argmax, print_reduce
from .operators.softmax import print_softmax
from .regions import REGION_KERNELS, LoweringContext, tasks_of_sequence
from .sequences.transpose import is_reorder, print_reorder
from .stage import Staged, Workspace
from .tensor import ELEMENTS, Tensor


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


class _Lowering(LoweringContext):
    """Lowers the nodes of a plan."""

    def node(self, node: Node) -> Sequence[Task]:
        """The tasks of a node; there are none if its result is a view."""
        op = node.op
        if self.plan.annotations.is_view(node):
            return ()
        if needs_copies(node):
            return self._widened(node)
        if (kernel := REGION_KERNELS.get(type(op))) is not None:
            return kernel.tasks(self, node, op)
        if isinstance(op, Windowed):  # alone where the passes had no fuel
            return tasks_of_sequence(self, node, region_of_window(node))
        if reads_weight_unpacked(node, self.accuracy):
            return tasks_of_stages(node, print_linear(node, self.isa))
        if isinstance(op, (FusedContraction, Contraction)):
            return self._contraction(node)
        if isinstance(op, SumOverRanks):
            assert all(map(self.is_dense, node.inputs)), node
            work = HostSum(op, tuple(value.type for value in node.inputs))
            return (Task(node, work, (*map(pointer_to, node.inputs), *node.outputs), 1),)
        if isinstance(op, Concat):
            return self._concat(node, op)
        if (staged := _staged(node, self.isa)) is not None:
            return tasks_of_stages(node, staged)
        if isinstance(op, AdaptiveAvgPool2d):
            x, y = node.inputs[0], node.output
            tensors = self.tensor(x), self.tensor(y)
            staged = print_adaptive(op, x.type, *tensors, self.isa, self.any_size)
            return tasks_of_stages(node, staged)
        if isinstance(op, (Conv2dInputGradient, Conv2dWeightGradient)):
            return tasks_of_stages(node, print_gradient(node, self.tensor, self.isa))
        if isinstance(op, Reshaping):
            return (shaped_task(node, _copied_run(node.output.type, node.output.type, 0, 0)),)
        if isinstance(op, Reorder):
            return (self._copy(node, node.inputs[0], node.output),)
        return (shaped_task(node, _shaped(node)),)

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
            if self.is_dense(value):
                return shaped_task(node, print_conversion(from_type, to_type), (read, written))
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
            return bound_stages(node, printed, [pointer_to(v) for v in (source, *others, result)])
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
        values = [pointer_to(value) for value in (source, *others, result)]
        tasks = [
            replace(task, question=question, choice=choice)
            for task in bound_stages(node, printed, values)
        ]
        return with_packing(tasks, outer)

    def _concat(self, node: Node, op: Concat) -> Sequence[Task]:
        """The tasks of a concatenation: copies of operands that were not written in place."""
        axis = op.axis % node.output.type.rank
        copied = self.plan.annotations.copied(node)
        return [self._concat_copy(node, value, axis, offset) for value, offset in copied]

    def _concat_copy(self, node: Node, value: Value, axis: int, offset: int) -> Task:
        out = node.output
        if self.plan.layout(out).block == 1:
            run = _copied_run(value.type, out.type, axis, offset)
            return shaped_task(node, run, (pointer_to(value), out))
        return self._copy(node, value, out, offset)

    def _copy(self, node: Node, value: Value, out: Value, channel: int = 0) -> Task:
        """The task that copies a value to another layout, from ``channel`` of ``out`` on."""
        tensors = self.tensor(value), self.tensor(out)
        if self.any_size and value.dtype in ELEMENTS:
            if is_reorder(*tensors, self.isa.lanes, channel):
                moved = print_reorder(value.type, *tensors, self.isa.lanes, channel)
                return shaped_task(node, moved, (pointer_to(value), out))
            body = copied(value.type)
            outer = {body.inputs[0]: value, body.outputs[0]: out}
            return self.of_any_size(node, body, outer, channel)
        printed = print_copy(value.type, *tensors, self.isa, channel)
        tasks = value.type.plane[0] * printed.tasks_per_image
        pointers = (pointer_to(value), out)
        return Task(node, printed.source, pointers, tasks, 1, printed.scratch_bytes)


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
