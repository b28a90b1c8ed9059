"""Regions: nodes of the graph that become one kernel; their bodies are the nodes that it
computes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from minidnn._cached_property import cached_property
from minidnn.fusion.interpret import interpret
from minidnn.fusion.operations import Operation, operation_of
from minidnn.fusion.plan import Binding, KernelPlan
from minidnn.fusion.planning import build_plan
from minidnn.fusion.sequence import Schedule
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Constant, Graph, Node, Value
from minidnn.graph.operator import Contraction, Elementwise, Operator
from minidnn.graph.operators import Conv2dInputGradient, LayerNorm, Reduce, Variance
from minidnn.graph.registry import register
from minidnn.graph.types import TensorType

__all__ = [
    *("CoreRegion", "FusedContraction", "FusedElements", "FusedGradient", "FusedNormalization"),
    *("FusedSequence", "FusedSums", "MakeRegion", "Parts", "Region"),
    *("constants", "is_spatial_sum", "parts_of", "region_of_sum", "region_of_window"),
    "why_not_point_by_point",
]


@dataclass(frozen=True, eq=False)
class Region(Operator):
    """Nodes that are computed together: ``body`` is what they compute.

    The region's operands are the body's inputs; constants are part of the body.
    """

    body: Graph = field(repr=False)

    kind = "region"

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        expected = tuple(value.type for value in self.body.inputs)
        given, valid = (", ".join(map(str, types)) for types in (inputs, expected))
        self.require(inputs == expected, f"operands are {given}; valid are {valid}")
        return tuple(value.type for value in self.body.outputs)

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        wide = any(array.dtype == np.float64 for array in inputs)
        return evaluate(self.body, inputs, "float64" if wide else None)

    def operations(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> int:
        return sum(
            node.op.operations(
                tuple(value.type for value in node.inputs),
                tuple(value.type for value in node.outputs),
            )
            for node in self.body.nodes
        )

    @property
    def constant_bytes(self) -> int:
        return sum(value.type.bytes for value in self.body.constants)

    @property
    def sources(self) -> tuple[str, ...]:
        """The layers that the region computes, in order."""
        return tuple(dict.fromkeys(node.source for node in self.body.nodes))


@register
@dataclass(frozen=True, eq=False)
class FusedSequence(Region):
    """A sequence of a stack, computed patch by patch as ``schedule`` says.

    For reports: ``stack`` is the number of its stack, from 1 on (0: none), and ``part`` its number
    among the ``parts`` that the stack was cut into.

    Of the body's outputs with the numbers ``summed`` the region gives not the planes, but the sum
    over each of them, (N, C, 1, 1), added up in an order of the kernel's own; or, of the numbers
    ``spread`` among them, the variance over each plane.
    """

    schedule: Schedule
    stack: int = field(default=0, repr=False)
    part: int = field(default=1, repr=False)
    parts: int = field(default=1, repr=False)
    summed: tuple[int, ...] = field(default=(), repr=False)
    spread: tuple[int, ...] = field(default=(), repr=False)

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        types = super().infer(*inputs)
        return tuple(_number(t) if i in self.summed else t for i, t in enumerate(types))

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        return self._added(super().reference(*inputs))

    def _added(self, results: Iterable[np.ndarray]) -> tuple[np.ndarray, ...]:
        """The results, with sums and variances instead of planes that are added up."""

        def added(i: int, array: np.ndarray) -> np.ndarray:
            if i in self.spread:
                return array.var((2, 3), keepdims=True)
            return array.sum((2, 3), keepdims=True) if i in self.summed else array

        return tuple(added(i, array) for i, array in enumerate(results))

    @property
    def origin(self) -> str:
        """The stack that it is, or is a part of, for reports."""
        cut = f", part {self.part} of {self.parts}" if self.parts > 1 else ""
        return f"stack {self.stack}{cut}" if self.stack else "no stack"

    @property
    def in_place(self) -> bool:
        return len(self.body.outputs) == 1 and all(node.op.in_place for node in self.body.nodes)

    @cached_property
    def kernel(self) -> tuple[KernelPlan, Binding]:
        """The kernel plan and its binding to values of the body."""
        plan, binding = build_plan(self.body, self.schedule)
        return replace(plan, summed=self.summed, spread=self.spread), binding

    def interpret(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        """Returns the outputs, computed patch by patch by the plan's interpreter."""
        plan, binding = self.kernel
        wide = any(array.dtype == np.float64 for array in inputs)
        arrays = dict(zip(self.body.inputs, inputs, strict=True))

        def array(value: object) -> np.ndarray:
            data = value.data if isinstance(value, Constant) else arrays[value]  # type: ignore[index]
            return data.astype(np.float64) if wide else data

        tensors = [array(s.value).reshape(s.value.type.plane) for s in binding.inputs]
        vectors = [array(v.value) for v in binding.vectors]
        results = interpret(plan, binding, tensors, vectors)
        return self._added(
            result.reshape(value.shape)
            for result, value in zip(results, self.body.outputs, strict=True)
        )


