"""Passes that compose operators: several point-wise ones into one, or one from simpler ones.

``compose_branches`` and ``compose_vectors`` merge point-wise operators into one formula;
``compose_variance`` and ``compose_gradients`` express operators for which the target has no kernel
by others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from minidnn.fusion.collapse import NO_STACKS
from minidnn.fusion.region import region_of_sum
from minidnn.graph import operators as ops
from minidnn.graph.expression import Expression, argument, linearize
from minidnn.graph.ir import Graph, Node, Rewriter, Value
from minidnn.graph.operator import Elementwise, Operator
from minidnn.graph.operators import Formula, Mul, Reduce, Sub, Variance, View
from minidnn.graph.scalar_functions import substituted
from minidnn.graph.transposed import transposed_convolution
from minidnn.passes.infrastructure import Context, Pass
from minidnn.passes.simplify import drop_dead

_EXACT_OF_BRANCHES = ("float32", "float64")
"""Dtypes whose values are computed in the dtype in which they are stored, so that storing does not
round them."""

#: Values from which one value is computed, the nearest first, and the nodes on the way from each.
_Ways = dict[Value, tuple[Node, ...]]


def compose_branches(graph: Graph, context: Context) -> Graph:
    """Point-wise operators that branch off one value and meet again become one.

    Model files spell activations out: SiLU is a sigmoid, and a product of the sigmoid with its
    operand.  The epilogue of a contraction takes a chain of operators, but no branches.

    Handles: a point-wise operator whose operands are all computed from one value by point-wise
    operators, all of one shape and computed in the dtype of their results, so that no bit changes.
    Nothing else reads the values in between.
    Refuses: vectors over channels; half precision, in which values in between are rounded;
    everything under strategies that fuse no stacks.
    """
    if context.strategy in NO_STACKS:
        return graph
    ways: dict[Value, _Ways] = {}
    meetings: dict[Node, tuple[Value, tuple[Node, ...]]] = {}
    inside: set[Node] = set()
    for node in graph.nodes:
        if not _is_plain(node):
            continue
        meeting = _root(graph, node, ways)
        if meeting is None:
            continue
        root, between = meeting
        ways[node.output] = {root: (*between, node)}
        for earlier, nodes in ways.get(root, {}).items():
            ways[node.output][earlier] = (*nodes, *between, node)
        if len(node.inputs) > 1 and between and context.allow(f"{node.name} takes its branches"):
            meetings[node] = root, between
            inside.update(between)
    if not meetings:
        return graph
    return _composed_branch(graph, meetings, inside)


def _is_plain(node: Node) -> bool:
    """Whether a node is element-wise on operands of its result's type, and storing its result does
    not round it."""
    if not isinstance(node.op, Elementwise) or node.op.channel_count:
        return False
    exact = node.output.dtype in _EXACT_OF_BRANCHES
    return exact and all(value.type == node.output.type for value in node.inputs)


def _root(
    graph: Graph, node: Node, ways: Mapping[Value, _Ways]
) -> tuple[Value, tuple[Node, ...]] | None:
    """The nearest value from which all operands of a node are computed, and the nodes in between in
    the graph's order; None if there is none, or if a value in between is read elsewhere."""
    ways_of_operands = [{value: (), **ways.get(value, {})} for value in dict.fromkeys(node.inputs)]
    for root in ways_of_operands[-1]:
        if any(root not in others for others in ways_of_operands):
            continue
        between = {inner for others in ways_of_operands for inner in others[root]}
        if all(_reads_only(graph, inner, between | {node}) for inner in between):
            return root, tuple(sorted(between, key=graph.position.__getitem__))
    return None


def _reads_only(graph: Graph, inner: Node, nodes: set[Node]) -> bool:
    """Whether no other nodes than these read a node's result."""
    return inner.output not in graph.results and nodes.issuperset(graph.readers[inner.output])


def _composed_branch(
    graph: Graph, meetings: Mapping[Node, tuple[Value, tuple[Node, ...]]], inside: set[Node]
) -> Graph:
    """The graph with each meeting point and the nodes ``inside`` its branches as one formula."""
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        if node in inside:
            continue
        if node not in meetings:
            rewriter.keep(node)
            continue
        root, between = meetings[node]
        known: dict[Value, Expression] = {root: argument(0)}
        for inner in (*between, node):
            assert isinstance(inner.op, Elementwise)
            given = {i: known[value] for i, value in enumerate(inner.inputs)}
            known[inner.output] = substituted(inner.op.expression(), given)
        op = Formula(known[node.output], title="+".join(n.op.name for n in (*between, node)))
        new = rewriter.add(op, [rewriter.value(root)], node.name, node.source)
        rewriter.replace(node.output, new.output)
    return rewriter.finish()


