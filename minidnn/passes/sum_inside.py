"""Sums that the kernel of what they are sums of adds up: a sequence's planes, what is behind a
convolution, and what is made in front of a convolution's gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from minidnn.fusion.collapse import APART, UNFUSED
from minidnn.fusion.region import FusedContraction, FusedGradient, FusedSequence, FusedSums
from minidnn.fusion.sequence import Schedule
from minidnn.fusion.stacks import Groups, why_not_fusable
from minidnn.graph.expression import argument
from minidnn.graph.ir import Constant, Graph, Node, Rewriter, Value
from minidnn.graph.operator import Contraction, Elementwise, Operator
from minidnn.graph.operators import Add, Conv2dInputGradient, Formula, Reduce, Variance, View
from minidnn.passes.contract import MakeRegion, contract, flat
from minidnn.passes.infrastructure import Context, Pass

_COPY = Formula(argument(0), title="Copy")


def sum_inside(graph: Graph, context: Context) -> Graph:
    """Planes are added up in the sequence that makes them.

    In training these are the sums of the gradients by scales and shifts: the values that they are
    made of, as the inputs of normalizations, then need not be stored for them.

    Handles: sweeps of sums over tensors of which a sequence makes the last, as long as all others
    are there before it.  The sequence computes what the sweep computes point by point, and adds up
    each plane; what is left of the sweep adds up these numbers over the batch.  Results of the
    sequence that nothing else reads are no longer stored.  A variance is that of the planes' means
    and, added to it, the mean of the planes' variances.
    Refuses: means without variances, and variances around means that are no result; sweeps that
    store something; values in half precision; whatever the target refuses, and everything under
    strategies that leave layers apart.
    """
    if context.strategy in APART:
        return graph
    chosen: dict[Node, _Merged] = {}
    for sweep in graph.nodes:
        if not isinstance(sweep.op, FusedSums):
            continue
        maker = _maker(graph, sweep, sweep.op)
        if maker is None:
            continue
        before = chosen[maker].sweeps if maker in chosen else ()
        merged = _Merged(graph, maker, (*before, sweep))
        if context.target.refuse_summed(merged.region) is not None:
            continue
        if not context.allow(f"add up {sweep.name} in {maker.name}"):
            break
        chosen[maker] = merged
    return _rewritten(graph, chosen) if chosen else graph


def _maker(graph: Graph, sweep: Node, op: FusedSums) -> Node | None:
    """The sequence in which a sweep can be computed."""
    for node in op.body.nodes:
        if isinstance(node.op, (Reduce, Variance)):
            if node.inputs[0].dtype != "float32" or node.output.dtype != "float32":
                return None
            if not _is_added_up(node, op):
                return None
        elif why_not_fusable(node) is not None:
            return None
    if len(op.shape) != 4 or op.stored or op.by_plane or op.plane_numbers:
        return None
    makers = {v.producer for v in sweep.inputs if v.shape == op.shape}
    there = [node for node in makers if node in graph.position]
    last = max(there, key=graph.position.__getitem__, default=None)
    if last is None or not isinstance(last.op, FusedSequence):
        return None
    end = graph.position[last]
    for value in sweep.inputs:
        producer = value.producer
        if producer in graph.position and producer is not last and graph.position[producer] > end:
            return None
    return last


def _is_added_up(node: Node, op: FusedSums) -> bool:
    """Whether a sum, mean or variance is made of numbers of planes."""
    if isinstance(node.op, Variance):
        return node.inputs[1] in op.body.outputs
    assert isinstance(node.op, Reduce)
    moments = (each for each in op.body.nodes if isinstance(each.op, Variance))
    return node.op.how == "sum" or any(each.inputs[1] is node.output for each in moments)


class _Merged:
    """A sequence with sweeps: the region, its operands, and where its results are."""

    def __init__(self, graph: Graph, maker: Node, sweeps: Sequence[Node]) -> None:
        assert isinstance(maker.op, FusedSequence)
        self.sweeps = tuple(sweeps)
        body = maker.op.body
        self._nodes = list(body.nodes)
        self._names = {node.name for node in body.nodes}
        self._known = {(node.op, node.inputs): node.output for node in body.nodes}
        #: What values outside are called inside.
        self._inside = dict(zip(maker.inputs, body.inputs, strict=True))
        self._inside |= dict(zip(maker.outputs, body.outputs, strict=True))
        self.operands = list(maker.inputs)
        others = set(graph.results)
        for value in maker.outputs:
            if any(reader not in sweeps for reader in graph.readers[value]):
                others.add(value)
        #: The results that are planes, as they were.
        self.kept = [value for value in maker.outputs if value in others]
        outputs = [self._inside[value] for value in self.kept]
        first = len(outputs)
        spread: list[int] = []
        for sweep in sweeps:
            for node, plane in self._planes(sweep, outputs).items():
                if isinstance(node.op, Variance):
                    spread.append(len(outputs))
                outputs.append(plane)
        inputs = [self._inside[value] for value in self.operands]
        rows, columns = outputs[0].type.plane[2:]
        self.region = replace(
            maker.op,
            body=Graph(inputs, outputs, self._nodes, body.name),
            schedule=Schedule(rows, columns),
            summed=tuple(range(first, len(outputs))),
            spread=tuple(spread),
        )

    def _planes(self, sweep: Node, outputs: Sequence[Value]) -> dict[Node, Value]:
        """The planes of which a sweep's nodes want sums or variances, each another one."""
        assert isinstance(sweep.op, FusedSums)
        inner = sweep.op.body
        for value in sweep.inputs:
            if value not in self._inside:
                self._inside[value] = Value(value.type, value.name)
                self.operands.append(value)
        here = {
            value: self._inside[outer]
            for value, outer in zip(inner.inputs, sweep.inputs, strict=True)
        }
        found: dict[Node, Value] = {}
        for node in inner.nodes:
            if not isinstance(node.op, (Reduce, Variance)):
                here[node.output] = self._computed(node, [_of(here, v) for v in node.inputs])
        for node in sweep.op.reductions.values():
            plane = _of(here, node.inputs[0])
            if plane in outputs or plane in found.values() or plane.producer not in self._nodes:
                plane = self._add(Node(_COPY, [plane], self._fresh(node.name), node.source))
            found[node] = plane
        return found

    def _computed(self, node: Node, inputs: list[Value]) -> Value:
        """What a node of a sweep makes, which the sequence may make, too."""
        known = self._known.get((node.op, tuple(inputs)))
        if known is not None:
            return known
        return self._add(Node(node.op, inputs, self._fresh(node.name), node.source))

    def _add(self, node: Node) -> Value:
        self._nodes.append(node)
        self._known[node.op, node.inputs] = node.output
        return node.output

    def _fresh(self, name: str) -> str:
        found, count = name, 0
        while found in self._names:
            count += 1
            found = f"{name}.{count}"
        self._names.add(found)
        return found


