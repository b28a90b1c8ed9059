"""Gradients of one convolution: their graphs, problems, numbers, and what they are in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minidnn.backends.cuda.contraction.problem import (
    FILTER_GRADIENT,
    ContractionProblem,
    Direction,
)
from minidnn.graph import operators as ops
from minidnn.graph.ir import Graph, Node, Value
from minidnn.graph.types import TensorType, rounded_to

from .lowered import graph_problems
from .precisions import storage

Pair = tuple[int, int]


@dataclass(frozen=True)
class Convolved:
    """A convolution: images' shape, filters, window, stride, padding, dilation and groups."""

    images: tuple[int, int, int, int]
    filters: int
    window: Pair
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1

    @property
    def convolution(self) -> ops.Conv2d:
        (top, left) = self.padding
        return ops.Conv2d(self.stride, ((top, top), (left, left)), self.dilation, self.groups)


@dataclass(frozen=True)
class Gradient:
    """Of a convolution, with respect to its image or its filter, in a precision; or forwards, the
    convolution itself."""

    of: Direction
    case: Convolved
    precision: str = "float32"

    @property
    def graph(self) -> Graph:
        """From image and the result's gradient, or that and the filter; forwards from image and
        filter."""
        case = self.case
        _, channels, *size = case.images
        x = TensorType(case.images)
        weight = TensorType((case.filters, channels // case.groups, *case.window))
        (y,) = case.convolution.infer(x, weight)
        op: Any = ops.Conv2dInputGradient(case.convolution, (size[0], size[1]))
        types = [y, weight]
        if self.of == FILTER_GRADIENT:
            op, types = ops.Conv2dWeightGradient(case.convolution, case.window), [x, y]
        elif self.of == "forward":
            op, types = case.convolution, [x, weight]
        inputs = [Value(type, f"input{i}") for i, type in enumerate(types)]
        node = Node(op, inputs, "g", "g")
        return Graph(inputs, [node.output], [node], "g")

    @property
    def problem(self) -> ContractionProblem:
        (problem,) = graph_problems(self.graph, self.precision)
        assert problem.direction == self.of
        return problem

    def drawn(self, seed: int = 0) -> list[np.ndarray]:
        """What it is computed from."""
        random = np.random.default_rng(seed)
        shapes = (value.shape for value in self.graph.inputs)
        drawn = (random.standard_normal(shape).astype(np.float32) for shape in shapes)
        dtype = storage(self.precision)
        return [rounded_to(dtype, one).astype(np.float32) for one in drawn]

    def reference(self, given: Sequence[np.ndarray]) -> np.ndarray:
        """In float64."""
        (node,) = self.graph.nodes
        (found,) = node.op.reference(*(one.astype(np.float64) for one in given))
        return found
