"""Random graphs of windows and point-wise nodes that are one stack, with exact answers.

Channels do not matter to patches: every value has two.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np

from minidnn.fusion.operations import Step, lower
from minidnn.fusion.sequence import Sequence
from minidnn.graph import operators as ops
from minidnn.graph.ir import Graph, Value
from minidnn.graph.trace import apply, tracing
from minidnn.graph.types import TensorType

Span = tuple[int, int]


def random_graph(seed: int, nodes: int, chain: bool = False) -> Graph:
    """A graph of one input; values read earlier ones, and those that nobody reads are outputs."""
    random = np.random.default_rng(seed)
    size = (int(random.integers(6, 19)), int(random.integers(6, 19)))
    with tracing("g") as trace:
        values = [trace.input(TensorType((1, 2, *size)), "x")]
        while len(trace.nodes) < nodes:
            x = values[-1] if chain else values[int(random.integers(len(values)))]
            values.append(_grow(random, values, x))
        read = {value for node in trace.nodes for value in node.inputs}
        outputs = [value for value in values[1:] if value not in read]
        middle = [value for value in values[1:-1] if random.random() < 0.15]
    return trace.graph(list(dict.fromkeys([*outputs, *middle])))


def _grow(random: np.random.Generator, values: Seq[Value], x: Value) -> Value:
    kind = random.random()
    if kind < 0.25:
        return apply(ops.ReLU(), x)
    if kind < 0.5:
        same = [v for v in values if v.shape == x.shape]
        return apply(ops.Add(), x, same[int(random.integers(len(same)))])

    def pair(*choices: int) -> tuple[int, int]:
        return (int(random.choice(choices)), int(random.choice(choices)))

    kernel = pair(1, 2, 3, 4)
    padding = (int(random.integers(kernel[0] // 2 + 1)), int(random.integers(kernel[1] // 2 + 1)))
    ceil_mode = bool(random.integers(2))
    op = ops.MaxPool2d(kernel, pair(1, 1, 1, 2, 3), padding, pair(1, 2), ceil_mode)
    sizes = [a.output_size(s) for a, s in zip(op.window().axes, x.shape[2:], strict=True)]
    return apply(op, x) if min(sizes) >= 1 else apply(ops.ReLU(), x)


def sequence_of(graph: Graph) -> Sequence:
    """The whole graph as one sequence."""
    stack = lower(graph.nodes, graph.outputs)
    return Sequence(stack.steps, graph.outputs, stack.batch, stack.channels)


def needed(
    steps: Seq[Step], wanted: dict[Value, set[int]], axis: int, clip: bool = True
) -> dict[Value, set[int]]:
    """Exactly the positions of each value along an axis that computing ``wanted`` takes.

    Position by position, tap by tap; all operations of a step run at the same positions.
    Without ``clip``, planes go on beyond their edges.
    """
    found = {value: set(positions) for value, positions in wanted.items()}
    for step in reversed(steps):
        own = [operation.output for operation in step.operations]
        at = set().union(*(found.get(value, set()) for value in own))
        for operation in step.operations:
            found[operation.output] = at
        for operation in reversed(step.operations):
            for value in operation.operands:
                if value in own:
                    continue
                taps = at
                if operation.window is not None:
                    window = operation.window.whole[axis]
                    taps = {window.tap(o, i) for o in at for i in range(window.kernel)}
                size = value.type.plane[2 + axis]
                inside = {p for p in taps if 0 <= p < size or not clip}
                found[value] = found.get(value, set()) | inside
    return found