def _of(here: dict[Value, Value], value: Value) -> Value:
    return value if isinstance(value, Constant) else here[value]


def _rewritten(graph: Graph, chosen: dict[Node, _Merged]) -> Graph:
    rewriter = Rewriter(graph)
    sums: dict[Node, list[Value]] = {}
    for node in graph.nodes:
        if node in chosen:
            merged = chosen[node]
            operands = [rewriter.value(value) for value in merged.operands]
            made = list(rewriter.add(merged.region, operands, node.name, node.source).outputs)
            for old in merged.kept:
                rewriter.replace(old, made.pop(0))
            for sweep in merged.sweeps:
                sums[sweep] = [made.pop(0) for _ in sweep.outputs]
        elif node in sums:
            _add_over_batch(rewriter, node, sums[node])
        else:
            rewriter.keep(node)
    return rewriter.finish()


def _add_over_batch(rewriter: Rewriter, sweep: Node, numbers: Sequence[Value]) -> None:
    """What is left of a sweep."""
    given = []
    for value in numbers:
        name = rewriter.fresh(f"{sweep.name}.planes")
        given.append(rewriter.add(View(value.shape[:2]), [value], name, sweep.source).output)
    inside = [Value(value.type, value.name) for value in given]
    assert isinstance(sweep.op, FusedSums)
    wanted = list(sweep.op.reductions.values())
    _, _, *plane = sweep.op.shape
    nodes: list[Node] = []

    def add(op: Operator, *operands: Value) -> Value:
        nodes.append(Node(op, operands, f"{sweep.name}.{len(nodes)}", sweep.source))
        return nodes[-1].output

    sums, means = dict(zip(wanted, inside, strict=True)), dict[Value, Value]()
    found, within = dict[Node, Value](), dict[Node, Value]()
    for node, value in sums.items():
        if isinstance(node.op, Reduce) and node.op.how == "mean":
            mean = Formula(argument(0) * (1.0 / prod(plane)), title="PlaneMean")
            means[node.output] = add(mean, value)
            found[node] = add(Reduce("mean", (0,)), means[node.output])
        elif isinstance(node.op, Reduce):
            found[node] = add(Reduce("sum", (0,)), value)
    for node, value in sums.items():
        if isinstance(node.op, Variance):
            around = node.inputs[1]
            assert around.producer is not None
            found[node] = add(node.op, means[around], found[around.producer])
            within[node] = add(Reduce("mean", (0,)), value)
    outputs = [*(found[node] for node in wanted), *within.values()]
    body = Graph(inside, outputs, nodes, sweep.name)
    made = rewriter.add(FusedSums(body), given, sweep.name, sweep.source)
    new = dict(zip(wanted, made.outputs, strict=False))
    for node, value in zip(within, made.outputs[len(wanted) :], strict=True):
        name = rewriter.fresh(f"{sweep.name}.variance")
        new[node] = rewriter.add(Add(), [new[node], value], name, sweep.source).output
    for old, node in zip(sweep.outputs, wanted, strict=True):
        rewriter.replace(old, new[node])


