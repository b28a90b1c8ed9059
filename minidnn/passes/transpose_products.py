"""transpose_products: batched matrix products read and write strided matrices instead of copies.

Attention splits features into heads, transposes heads and tokens, and multiplies by transposed
keys; its gradients are products with the transposes of all of these.  Each transpose would copy a
value.

Handles: transposes, slices and reshapes of a product's operands, and transposes of its result if it
has no other reader, as long as rows or columns of each matrix stay contiguous.  A multiplication of
an operand or of the result by a power of two becomes a factor of the product.  Where an operand is
the cast of a transpose, and an earlier node casts the transpose's operand, the product reads that
earlier cast through the transpose.
Refuses: products of integers; everything under strategies that fuse no stacks, and where the target
does not ask for it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import frexp, isfinite

from minidnn.fusion.collapse import NO_STACKS
from minidnn.fusion.product import FusedProduct
from minidnn.fusion.strided import dense_strides, is_view, view_of
from minidnn.graph.attention_patterns import factor_of, is_cast
from minidnn.graph.ir import Graph, Node, Rewriter, Value
from minidnn.graph.operator import Reshaping
from minidnn.graph.operators import MatMul, Transpose
from minidnn.graph.types import FLOATS
from minidnn.passes.infrastructure import Context, Pass
from minidnn.passes.simplify import drop_dead


@dataclass(frozen=True)
class _Chain:
    """Nodes of a region before or after its product: those that make an operand from ``source``, or
    those that follow the product's result ``source``."""

    source: Value
    nodes: Sequence[Node] = ()


def transpose_products(graph: Graph, context: Context) -> Graph:
    """See the module."""
    if context.strategy in NO_STACKS or not context.target.transposes_products:
        return graph
    products = list(filter(_is_product, graph.nodes))
    operand_chains = {
        node: [_before(graph, node, value) for value in node.inputs] for node in products
    }
    # Nodes between two products belong to the region of the second one.
    read = {node for chains in operand_chains.values() for chain in chains for node in chain.nodes}
    regions: dict[Node, tuple[_Chain, _Chain, _Chain]] = {}
    absorbed: set[Node] = set()
    for node in products:
        (a, b), after = operand_chains[node], _behind(graph, node, read)
        if not (a.nodes or b.nodes or after.nodes):
            continue
        if context.allow(f"{node.name} reads transposed matrices in place"):
            regions[node] = a, b, after
            absorbed.update(after.nodes)
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        if node in regions:
            _add(rewriter, node, *regions[node])
        elif node not in absorbed:
            rewriter.keep(node)
    rewritten = rewriter.finish()
    return drop_dead(rewritten, context) if regions else graph


def _is_product(node: Node) -> bool:
    if not isinstance(node.op, MatMul) or node.output.dtype not in FLOATS:
        return False
    return not any(0 in value.shape for value in node.inputs)


def _before(graph: Graph, product: Node, operand: Value) -> _Chain:
    """The longest chain before an operand through which the kernel can read it with contiguous rows
    or columns."""
    chain = best = _Chain(operand)
    while (node := chain.source.producer) is not None:
        if is_view(node) or _is_power_of_two(node):
            chain = _Chain(node.inputs[0], (node, *chain.nodes))
        elif (moved := _rounded_before(graph, product, node)) is not None:
            chain = _Chain(moved[0].inputs[0], (*moved, *chain.nodes))
        else:
            break
        view = view_of(chain.source, chain.nodes)
        steps = None if view is None else view.steps
        if steps is not None and _has_contiguous_lines(operand.shape, steps):
            best = chain
    while best.nodes and isinstance(best.nodes[0].op, Reshaping):
        best = _Chain(best.nodes[0].output, best.nodes[1:])  # a reshape copies nothing anyway
    return best


def _rounded_before(graph: Graph, product: Node, cast: Node) -> tuple[Node, ...] | None:
    """If a node casts a transpose, and a node before the product casts the transpose's operand in
    the same way: a transpose of that cast, as a chain of one; None otherwise."""
    move = cast.inputs[0].producer if cast.inputs else None
    if move is None or not isinstance(move.op, Transpose) or not is_cast(cast):
        return None
    for other in graph.readers[move.inputs[0]]:
        earlier = graph.position[other] < graph.position[product]
        if other.op == cast.op and other.output.dtype == cast.output.dtype and earlier:
            return (Node(move.op, [other.output], move.name, move.source),)
    return None


def _behind(graph: Graph, node: Node, read: Collection[Node]) -> _Chain:
    """The longest chain after a product through which the kernel can write its result with
    contiguous rows or columns; nodes in ``read`` belong to other products."""
    chain = best = _Chain(node.output)
    value = node.output
    while (reader := graph.only_reader(value)) is not None:
        if reader in read or not (isinstance(reader.op, Transpose) or _is_power_of_two(reader)):
            break
        chain = _Chain(chain.source, (*chain.nodes, reader))
        value = reader.output
        steps = zip(_axes(chain), dense_strides(value.type), strict=True)
        if _has_contiguous_lines(node.output.shape, [step for _, step in sorted(steps)]):
            best = chain
    return best


def _is_power_of_two(node: Node) -> bool:
    """Whether a node multiplies by a power of two, which rounds nothing but subnormals."""
    factor = factor_of(node)
    if factor is None or node.output.dtype != node.inputs[0].dtype:
        return False
    return isfinite(factor) and frexp(factor)[0] == 0.5


def _axes(chain: _Chain) -> list[int]:
    """For each axis of a chain's result, the axis of the chain's source."""
    axes = list(range(chain.source.type.rank))
    for node in chain.nodes:
        if isinstance(node.op, Transpose):
            axes = [axes[axis] for axis in node.op.dims]
    return axes


def _has_contiguous_lines(shape: Sequence[int], steps: Sequence[int]) -> bool:
    """Whether rows or columns of matrices are contiguous, or matrices have one element."""
    sizes = shape[-2:]
    are_contiguous = any(n > 1 and step == 1 for n, step in zip(sizes, steps[-2:], strict=True))
    return are_contiguous or all(n == 1 for n in sizes)


def _add(rewriter: Rewriter, node: Node, a: _Chain, b: _Chain, after: _Chain) -> None:
    """Adds the region that replaces a product and the chains around it."""
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
    for each in after.nodes:
        nodes.append(Node(each.op, [nodes[-1].output], each.name, each.source))
    last = after.nodes[-1] if after.nodes else node
    region = FusedProduct(Graph(inputs, [nodes[-1].output], nodes, name=node.name))
    sources = [rewriter.value(chain.source) for chain in (a, b)]
    result = rewriter.add(region, sources, node.name, node.source)
    rewriter.replace(last.output, result.output)


TRANSPOSE_PRODUCTS = Pass("transpose_products", transpose_products)