def _number(type: TensorType) -> TensorType:
    """The type of one element for each plane."""
    return TensorType((*type.shape[:2], 1, 1), type.dtype)


def region_of_window(node: Node) -> FusedSequence:
    """Returns the region of one window, whose patch is the whole plane."""
    operands = [Value(value.type, value.name) for value in node.inputs]
    inner = Node(node.op, operands, node.name)
    _, _, rows, columns = node.output.type.plane
    body = Graph(operands, inner.outputs, [inner], node.name)
    return FusedSequence(body, Schedule(rows, columns, stage=True))


MakeRegion = Callable[[Graph], Region]
"""Makes the region of a graph of the nodes that it shall compute."""


@dataclass(frozen=True, eq=False)
class CoreRegion(Region):
    """A region around one node, its *core*: ``body`` is the nodes of the *prologue*, which compute
    what the core reads, the core, the nodes of the *epilogue*, which compute something of its
    result, and *reductions* of that."""

    #: The operators that the core may have.
    CORES: ClassVar[tuple[type[Operator], ...]]

    @cached_property
    def _place(self) -> int:
        """The index of the core among the body's nodes."""
        return next(i for i, node in enumerate(self.body.nodes) if isinstance(node.op, self.CORES))

    @property
    def core(self) -> Node:
        return self.body.nodes[self._place]

    @property
    def prologue(self) -> Sequence[Node]:
        return self.body.nodes[: self._place]

    @cached_property
    def epilogue(self) -> Sequence[Node]:
        after = self.body.nodes[self._place + 1 :]
        return [node for node in after if not isinstance(node.op, (Reduce, Variance))]

    @cached_property
    def reductions(self) -> Sequence[Node]:
        after = self.body.nodes[self._place + 1 :]
        return [node for node in after if isinstance(node.op, (Reduce, Variance))]


@register
@dataclass(frozen=True, eq=False)
class FusedContraction(CoreRegion):
    """A contraction with the point-wise operators that it absorbed as prologue and epilogue; mean
    and variance of its result, over all axes but that of channels, may be further results."""

    CORES = (Contraction,)


@dataclass(frozen=True, eq=False)
class Parts:
    """What the kernel of a contraction computes.

    The prologue turns ``source`` into the contraction's operand 0, element by element; the epilogue
    turns the contraction's result into ``result``, whose mean and variance over all axes but that
    of channels may be results, too.  Prologue and epilogue are operations in order, over their
    chain, vectors with one element per channel, and (the epilogue) further tensors.
    """

    node: Node
    prologue: tuple[Operation, ...] = ()
    epilogue: tuple[Operation, ...] = ()
    #: Mean and variance of the result, if they are computed with it.
    statistics: tuple[Value, ...] = ()

    @property
    def source(self) -> Value:
        """The tensor that is read: the first operand of the prologue, or of the contraction."""
        return self.prologue[0].operands[0] if self.prologue else self.node.inputs[0]

    @property
    def result(self) -> Value:
        return self.epilogue[-1].output if self.epilogue else self.node.output

    @property
    def others(self) -> tuple[Value, ...]:
        """The tensors that the epilogue reads beside the contraction's result."""
        computed = {self.node.output, *(operation.output for operation in self.epilogue)}
        read = (v for operation in self.epilogue for v in operation.operands)
        return tuple(dict.fromkeys(v for v in read if v not in computed))

    @property
    def vectors(self) -> tuple[Value, ...]:
        """The vectors over channels that prologue and epilogue read, in order."""
        operations: Iterable[Operation] = (*self.prologue, *self.epilogue)
        return tuple(dict.fromkeys(v.value for o in operations for v in o.vectors))


def parts_of(node: Node) -> Parts:
    """Returns the parts of a fused contraction, or of a contraction by itself."""
    if isinstance(node.op, Contraction):
        return Parts(node)
    assert isinstance(node.op, FusedContraction)
    region = node.op
    prologue, epilogue = (
        tuple(operation_of(inner, 0) for inner in nodes)
        for nodes in (region.prologue, region.epilogue)
    )
    return Parts(region.core, prologue, epilogue, tuple(n.output for n in region.reductions))


def why_not_point_by_point(contraction: Node, node: Node) -> str | None:
    """Why a node is not computed element by element in float32 on the integer sums of a
    contraction; None if it is."""
    if not isinstance(node.op, Elementwise):
        return f"{node.op.name} is a {node.op.kind} operator"
    if node.output.shape != contraction.output.shape:
        return "it changes the shape"
    if node.op.computed_in([value.dtype for value in node.inputs]) != "float32":
        return "it does not compute in float32"
    return None