SUM_INSIDE = Pass("sum_inside", sum_inside, requires=("sum_together", "depth_first"))


def make_in_front(graph: Graph, context: Context) -> Graph:
    """What a gradient of a convolution reads is made by the kernel of that gradient.

    Behind batch normalization the gradient of a convolution's result is computed point by point of
    another gradient and the result itself.  Both gradients of the convolution read it.  A kernel of
    the one for the image that computes it, and stores it for the other, saves reading it again.
    Which kernel computes the gradient stays open; one that computes nothing in front follows the
    sequence's.

    Handles: gradients for images, with sums behind them or without, and sequences of point-wise
    nodes whose only result they read and others, too.
    Refuses: whatever the target refuses (noted with its reason); everything under strategies that
    leave layers apart.
    """
    if context.strategy in UNFUSED:
        return graph
    groups = Groups(graph)
    found: list[tuple[list[Node], MakeRegion]] = []
    for node in graph.nodes:
        gradient = _gradient(node)
        sequence = None if gradient is None else _made_in_front(graph, node, gradient)
        if gradient is None or sequence is None:
            continue
        reason = context.target.refuse_front(gradient, sequence)
        if reason is None and not groups.can_merge([sequence, node]):
            reason = "one of its operands depends on the sequence by another path"
        if reason is not None:
            context.notes[sequence.name] = f"not computed by {node.name}: {reason}"
            continue
        if not context.allow(f"{node.name} computes {sequence.name}"):
            break
        groups.merge([sequence, node])
        found.append(([sequence, node], _region))
    return contract(graph, found)


def _region(body: Graph) -> FusedGradient:
    return FusedGradient(flat(body))


def _gradient(node: Node) -> Node | None:
    """The gradient of a convolution for its image that a node is, or that its region has."""
    if isinstance(node.op, FusedGradient):
        return node.op.gradient
    return node if isinstance(node.op, Conv2dInputGradient) else None


def _made_in_front(graph: Graph, node: Node, gradient: Node) -> Node | None:
    """The sequence that makes what a node's gradient reads, if it can be computed with it."""
    read = gradient.inputs[0]
    if isinstance(node.op, FusedGradient):
        read = node.inputs[node.op.body.inputs.index(read)]
    sequence = read.producer
    if sequence is None or not isinstance(sequence.op, FusedSequence) or sequence.op.summed:
        return None
    body = sequence.op.body
    plain = all(isinstance(each.op, Elementwise) for each in body.nodes) and not body.constants
    others = [reader for reader in graph.readers[read] if reader is not node]
    alone = len(body.outputs) == 1 and read.type.rank == 4 and bool(others)
    return sequence if plain and alone else None


