"""Sequences of halves and float32 values side by side, as training in half precision has them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cuda.target import CudaTarget
from minidnn.fusion.region import FusedSequence
from minidnn.graph.ir import Constant, Graph, Rewriter
from minidnn.graph.operator import Windowed
from minidnn.graph.types import rounded_to
from minidnn.passes.infrastructure import Context
from minidnn.passes.pipeline import optimize
from minidnn.training.step import Objective, step_graph
from tests.cuda.cards import H200
from tests.cuda.sequences import LAYOUTS, Case, case_of, run_cases


class Block(md.Layer):
    """A residual block between windows, of what is normalized or of its sum."""

    def __init__(self, channels: int) -> None:
        self.first = L.Conv2d(3, channels, 3, padding=1)
        self.pool = L.Sequential(L.BatchNorm2d(channels), L.ReLU(), L.MaxPool2d(3, 2, 1))
        self.inner = L.Conv2d(channels, channels, 1)
        self.small = L.Sequential(L.BatchNorm2d(channels), L.SiLU(), L.AvgPool2d(3, 1, 1))
        self.conv = L.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = L.BatchNorm2d(channels)
        self.relu = L.ReLU()
        self.head = L.Sequential(L.AvgPool2d(2), L.Flatten(), L.Linear(16 * channels, 4))

    def forward(self, x: object) -> object:
        y = self.small(self.inner(self.pool(self.first(x))))
        return self.head(self.relu(self.norm(self.conv(y)) + y))


def with_vectors(
    region: FusedSequence, operands: list[np.ndarray]
) -> tuple[FusedSequence, list[np.ndarray]]:
    """The region with its vectors as constants, which kernels have packed, and other operands."""
    _, binding = region.kernel
    vectors = {vector.value for vector in binding.vectors}
    given = list(zip(region.body.inputs, operands, strict=True))
    rewriter = Rewriter(region.body)
    for value, array in given:
        if value in vectors:
            rewriter.replace(value, Constant(value.type, value.name, array))
    for node in region.body.nodes:
        rewriter.keep(node)
    body = rewriter.finish()
    inputs = [value for value, _ in given if value not in vectors]
    body = Graph(inputs, body.outputs, body.nodes, body.name)
    others = [array for value, array in given if value not in vectors]
    return FusedSequence(body, region.schedule), others


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_region_of_a_step(dtype: str, tmp_path: Path) -> None:
    """Each gives the bits of its nodes one by one, whatever the layout."""
    loss = md.losses.CrossEntropy()
    net, shape = Block(12), (2, 3, 16, 16)
    graph = step_graph(net, shape, Objective(loss, {}), md.optim.SGD(0.1, momentum=0.9))
    target = CudaTarget(H200.device(dtype), dtype)
    optimized = optimize(graph, Context(target, stored=True), verify=True)
    random, cases, mixed, windows = np.random.default_rng(0), list[Case](), 0, 0
    for node in optimized.nodes:
        if not isinstance(node.op, FusedSequence):
            continue
        values = [*node.op.body.inputs, *(v for n in node.op.body.nodes for v in n.outputs)]
        several = len({value.dtype for value in values}) > 1
        mixed += several
        windows += several and any(isinstance(n.op, Windowed) for n in node.op.body.nodes)
        operands = [
            rounded_to(v.dtype, random.standard_normal(v.shape) ** 2 + 0.1) for v in node.inputs
        ]
        region, operands = with_vectors(node.op, operands)
        for layout in LAYOUTS:
            cases.append(case_of(region, operands, layout, suit=True))
    assert mixed >= 5 and windows >= 2
    run_cases(cases, tmp_path)
