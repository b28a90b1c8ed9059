"""A backend that computes one node after another with NumPy, and counts what it ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minidnn.errors import UnsupportedError
from minidnn.fusion.target import Target
from minidnn.graph.ir import Constant, Graph, Node
from minidnn.runtime.plan import Plan


class CountingTarget(Target):
    """What the passes ask: here, nothing goes into a contraction's kernel."""

    def refuse_epilogue(self, contraction: Node, node: Node) -> str | None:
        return "its contractions compute nothing else"


class CountingBackend:
    name = "counting"

    def unavailable(self) -> str | None:
        return None  # or why not, and what to do: "no driver; install ..."

    def precisions(self) -> Sequence[str]:
        return ("float32",)  # the default first

    def target(self, precision: str, options: Mapping[str, Any]) -> Target:
        return CountingTarget()

    def unsupported(self, node: Node, precision: str) -> str | None:
        if node.op.name == "Softmax":
            return "it cannot compute powers"
        return None

    def compile(self, plan: Plan, precision: str, options: Mapping[str, Any]) -> CountingProgram:
        if options:
            raise UnsupportedError(f"options {sorted(options)} of device 'counting'; it has none")
        return CountingProgram(plan.graph)


class CountingProgram:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.count = 0

    def run(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        found = dict(zip(self.graph.inputs, inputs, strict=True))
        found |= {value: value.data for value in self.graph.values if isinstance(value, Constant)}
        for node in self.graph.nodes:
            results = node.op.reference(*(found[value] for value in node.inputs))
            found |= dict(zip(node.outputs, results, strict=True))
            self.count += 1
        for value, array in zip(self.graph.outputs, outputs, strict=True):
            array[...] = found[value]