MAKE_IN_FRONT = Pass("make_in_front", make_in_front, requires=("depth_first", "sum_behind"))


def sum_behind(graph: Graph, context: Context) -> Graph:
    """What is added up of a contraction's result is computed with the contraction.

    In training these are mean and variance, which batch normalization needs, and, backwards, what
    is added up of gradients: a kernel that adds up what it writes saves a sweep that would read it
    again. Which kernel computes the contraction stays open; one that adds up nothing is followed by
    the sweep.

    Handles: sweeps for the mean and the variance of a contraction's result, of which other nodes
    read all three; sweeps of sums that read a gradient of a convolution for its image, which then
    is stored only if others read it, too.
    Refuses: whatever the target refuses (noted with its reason); everything under strategies that
    leave layers apart.
    """
    if context.strategy in UNFUSED:
        return graph
    groups = Groups(graph)
    found: list[tuple[list[Node], MakeRegion]] = []
    for node in graph.nodes:
        if not isinstance(node.op, FusedSums) or len(groups.nodes_of(node)) > 1:
            continue
        for made in _made_by(graph, node, node.op):
            reason = _refusal(groups, made, node, context)
            if reason is not None:
                context.notes[node.name] = f"not computed by {made.name}: {reason}"
                continue
            if not context.allow(f"{made.name} adds up {node.name}"):
                return contract(graph, found)
            groups.merge([made, node])
            back = isinstance(made.op, Conv2dInputGradient)
            found.append(([made, node], _summed_gradient if back else _contraction))
            break
    return contract(graph, found)


def _contraction(body: Graph) -> FusedContraction:
    return FusedContraction(flat(body))


def _summed_gradient(body: Graph) -> FusedGradient:
    return FusedGradient(flat(body))


def _refusal(groups: Groups, made: Node, node: Node, context: Context) -> str | None:
    """Why a contraction does not compute a sweep; None if it does."""
    target = context.target
    back = isinstance(made.op, Conv2dInputGradient)
    asked = target.refuse_summed_gradient(made) if back else target.refuse_statistics(made)
    if asked is not None:
        return asked
    if len(groups.nodes_of(made)) > 1:
        return "it computes another one"
    if not groups.can_merge([made, node]):
        return "one of the sweep's operands depends on it by another path"
    return None


def _made_by(graph: Graph, node: Node, op: FusedSums) -> list[Node]:
    """What makes an operand of a sweep and may compute the sweep, too."""
    makers = [value.producer for value in node.inputs if value.producer is not None]
    if _is_moments(op):
        read = any(reader is not node for reader in graph.readers[node.inputs[0]])
        wanted = (
            read or node.inputs[0] in graph.results,
            *(_is_read(graph, v) for v in node.outputs),
        )
        kinds = (Contraction, FusedContraction)
        return [made for made in makers if isinstance(made.op, kinds) and all(wanted)]
    plain = all(isinstance(each.op, Reduce) for each in op.reductions.values())
    if op.by_plane or op.plane_numbers:
        return []
    if not plain or op.body.constants or len(op.shape) != 4:
        return []
    if not all(_is_read(graph, value) for value in node.outputs):
        return []
    return [
        made
        for made in makers
        if isinstance(made.op, Conv2dInputGradient) and made.output.shape == op.shape
    ]


def _is_moments(op: FusedSums) -> bool:
    """Whether a sweep's results are a mean and the variance around it, as float32."""
    kinds = [type(node.op) for node in op.body.nodes]
    if kinds != [Reduce, Variance] or len(op.body.inputs) != 1:
        return False
    mean, variance = op.body.nodes
    assert isinstance(mean.op, Reduce)
    results = [mean.output, variance.output]
    return (
        mean.op.how == "mean"
        and list(variance.inputs) == [op.body.inputs[0], mean.output]
        and list(op.body.outputs) == results
        and all(value.dtype == "float32" for value in results)
    )


def _is_read(graph: Graph, value: Value) -> bool:
    return bool(graph.readers[value]) or value in graph.results


SUM_BEHIND = Pass("sum_behind", sum_behind, requires=("absorb", "sum_together"))
