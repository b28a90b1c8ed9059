"""Reductions that the kernel of their operand computes on the way.

``fuse_plane_reductions`` moves sums over planes into the sequence that computes the planes;
``fuse_epilogue_reductions`` makes sums an epilogue reduction of a contraction, or of a
convolution's input gradient; ``fuse_producers`` makes point-wise nodes a prologue of such a
gradient. All three save reading a tensor again that was just written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from minidnn.fusion.collapse import NO_STACKS, UNFUSED
from minidnn.fusion.region import FusedContraction, FusedGradient, FusedSequence, FusedSums
from minidnn.fusion.sequence import Schedule
from minidnn.fusion.stacks import Groups, why_not_fusable
from minidnn.fusion.target import Proposal, Target
from minidnn.graph.expression import argument
from minidnn.graph.ir import Constant, Graph, Node, Rewriter, Value, fresh
from minidnn.graph.operator import Contraction, Elementwise, Operator
from minidnn.graph.operators import Add, Conv2dInputGradient, Formula, Reduce, Variance, View
from minidnn.passes.fuse import flat, fusion
from minidnn.passes.infrastructure import Context, Pass

_COPY = Formula(argument(0), title="Copy")


def fuse_plane_reductions(graph: Graph, context: Context) -> Graph:
    """Planes are reduced in the sequence that computes them.

    In training these are the sums for the gradients of scales and shifts: their operands, such as
    the inputs of normalizations, then need not be stored for them.

    Handles: sweeps of sums over tensors of which a sequence computes the last one, if all others
    are computed before it.  The sequence computes the sweep's point-wise operators and reduces each
    plane; the rest of the sweep reduces these (N, C) numbers over the batch.  Results of the
    sequence that nothing else reads are no longer stored.  A variance is the variance of the
    planes' means plus the mean of the planes' variances.
    Refuses: means without variances, and variances around means that are no result; sweeps that
    store something; values in half precision; whatever the target refuses, and everything under
    strategies that fuse no stacks.
    """
    if context.strategy in NO_STACKS:
        return graph
    chosen: dict[Node, _MergedSequence] = {}
    for sweep in graph.nodes:
        if not isinstance(sweep.op, FusedSums):
            continue
        sequence = _sequence_for(graph, sweep, sweep.op)
        if sequence is None:
            continue
        earlier = chosen[sequence].sweeps if sequence in chosen else ()
        merged = _MergedSequence(graph, sequence, (*earlier, sweep))
        if context.target.refuse_fusion(merged.region) is not None:
            continue
        if not context.allow(f"add up {sweep.name} in {sequence.name}"):
            break
        chosen[sequence] = merged
    return _rewritten(graph, chosen) if chosen else graph


def _sequence_for(graph: Graph, sweep: Node, op: FusedSums) -> Node | None:
    """The sequence that can compute a sweep, or None: the last node before the sweep that computes
    one of its tensors."""
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
    producers = {v.producer for v in sweep.inputs if v.shape == op.shape}
    in_graph = [node for node in producers if node in graph.position]
    last = max(in_graph, key=graph.position.__getitem__, default=None)
    if last is None or not isinstance(last.op, FusedSequence):
        return None
    position = graph.position[last]
    for value in sweep.inputs:
        producer = value.producer
        if (
            producer in graph.position
            and producer is not last
            and graph.position[producer] > position
        ):
            return None
    return last


def _is_added_up(node: Node, op: FusedSums) -> bool:
    """Whether a reduction can be split into planes and batch: it is a sum, a variance around a
    result, or the mean of such a variance."""
    if isinstance(node.op, Variance):
        return node.inputs[1] in op.body.outputs
    assert isinstance(node.op, Reduce)
    variances = (each for each in op.body.nodes if isinstance(each.op, Variance))
    return node.op.how == "sum" or any(each.inputs[1] is node.output for each in variances)


class _MergedSequence:
    """A sequence merged with sweeps: the new region, its operands, and which results it has.

    Attributes:
        sweeps: the sweeps, in the order of the graph.
        operands: the values of the graph that the region reads.
        kept: the sequence's results that are still stored; they are the region's first results.
        region: the sequence, whose other results are reduced planes, sweep by sweep.
    """

    def __init__(self, graph: Graph, maker: Node, sweeps: Sequence[Node]) -> None:
        assert isinstance(maker.op, FusedSequence)
        self.sweeps = tuple(sweeps)
        body = maker.op.body
        self._nodes = list(body.nodes)
        self._names = {node.name for node in body.nodes}
        self._known = {(node.op, node.inputs): node.output for node in body.nodes}
        #: Values of the graph, and the values of the body that stand for them.
        self._inside = dict(zip(maker.inputs, body.inputs, strict=True))
        self._inside |= dict(zip(maker.outputs, body.outputs, strict=True))
        self.operands = list(maker.inputs)
        read_elsewhere = set(graph.results)
        for value in maker.outputs:
            if any(reader not in sweeps for reader in graph.readers[value]):
                read_elsewhere.add(value)
        self.kept = [value for value in maker.outputs if value in read_elsewhere]
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
        """The body's values that a sweep's nodes reduce, one for each node: no two nodes share one,
        and none is another result."""
        assert isinstance(sweep.op, FusedSums)
        inner = sweep.op.body
        for value in sweep.inputs:
            if value not in self._inside:
                self._inside[value] = Value(value.type, value.name)
                self.operands.append(value)
        values = {
            value: self._inside[outer]
            for value, outer in zip(inner.inputs, sweep.inputs, strict=True)
        }
        planes: dict[Node, Value] = {}
        for node in inner.nodes:
            if not isinstance(node.op, (Reduce, Variance)):
                values[node.output] = self._computed(node, [_of(values, v) for v in node.inputs])
        for node in sweep.op.reductions.values():
            plane = _of(values, node.inputs[0])
            if plane in outputs or plane in planes.values() or plane.producer not in self._nodes:
                plane = self._add(Node(_COPY, [plane], fresh(node.name, self._names), node.source))
            planes[node] = plane
        return planes

    def _computed(self, node: Node, inputs: list[Value]) -> Value:
        """The result of a sweep's point-wise node; the sequence's own node is used if it has the
        same."""
        known = self._known.get((node.op, tuple(inputs)))
        if known is not None:
            return known
        return self._add(Node(node.op, inputs, fresh(node.name, self._names), node.source))

    def _add(self, node: Node) -> Value:
        self._nodes.append(node)
        self._known[node.op, node.inputs] = node.output
        return node.output


def _of(here: dict[Value, Value], value: Value) -> Value:
    return value if isinstance(value, Constant) else here[value]


def _rewritten(graph: Graph, chosen: dict[Node, _MergedSequence]) -> Graph:
    """The graph with merged sequences, and the rest of each sweep."""
    rewriter = Rewriter(graph)
    sums: dict[Node, list[Value]] = {}
    for node in graph.nodes:
        if node in chosen:
            merged = chosen[node]
            operands = [rewriter.value(value) for value in merged.operands]
            results = list(rewriter.add(merged.region, operands, node.name, node.source).outputs)
            for old in merged.kept:
                rewriter.replace(old, results.pop(0))
            for sweep in merged.sweeps:
                sums[sweep] = [results.pop(0) for _ in sweep.outputs]
        elif node in sums:
            _add_over_batch(rewriter, node, sums[node])
        else:
            rewriter.keep(node)
    return rewriter.finish()


def _add_over_batch(rewriter: Rewriter, sweep: Node, numbers: Sequence[Value]) -> None:
    """Adds the rest of a sweep: reduces the numbers that a sequence has of each plane, over the
    batch.

    ``numbers``: for each reduction of the sweep, in order, a value of shape (N, C, 1, 1).
    """
    plane_numbers = []
    for value in numbers:
        name = rewriter.fresh(f"{sweep.name}.planes")
        plane_numbers.append(
            rewriter.add(View(value.shape[:2]), [value], name, sweep.source).output
        )
    operands_inside = [Value(value.type, value.name) for value in plane_numbers]
    assert isinstance(sweep.op, FusedSums)
    reductions = list(sweep.op.reductions.values())
    _, _, *plane = sweep.op.shape
    nodes: list[Node] = []

    def add(op: Operator, *operands: Value) -> Value:
        nodes.append(Node(op, operands, f"{sweep.name}.{len(nodes)}", sweep.source))
        return nodes[-1].output

    sums, means = dict(zip(reductions, operands_inside, strict=True)), dict[Value, Value]()
    over_batch, mean_of_variances = dict[Node, Value](), dict[Node, Value]()
    for node, value in sums.items():
        if isinstance(node.op, Reduce) and node.op.how == "mean":
            mean = Formula(argument(0) * (1.0 / prod(plane)), title="PlaneMean")
            means[node.output] = add(mean, value)
            over_batch[node] = add(Reduce("mean", (0,)), means[node.output])
        elif isinstance(node.op, Reduce):
            over_batch[node] = add(Reduce("sum", (0,)), value)
    for node, value in sums.items():
        if isinstance(node.op, Variance):
            around = node.inputs[1]
            assert around.producer is not None
            over_batch[node] = add(node.op, means[around], over_batch[around.producer])
            mean_of_variances[node] = add(Reduce("mean", (0,)), value)
    outputs = [*(over_batch[node] for node in reductions), *mean_of_variances.values()]
    body = Graph(operands_inside, outputs, nodes, sweep.name)
    region = rewriter.add(FusedSums(body), plane_numbers, sweep.name, sweep.source)
    new = dict(zip(reductions, region.outputs, strict=False))
    for node, value in zip(mean_of_variances, region.outputs[len(reductions) :], strict=True):
        name = rewriter.fresh(f"{sweep.name}.variance")
        new[node] = rewriter.add(Add(), [new[node], value], name, sweep.source).output
    for old, node in zip(sweep.outputs, reductions, strict=True):
        rewriter.replace(old, new[node])


FUSE_PLANE_REDUCTIONS = Pass(
    "fuse_plane_reductions", fuse_plane_reductions, requires=("sum_together", "depth_first")
)


def fuse_producers(groups: Groups, target: Target) -> Iterator[Proposal]:
    """The producer of the gradient that a convolution's input gradient reads becomes its prologue.

    Where batch normalization follows a convolution, the gradient of the convolution's output is
    computed point by point from another gradient and the output itself.  The input gradient and the
    weight gradient both read it.  If the kernel of the input gradient computes it, and stores it
    for the weight gradient, it is read once less.  The backend may still choose a kernel without a
    prologue, which then runs after a kernel of the sequence.

    Handles: gradients of convolutions for their inputs, with an epilogue reduction or without, and
    sequences of point-wise nodes whose only result is read by them and by other nodes.
    Refuses: whatever the target refuses (noted with its reason); everything under the strategies
    "layers" and "cudnn", which fuse nothing.
    """
    for node in groups.graph.nodes:
        gradient = _gradient(node)
        sequence = None if gradient is None else _prologue_of(groups.graph, node, gradient)
        if sequence is not None:
            rewrite, apart = f"{node.name} computes {sequence.name}", f"not computed by {node.name}"
            yield Proposal([sequence, node], _flat_gradient, rewrite, sequence, apart)


def _flat_gradient(body: Graph) -> FusedGradient:
    return FusedGradient(flat(body))


def _flat_contraction(body: Graph) -> FusedContraction:
    return FusedContraction(flat(body))


def _gradient(node: Node) -> Node | None:
    """The node that computes a convolution's input gradient: this node, or the one in its region;
    None if there is none."""
    if isinstance(node.op, FusedGradient):
        return node.op.core
    return node if isinstance(node.op, Conv2dInputGradient) else None


def _prologue_of(graph: Graph, node: Node, gradient: Node) -> Node | None:
    """The sequence that computes the gradient that a node reads, if it can be its prologue."""
    read = gradient.inputs[0]
    if isinstance(node.op, FusedGradient):
        read = node.inputs[node.op.body.inputs.index(read)]
    sequence = read.producer
    if sequence is None or not isinstance(sequence.op, FusedSequence) or sequence.op.summed:
        return None
    body = sequence.op.body
    is_pointwise = (
        all(isinstance(each.op, Elementwise) for each in body.nodes) and not body.constants
    )
    others = [reader for reader in graph.readers[read] if reader is not node]
    is_only_result = len(body.outputs) == 1 and read.type.rank == 4 and bool(others)
    return sequence if is_pointwise and is_only_result else None


FUSE_PRODUCERS = fusion(
    "fuse_producers", fuse_producers, ("depth_first", "fuse_epilogue_reductions"), unfused=UNFUSED
)


def fuse_epilogue_reductions(groups: Groups, target: Target) -> Iterator[Proposal]:
    """Sums over a contraction's result become an epilogue reduction of the contraction.

    In training these are the mean and the variance that batch normalization needs, and, in the
    backward pass, sums of gradients: a kernel that reduces what it writes saves a sweep that would
    read it again.  The backend may still choose a kernel without epilogue reduction, after which
    the sweep runs.

    Handles: sweeps for the mean and the variance of a contraction's result, where other nodes read
    the result, the mean and the variance; sweeps of sums that read a convolution's input gradient,
    which then is stored only if other nodes read it.
    Refuses: whatever the target refuses (noted with its reason); everything under the strategies
    "layers" and "cudnn", which fuse nothing.
    """
    for node in groups.graph.nodes:
        if not isinstance(node.op, FusedSums):
            continue
        for producer in _made_by(groups.graph, node, node.op):
            apart = f"not computed by {producer.name}"
            is_gradient = isinstance(producer.op, Conv2dInputGradient)
            make = _flat_gradient if is_gradient else _flat_contraction
            rewrite = f"{producer.name} adds up {node.name}"
            yield Proposal([producer, node], make, rewrite, node, apart)
            if groups.are_one([producer, node]):
                break


def _made_by(graph: Graph, node: Node, op: FusedSums) -> list[Node]:
    """The nodes that compute an operand of a sweep and might compute the sweep as well."""
    producers = [value.producer for value in node.inputs if value.producer is not None]
    if _is_moments(op):
        read = any(reader is not node for reader in graph.readers[node.inputs[0]])
        are_read = (
            read or node.inputs[0] in graph.results,
            *(graph.is_read(v) for v in node.outputs),
        )
        contractions = (Contraction, FusedContraction)
        return [
            producer
            for producer in producers
            if isinstance(producer.op, contractions) and all(are_read)
        ]
    only_sums = all(isinstance(each.op, Reduce) for each in op.reductions.values())
    if op.by_plane or op.plane_numbers:
        return []
    if not only_sums or op.body.constants or len(op.shape) != 4:
        return []
    if not all(graph.is_read(value) for value in node.outputs):
        return []
    return [
        producer
        for producer in producers
        if isinstance(producer.op, Conv2dInputGradient) and producer.output.shape == op.shape
    ]


def _is_moments(op: FusedSums) -> bool:
    """Whether a sweep computes just a mean and the variance around it, both in float32."""
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


FUSE_EPILOGUE_REDUCTIONS = fusion(
    "fuse_epilogue_reductions",
    fuse_epilogue_reductions,
    ("absorb", "sum_together"),
    unfused=UNFUSED,
)