COMPOSE_BRANCHES = Pass("compose_branches", compose_branches, requires=("simplify",))


MOST_OPERANDS = 16
"""Operands of a composed formula: more pointers make a launch slow, and a formula with more
operands reads more than it saves."""

_EXACT = ("float32", "float64")
"""Dtypes in which vectors are composed: storing does not round values that are computed in them."""

_Composed = tuple[Expression, Sequence[Value]]


def compose_vectors(graph: Graph, context: Context) -> Graph:
    """Point-wise operators on scalars and vectors merge with the producers that they alone read.

    Training computes much with vectors over channels and with scalars: running statistics, and the
    coefficients of normalizations' gradients.  Each of these operators takes little more time than
    its kernel launch.

    Handles: operators on values of rank 0 and 1 whose only reader is such an operator, both
    computed in the dtype of the value between them, so that no bit changes.
    Refuses: other ranks, of which ``depth_first`` makes sequences; half precision, in which the
    value in between is rounded; everything under strategies that fuse no stacks.
    """
    if context.strategy in NO_STACKS:
        return graph
    rewriter = Rewriter(graph)
    #: For values of the new graph, the expression that computes each, and its operands.
    known: dict[Value, _Composed] = {}
    for node in graph.nodes:
        if not _is_small(node):
            rewriter.keep(node)
            continue
        body, operands = _composed_vector(graph, node, rewriter, known)
        if list(operands) == [rewriter.value(v) for v in node.inputs] or not context.allow(
            f"{node.name} takes what it alone reads"
        ):
            rewriter.keep(node)
        else:
            dtype = node.output.dtype
            op = Formula(body, len(operands), 0, node.op.name, dtype, _computed_in(node))
            new = rewriter.add(op, operands, node.name, node.source)
            rewriter.replace(node.output, new.output)
        if _computed_in(node) == node.output.dtype:
            known[rewriter.value(node.output)] = body, operands
    rewritten = rewriter.finish()
    return graph if rewritten is graph else drop_dead(rewritten, context)


def _is_small(node: Node) -> bool:
    if not isinstance(node.op, Elementwise) or node.op.channel_count:
        return False
    return node.output.type.rank < 2 and _computed_in(node) in _EXACT


def _computed_in(node: Node) -> str | None:
    assert isinstance(node.op, Elementwise)
    return node.op.computed_in([value.dtype for value in node.inputs])


def _composed_vector(
    graph: Graph, node: Node, rewriter: Rewriter, known: dict[Value, _Composed]
) -> _Composed:
    """A node's expression with the expressions of the operands that it alone reads substituted, and
    the operands of the result."""
    operands: dict[Value, None] = {}
    parts: list[Expression | None] = []
    inputs = [rewriter.value(value) for value in node.inputs]
    for old, value in zip(node.inputs, inputs, strict=True):
        before = known.get(value)
        is_only_reader = before is not None and graph.only_reader(old) is node
        if before is None or not is_only_reader or value.dtype != _computed_in(node):
            parts.append(None)
            operands[value] = None
            continue
        operands.update(dict.fromkeys(before[1]))
        parts.append(before[0])
    assert isinstance(node.op, Elementwise)
    if len(operands) > MOST_OPERANDS or all(part is None for part in parts):
        return node.op.expression(), inputs
    arguments_of = {value: argument(i) for i, value in enumerate(operands)}
    substitutes = []
    for value, part in zip(inputs, parts, strict=True):
        inner = known[value][1] if part is not None else ()
        substitutes.append(
            arguments_of[value] if part is None else _with(part, [arguments_of[v] for v in inner])
        )
    return _with(node.op.expression(), substitutes), list(operands)


def _with(expression: Expression, arguments: Sequence[Expression]) -> Expression:
    """An expression with other expressions substituted for its arguments."""
    values: list[Expression] = []
    for line in linearize(expression):
        operands = tuple(values[i] for i in line.operands)
        if line.op == "argument":
            values.append(arguments[int(line.value or 0)])
        else:
            values.append(Expression(line.op, operands, line.value))
    return values[-1]


COMPOSE_VECTORS = Pass("compose_vectors", compose_vectors, requires=("simplify",))


def compose_variance(graph: Graph, context: Context) -> Graph:
    """Variances are composed from other operators.

    Handles: variances that the target does not compute in a sweep with other sums: they become the
    mean of the squared differences from the mean.
    Refuses: nothing.
    """
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        reason = None
        if isinstance(node.op, Variance):
            reason = context.target.refuse_fusion(region_of_sum(node))
        if reason is None or not context.allow(f"compose {node.name}: {reason}"):
            rewriter.keep(node)
        else:
            rewriter.replace(node.output, _composed(rewriter, node))
    return rewriter.finish()


