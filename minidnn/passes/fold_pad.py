"""fold_pad: zeros around an image that only convolutions read become their own padding.

Files pad by themselves where the padding of a convolution is said to give "the same" size, which
may be uneven.  As an operator it copies the image.
Handles: a Pad by zeros of rows and columns, whose readers are convolutions of it.
Refuses: other values and modes, whole numbers, of which another one stands for 0, and results of
the graph.
"""

from __future__ import annotations

from dataclasses import replace

from minidnn.graph.ir import Graph, Node, Rewriter
from minidnn.graph.operators import Conv2d, Pad
from minidnn.graph.types import FLOATS
from minidnn.passes.infrastructure import Context, Pass


def fold_pad(graph: Graph, context: Context) -> Graph:
    """See the module."""
    rewriter = Rewriter(graph)
    folded: set[Node] = set()
    for node in graph.nodes:
        made = node.inputs[0].producer if isinstance(node.op, Conv2d) else None
        if made is not None and made in folded:
            _fold(rewriter, made, node)
        elif _can_fold(graph, node) and context.allow(f"fold {node.name} into what reads it"):
            folded.add(node)
        else:
            rewriter.keep(node)
    return rewriter.finish()


def _can_fold(graph: Graph, node: Node) -> bool:
    op = node.op
    if not isinstance(op, Pad) or op.mode != "constant" or op.value != 0.0:
        return False
    readers = graph.readers.get(node.output, ())
    convolutions = all(
        isinstance(reader.op, Conv2d)
        and reader.inputs.count(node.output) == 1
        and reader.inputs[0] is node.output
        for reader in readers
    )
    images = len(op.before) == 4 and not any((*op.before[:2], *op.after[:2]))
    read = bool(readers) and node.output not in graph.results
    return images and read and convolutions and node.output.dtype in FLOATS


def _fold(rewriter: Rewriter, pad: Node, convolution: Node) -> None:
    assert isinstance(pad.op, Pad) and isinstance(convolution.op, Conv2d)
    (top, bottom), (left, right) = convolution.op.padding
    before, after = pad.op.before, pad.op.after
    rows, columns = (top + before[2], bottom + after[2]), (left + before[3], right + after[3])
    op = replace(convolution.op, padding=(rows, columns))
    inputs = [rewriter.value(value) for value in (pad.inputs[0], *convolution.inputs[1:])]
    new = rewriter.add(op, inputs, convolution.name, convolution.source)
    rewriter.replace(convolution.output, new.output)


FOLD_PAD = Pass("fold_pad", fold_pad, requires=("simplify",))
