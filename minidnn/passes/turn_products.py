"""turn_products: products of batches of matrices read and write these where they lie.

Attention splits features into heads, moves these in front of the tokens and multiplies by
transposed keys, and its gradients are products by the transposed of all of them: each move would
copy a value.

Handles: transposes, slices and other shapes of a product's operands, and transposes of its result
where nothing else reads that, as long as rows or columns of each matrix still follow each other.  A
power of two that an operand is multiplied by becomes a factor of the product, and so does one that
its result is multiplied by.  A transposed value that is rounded for the product was rounded before,
where something else reads it so.
Refuses: products of integers; everything under strategies that leave layers apart, and where the
target does not ask for it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import frexp, isfinite

from minidnn.fusion.collapse import APART
from minidnn.fusion.product import FusedProduct
from minidnn.fusion.strided import dense_steps, is_view, view_of
from minidnn.graph.attention_patterns import factor_of, is_cast
from minidnn.graph.ir import Graph, Node, Rewriter, Value
from minidnn.graph.operator import Reshaping
from minidnn.graph.operators import MatMul, Transpose
from minidnn.graph.types import FLOATS
from minidnn.passes.infrastructure import Context, Pass
from minidnn.passes.simplify import drop_dead


@dataclass(frozen=True)
class _Chain:
    """The nodes that make an operand of a value, or what the region writes of a result."""

    source: Value
    nodes: Sequence[Node] = ()


def turn_products(graph: Graph, context: Context) -> Graph:
    """See the module."""
    if context.strategy in APART or not context.target.turns_products:
        return graph
    products = list(filter(_is_product, graph.nodes))
    before = {node: [_before(graph, node, value) for value in node.inputs] for node in products}
    # What stands between two products belongs to the one behind it.
    read = {node for chains in before.values() for chain in chains for node in chain.nodes}
    found: dict[Node, tuple[_Chain, _Chain, _Chain]] = {}
    done: set[Node] = set()
    for node in products:
        (a, b), behind = before[node], _behind(graph, node, read)
        if not (a.nodes or b.nodes or behind.nodes):
            continue
        if context.allow(f"{node.name} reads matrices where they lie"):
            found[node] = a, b, behind
            done.update(behind.nodes)
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        if node in found:
            _add(rewriter, node, *found[node])
        elif node not in done:
            rewriter.keep(node)
    turned = rewriter.finish()
    return drop_dead(turned, context) if found else graph


def _is_product(node: Node) -> bool:
    if not isinstance(node.op, MatMul) or node.output.dtype not in FLOATS:
        return False
    return not any(0 in value.shape for value in node.inputs)


def _before(graph: Graph, product: Node, operand: Value) -> _Chain:
    """The longest chain in front of an operand that leaves lines of it together."""
    chain = best = _Chain(operand)
    while (node := chain.source.producer) is not None:
        if is_view(node) or _is_factor(node):
            chain = _Chain(node.inputs[0], (node, *chain.nodes))
        elif (moved := _rounded_before(graph, product, node)) is not None:
            chain = _Chain(moved[0].inputs[0], (*moved, *chain.nodes))
        else:
            break
        view = view_of(chain.source, chain.nodes)
        steps = None if view is None else view.steps
        if steps is not None and _has_lines(operand.shape, steps):
            best = chain
    while best.nodes and isinstance(best.nodes[0].op, Reshaping):
        best = _Chain(best.nodes[0].output, best.nodes[1:])  # it moves nothing anyway
    return best


def _rounded_before(graph: Graph, product: Node, cast: Node) -> tuple[Node, ...] | None:
    """The transpose of what a node rounds, of the value that something else rounds before."""
    move = cast.inputs[0].producer if cast.inputs else None
    if move is None or not isinstance(move.op, Transpose) or not is_cast(cast):
        return None
    for other in graph.readers[move.inputs[0]]:
        earlier = graph.position[other] < graph.position[product]
        if other.op == cast.op and other.output.dtype == cast.output.dtype and earlier:
            return (Node(move.op, [other.output], move.name, move.source),)
    return None


def _behind(graph: Graph, node: Node, read: Collection[Node]) -> _Chain:
    """The longest chain behind a product that leaves lines of the result together and is not
    ``read`` by another one."""
    chain = best = _Chain(node.output)
    value = node.output
    while (reader := graph.only_reader(value)) is not None:
        if reader in read or not (isinstance(reader.op, Transpose) or _is_factor(reader)):
            break
        chain = _Chain(chain.source, (*chain.nodes, reader))
        value = reader.output
        steps = zip(_axes(chain), dense_steps(value.type), strict=True)
        if _has_lines(node.output.shape, [step for _, step in sorted(steps)]):
            best = chain
    return best


def _is_factor(node: Node) -> bool:
    """Whether a node multiplies by a power of two, which rounds nothing but subnormals."""
    factor = factor_of(node)
    if factor is None or node.output.dtype != node.inputs[0].dtype:
        return False
    return isfinite(factor) and frexp(factor)[0] == 0.5


def _axes(chain: _Chain) -> list[int]:
    """For each axis of a chain's end the axis that it is of the chain's source."""
    axes = list(range(chain.source.type.rank))
    for node in chain.nodes:
        if isinstance(node.op, Transpose):
            axes = [axes[axis] for axis in node.op.dims]
    return axes


def _has_lines(shape: Sequence[int], steps: Sequence[int]) -> bool:
    """Whether rows or columns of matrices follow each other, or matrices are single numbers."""
    sizes = shape[-2:]
    follow = any(n > 1 and step == 1 for n, step in zip(sizes, steps[-2:], strict=True))
    return follow or all(n == 1 for n in sizes)


def _add(rewriter: Rewriter, node: Node, a: _Chain, b: _Chain, behind: _Chain) -> None:
    """The region in the product's place."""
    inputs: list[Value] = []
    nodes: list[Node] = []
    operands = []
    for chain in (a, b):
        value = Value(chain.source.type, chain.source.name)
        inputs.append(value)
        for each in chain.nodes:
            nodes.append(Node(each.op, [value], each.name, each.source))
            value = nodes[-1].output
        operands.append(value)
    nodes.append(Node(node.op, operands, node.name, node.source))
    for each in behind.nodes:
        nodes.append(Node(each.op, [nodes[-1].output], each.name, each.source))
    last = behind.nodes[-1] if behind.nodes else node
    region = FusedProduct(Graph(inputs, [nodes[-1].output], nodes, name=node.name))
    given = [rewriter.value(chain.source) for chain in (a, b)]
    made = rewriter.add(region, given, node.name, node.source)
    rewriter.replace(last.output, made.output)


TURN_PRODUCTS = Pass("turn_products", turn_products)