def _composed(rewriter: Rewriter, node: Node) -> Value:
    """Adds the nodes of a variance; returns its result."""

    def apply(op: Operator, *operands: Value) -> Value:
        name = rewriter.fresh(f"{node.name}.{op.name.lower()}")
        return rewriter.add(op, operands, name, node.source).output

    assert isinstance(node.op, Variance)
    x, mean = (rewriter.value(value) for value in node.inputs)
    ones = tuple(1 for _ in x.shape[2:])
    # A tensor in half precision has a mean in float32.
    subtract: Operator = Sub()
    if x.dtype != mean.dtype:
        subtract = Formula(argument(0) - argument(1), 2, title="Sub", compute=mean.dtype)
    difference = apply(subtract, x, apply(View((1, x.shape[1], *ones)), mean))
    axes = (0, *range(2, x.type.rank))
    return apply(Reduce("mean", axes, dtype=node.op.dtype), apply(Mul(), difference, difference))


COMPOSE_VARIANCE = Pass("compose_variance", compose_variance)


Apply = Callable[..., Value]
_GRADIENTS = (ops.Conv2dInputGradient, ops.Conv2dWeightGradient)


def compose_gradients(graph: Graph, context: Context) -> Graph:
    """Gradients of convolutions are composed from convolutions.

    Handles: both gradients, where the target has no kernel of its own for them.  The input gradient
    is a transposed convolution.  The weight gradient is a convolution in which batch and channels
    are swapped, and stride and dilation as well: tap ``k`` of the weight multiplies the input at
    ``y * stride + k * dilation`` for every output ``y``.
    Refuses: nothing.
    """
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        reason = None
        if isinstance(node.op, _GRADIENTS):
            reason = context.target.refuse_convolution_gradient(node)
        if reason is None or not context.allow(f"compose {node.name}: {reason}"):
            rewriter.keep(node)
            continue
        operands = [rewriter.value(value) for value in node.inputs]
        composed = (
            _input_gradient if isinstance(node.op, ops.Conv2dInputGradient) else _weight_gradient
        )
        rewriter.replace(node.output, composed(node, _adder(rewriter, node), *operands))
    return rewriter.finish()


def _adder(rewriter: Rewriter, node: Node) -> Apply:
    """A function that adds an operator on operands to the new graph, named after a node."""

    def apply(op: Operator, *operands: Value) -> Value:
        name = rewriter.fresh(f"{node.name}.{op.name.lower()}")
        return rewriter.add(op, operands, name, node.source).output

    return apply


def _input_gradient(node: Node, apply: Apply, gradient: Value, weight: Value) -> Value:
    """Adds an input gradient as a transposed convolution; returns its result."""
    op = node.op
    assert isinstance(op, ops.Conv2dInputGradient)
    convolution = op.convolution
    axes = convolution.axes((weight.shape[2], weight.shape[3]))
    cut = []
    for axis, size, outputs in zip(axes, op.size, gradient.shape[2:], strict=True):
        total = (outputs - 1) * axis.stride + axis.reach
        cut.append((axis.padding[0], total - size - axis.padding[0]))
    return transposed_convolution(
        gradient,
        weight,
        stride=convolution.stride,
        cut=tuple(cut),
        dilation=convolution.dilation,
        groups=convolution.groups,
        apply=apply,
    )


def _weight_gradient(node: Node, apply: Apply, x: Value, gradient: Value) -> Value:
    """Adds a weight gradient as a convolution; returns its result."""
    op = node.op
    assert isinstance(op, ops.Conv2dWeightGradient)
    convolution, groups = op.convolution, op.convolution.groups
    batch, channels, *size = x.shape
    grouped = apply(ops.View((batch, groups, channels // groups, *size)), x)
    images = apply(ops.Transpose((2, 1, 0, 3, 4)), grouped)
    images = apply(ops.View((channels // groups, groups * batch, *size)), images)
    taps = apply(ops.Transpose((1, 0, 2, 3)), gradient)
    convolve = ops.Conv2d(
        convolution.dilation, convolution.padding, convolution.stride, convolution.groups
    )
    result = apply(convolve, images, taps)
    shape = (channels // groups, gradient.shape[1], *op.kernel)
    if result.shape != shape:  # the stride skips the end of the input
        result = apply(ops.Slice((0, 0, 0, 0), shape, (1, 1, 1, 1)), result)
    return apply(ops.Transpose((1, 0, 2, 3)), result)


COMPOSE_GRADIENTS = Pass("compose_gradients", compose_gradients)