@register
@dataclass(frozen=True, eq=False)
class FusedElements(Region):
    """Element-wise operators in one launch.  Operators that read each other's results, or the same
    values, form a *member* and have one shape: each element of all of them is computed together.
    Operands have that shape, or one element."""

    @property
    def in_place(self) -> bool:
        return True

    @cached_property
    def members(self) -> tuple[tuple[Node, ...], ...]:
        """The nodes of each member, in the body's order."""
        home: dict[Value, list[Node]] = {}
        groups: list[list[Node]] = []
        for node in self.body.nodes:
            group = [node]
            near = {id(home[value]): home[value] for value in _elements(node) if value in home}
            for nodes in near.values():
                groups.remove(nodes)
                group = nodes + group
            groups.append(group)
            home |= {value: group for each in group for value in _elements(each)}
        position = self.body.position
        return tuple(tuple(sorted(nodes, key=position.__getitem__)) for nodes in groups)


def _elements(node: Node) -> list[Value]:
    """The values of a node that have an element for each one of its result."""
    return [value for value in (*node.inputs, node.output) if value.shape == node.output.shape]


@register
@dataclass(frozen=True, eq=False)
class FusedSums(Region):
    """Sums, means and variances over all axes but that of channels, of what point-wise operators
    compute from the operands, all in one sweep.  Each of them has the shape (C,), or, of sums and
    means of planes, (N, C); the other results are computed by point-wise operators and stored on
    the way. Operands are tensors, vectors over channels, or have an element for each plane."""

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape of the values that are added up."""
        return next(iter(self.reductions.values())).inputs[0].shape

    @cached_property
    def reductions(self) -> dict[int, Node]:
        """The body's sums, means and variances, by the numbers of their results."""
        producers = {node.output: node for node in self.body.nodes}
        nodes = {i: producers[value] for i, value in enumerate(self.body.outputs)}
        return {i: node for i, node in nodes.items() if isinstance(node.op, (Reduce, Variance))}

    @cached_property
    def by_plane(self) -> bool:
        """Whether each plane is added up by itself; a region does that of all its sums or none."""
        (found,) = {is_spatial_sum(node) for node in self.reductions.values()}
        return found

    @cached_property
    def plane_numbers(self) -> tuple[Value, ...]:
        """The operands with one element for each plane of several images."""
        batch, channels, *plane = self.shape
        shape = (batch, channels, *(1 for _ in plane))
        several = batch > 1 and shape != self.shape
        return tuple(v for v in self.body.inputs if several and v.shape == shape)

    @cached_property
    def stored(self) -> dict[int, Value]:
        """The results that are no reductions, by their numbers."""
        results = enumerate(self.body.outputs)
        return {i: value for i, value in results if i not in self.reductions}


@register
@dataclass(frozen=True, eq=False)
class FusedGradient(CoreRegion):
    """The gradient of a convolution for its input, with a prologue, which computes the output's
    gradient that it reads, and an epilogue of sums.

    Results are, in this order, that of the prologue, if there is one, the gradient itself, if
    others read it, and what the sums give.
    """

    CORES = (Conv2dInputGradient,)

    @cached_property
    def is_kept(self) -> bool:
        """Whether the gradient itself is a result."""
        return self.core.output in self.body.outputs

    @cached_property
    def producer(self) -> Graph | None:
        """The prologue as a graph; None if there is none."""
        nodes = self.prologue
        return self._part(nodes, [], [nodes[-1].output]) if nodes else None

    @cached_property
    def sums(self) -> FusedSums | None:
        """The region of sums, whose first operand is the gradient; None if there are none."""
        nodes = self.body.nodes[self._place + 1 :]
        outputs = self.body.outputs[bool(self.prologue) + self.is_kept :]
        return FusedSums(self._part(nodes, [self.core.output], outputs)) if nodes else None

    def _part(
        self, nodes: Sequence[Node], first: Sequence[Value], outputs: Sequence[Value]
    ) -> Graph:
        """Some nodes of the body as a graph, whose first inputs are ``first``."""
        made = {value for node in nodes for value in node.outputs}
        read = dict.fromkeys((*first, *(v for node in nodes for v in node.inputs if v not in made)))
        return Graph(list(read), list(outputs), list(nodes), self.body.name)


@register
@dataclass(frozen=True, eq=False)
class FusedNormalization(CoreRegion):
    """A layer normalization of the channels of an image, with the transposes that move channels to
    the last axis and back."""

    CORES = (LayerNorm,)

    @property
    def vectors(self) -> tuple[Value, ...]:
        """Weight and bias, values of the body, if there are any."""
        return self.core.inputs[1:]


def is_spatial_sum(node: Node) -> bool:
    """Whether a node sums or averages the planes of images."""
    op = node.op
    return isinstance(op, Reduce) and op.how in ("sum", "mean") and op.dims == (2, 3)


def region_of_sum(node: Node) -> FusedSums:
    """Returns the region of one sum."""
    operands = [Value(value.type, value.name) for value in node.inputs]
    inner = Node(node.op, operands, node.name)
    return FusedSums(Graph(operands, inner.outputs, [inner], node.name))


def constants(graph: Graph) -> Iterator[Constant]:
    """Yields the constants of a graph and of its regions; some perhaps several times."""
    for node in graph.nodes:
        yield from (value for value in node.inputs if isinstance(value, Constant))
        if isinstance(node.op, Region):
            yield from constants(node.op.body)
    yield from (value for value in graph.results if isinstance(value, Constant))
