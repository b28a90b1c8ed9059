"""depth_first: stacks are collapsed into sequences, each of which becomes one kernel.

Handles: every stack that ``fusion.stacks`` finds; each is collapsed under the context's strategy.
Under the strategy "model" the pass also separates max windows into a pass over columns and one over
rows, which gives the same bits, where that is predicted to be faster.  Other element-wise and
window nodes become sequences of one.
Refuses: nodes for which ``fusion.stacks`` gives a reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise

from minidnn.fusion.collapse import NO_STACKS, ScheduledSequence, cheapest, collapse
from minidnn.fusion.operations import Stack, lower, shares_work
from minidnn.fusion.region import FusedSequence
from minidnn.fusion.sequence import Schedule
from minidnn.fusion.sequence import Sequence as Part
from minidnn.fusion.stacks import Groups, boundary, find_stacks, why_not_fusable
from minidnn.fusion.target import Proposal, Target
from minidnn.graph.ir import Graph, Node, Rewriter
from minidnn.graph.operators import Concat, MaxPool2d
from minidnn.passes.fuse import fuse
from minidnn.passes.infrastructure import Context, Pass


def depth_first(graph: Graph, context: Context) -> Graph:
    """See the module."""
    if context.strategy == "model":
        graph = _separate_windows(graph, context)
    return fuse(graph, partial(_sequences, context), context)


def _sequences(context: Context, groups: Groups, target: Target) -> Iterator[Proposal]:
    """Proposes the sequences of each stack."""
    for number, nodes in enumerate(_stacks(groups.graph, context), 1):
        _, outputs = boundary(groups.graph, nodes)
        lowered = lower(nodes, outputs)
        choices = collapse(lowered, target.device, context.strategy)
        _note_cuts(choices, lowered, context)
        stack = 0 if context.strategy in NO_STACKS else number
        for part, choice in enumerate(choices, 1):
            computed = {operation.output for operation in choice.sequence.operations}
            own = [node for node in nodes if node.output in computed]
            make = partial(_region, choice.schedule, stack, part, len(choices))
            rewrite = f"compute {', '.join(node.name for node in own)} patch by patch"
            yield Proposal(own, make, rewrite, own[-1], "computed by itself")


def _stacks(graph: Graph, context: Context) -> list[list[Node]]:
    """The stacks to collapse; under strategies without stacks, every fusable node by itself."""
    if context.strategy not in NO_STACKS:
        return find_stacks(graph)
    return [
        [node]
        for node in graph.nodes
        if why_not_fusable(node) is None and not isinstance(node.op, Concat)
    ]


def _region(schedule: Schedule, stack: int, part: int, parts: int, body: Graph) -> FusedSequence:
    return FusedSequence(body, schedule, stack, part, parts)


def _note_cuts(choices: Sequence[ScheduledSequence], stack: Stack, context: Context) -> None:
    """Notes why consecutive sequences of a stack are not one."""
    first = 0
    for before, after in pairwise(choices):
        begin = first + len(before.sequence.steps)
        last = begin + len(after.sequence.steps) - 1
        merged = cheapest(Part.of(stack, first, last), context.target.device)
        separate = before.price.seconds + after.price.seconds
        if merged is None:
            reason = "no patch of both fits the device"
        elif context.strategy == "model":
            together = merged.price.seconds
            reason = f"{separate * 1e6:.1f} us apart, {together * 1e6:.1f} us together"
        else:
            reason = f"the strategy is {context.strategy!r}"
        ends, begins = (c.sequence.operations[i].output for c, i in ((before, -1), (after, 0)))
        context.notes[begins.name] = f"cut after {ends.name}: {reason}"
        first = begin


def _is_worth_separating(node: Node, context: Context) -> bool:
    """Whether a node is a separable max window, and the device would not share work between its
    neighbouring outputs anyway."""
    if not isinstance(node.op, MaxPool2d) or not node.op.window().separable:
        return False
    return not (context.target.device.shares and shares_work(node.op.window()))


def _separate_windows(graph: Graph, context: Context) -> Graph:
    """Separates the max windows of the stacks that are predicted to be faster for it."""
    if not any(_is_worth_separating(node, context) for node in graph.nodes):
        return graph
    chosen: set[Node] = set()
    for nodes in find_stacks(graph):
        windows = [node for node in nodes if _is_worth_separating(node, context)]
        if windows and _seconds(*_apart(graph, nodes), context) < _seconds(graph, nodes, context):
            chosen.update(windows)
    if not chosen:
        return graph
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        if node in chosen and context.allow(f"separate {node.name} into columns and rows"):
            _separate(rewriter, node)
        else:
            rewriter.keep(node)
    return rewriter.finish()


def _separate(rewriter: Rewriter, node: Node) -> None:
    """Adds a max window as two: along axis 1 of the window, then along axis 0."""
    op = node.op
    assert isinstance(op, MaxPool2d)
    source = rewriter.value(node.inputs[0])
    name = rewriter.fresh(f"{node.name}.columns")
    across = rewriter.add(op.along(1), [source], name, node.source)
    down = rewriter.add(op.along(0), [across.output], node.name, node.source)
    rewriter.replace(node.output, down.output)


def _apart(graph: Graph, nodes: Sequence[Node]) -> tuple[Graph, list[Node]]:
    """A stack as a graph of its own with its max windows separated, and that graph's nodes."""
    inputs, outputs = boundary(graph, nodes)
    rewriter = Rewriter(Graph(inputs, outputs, nodes))
    for node in nodes:
        if isinstance(node.op, MaxPool2d) and node.op.window().separable:
            _separate(rewriter, node)
        else:
            rewriter.keep(node)
    separated = rewriter.finish()
    return separated, list(separated.nodes)


def _seconds(graph: Graph, nodes: Sequence[Node], context: Context) -> float:
    """The predicted seconds of a stack that is collapsed under the strategy "model"."""
    _, outputs = boundary(graph, nodes)
    choices = collapse(lower(nodes, outputs), context.target.device, "model")
    return sum(choice.price.seconds for choice in choices)


def no_loose_fusable_nodes(graph: Graph) -> Iterator[str]:
    """Every node that a stack could take is in a region."""
    for node in graph.nodes:
        if not isinstance(node.op, Concat) and why_not_fusable(node) is None:
            yield f"node {node.name!r} ({node.op}) is in no region"


DEPTH_FIRST = Pass(
    "depth_first",
    depth_first,
    requires=("simplify", "absorb"),
    ensures=(no_loose_fusable_nodes,),
)
