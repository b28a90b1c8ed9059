"""How many stacks each network has, by the paper's definition and by ours."""

from __future__ import annotations

from dataclasses import astuple, dataclass

from minidnn.fusion.stacks import find_stacks, is_tensor_operand, why_not_fusable
from minidnn.graph.ir import Graph, Node
from minidnn.graph.operators import Concat
from minidnn.layers.build import to_graph
from minidnn.passes.infrastructure import Context, run_passes
from minidnn.passes.pipeline import PIPELINE

from . import get_model

HEADER = ("network", "layers", "optimizable", "chains", "stacks", "stacks left")

NOTES = """\
layers       nodes of the network at its own image size, without those that do nothing at
             inference (dropout, a pooling that keeps the size)
optimizable  of these, layers that can be computed patch by patch and read one tensor:
             activations, batch normalizations, poolings
chains       runs of optimizable layers, each read by the next alone: BrainSlug's stacks
stacks       ours, which residual adds, joins of channels and values with several readers do
             not end
stacks left  ours, once batch normalizations are folded into convolutions and convolutions have
             absorbed what follows them: what depth-first fusion still has to do

BrainSlug's table 2 stands beside them in docs/results/brainslug.md.
"""


@dataclass(frozen=True)
class Counts:
    """The figures for one network; NOTES says what they count."""

    network: str
    layers: int
    optimizable: int
    chains: int
    stacks: int
    stacks_left: int


def count(name: str) -> Counts:
    """Counts the stacks of the network of that name, at its own image size, for one image."""
    network = get_model(name)
    context = Context()
    graph = to_graph(network, (1, *network.input_shape))
    names = [step.name for step in PIPELINE]
    before = PIPELINE[: names.index("depth_first")]
    simplified = run_passes(graph, before[: names.index("simplify") + 1], context)
    absorbed = run_passes(graph, before, context)
    layers = [node for node in simplified.nodes if is_optimizable(node)]
    return Counts(
        name,
        len(simplified.nodes),
        len(layers),
        chains(simplified),
        len(find_stacks(simplified)),
        len(find_stacks(absorbed)),
    )


def is_optimizable(node: Node) -> bool:
    """Whether a node is a layer that BrainSlug would take into a stack."""
    if isinstance(node.op, Concat) or why_not_fusable(node) is not None:
        return False
    return sum(is_tensor_operand(node, i) for i in range(len(node.inputs))) == 1


def chains(graph: Graph) -> int:
    """Runs of optimizable nodes, each reading the one before, which nothing else reads."""
    continued = (
        node.inputs[0].producer is not None
        and is_optimizable(node.inputs[0].producer)
        and graph.only_reader(node.inputs[0]) is node
        for node in graph.nodes
        if is_optimizable(node)
    )
    return sum(not c for c in continued)


def table(names: list[str]) -> str:
    """The figures of these networks, and what they mean."""
    rows = [HEADER, *(tuple(map(str, astuple(count(name)))) for name in names)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
    return "\n".join([*lines, "", NOTES])
