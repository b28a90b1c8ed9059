"""A step of networks that normalize rows, value by value in the emulator: blocks of ConvNeXt with
stochastic depth, and of a transformer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.fusion.rows import FusedRows
from minidnn.graph.operators import LayerNorm, RandomDrop, Reduce, Reorder
from minidnn.models.convnext import ConvNeXtBlock, LayerNorm2d
from minidnn.models.vit import EncoderBlock
from minidnn.training.step import Objective, step_graph

from .lowered import planned_graph
from .test_emulated_step import check_values

SHAPE = (4, 3, 12, 12)


class Blocks(L.Layer):
    """A stem, two blocks over pixels, one over pixels as tokens, and a head."""

    def __init__(self) -> None:
        self.stem = L.Sequential(L.Conv2d(3, 24, 4, stride=4), LayerNorm2d(24))
        self.blocks = L.Sequential(ConvNeXtBlock(24, 0.5), ConvNeXtBlock(24, 0.3))
        self.encoder = EncoderBlock(24, 2, 48)
        self.head = L.Linear(24, 5)

    def forward(self, x: Any) -> Any:
        y = self.blocks(self.stem(x))
        tokens = y.permute(0, 2, 3, 1).reshape(y.shape[0], -1, 24)
        return self.head(self.encoder(tokens)[:, 0])


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_a_step(precision: str, tmp_path: Path) -> None:
    network = Blocks().initialize(0)
    scales = {k: np.full_like(v, 0.5) for k, v in network.state_dict().items() if "scale" in k}
    network.load_state_dict({**network.state_dict(), **scales})
    objective = Objective(md.losses.CrossEntropy(), {})
    graph = step_graph(network, (SHAPE,), objective, md.optim.SGD(0.02))
    plan = planned_graph(graph, precision, True)
    nodes = plan.graph.nodes
    # In float32 there are no casts, and some normalizations are alone.
    if precision != "float32":
        assert not any(isinstance(node.op, LayerNorm) for node in nodes)
    assert sum(isinstance(node.op, FusedRows) for node in nodes) >= 6
    assert all(n.output.type.size <= 4 for n in nodes if isinstance(n.op, RandomDrop))
    # What is left adds up everything, or what is repeated over a batch.
    assert sum(isinstance(node.op, Reduce) for node in nodes) <= 3
    moved = [node for node in nodes if isinstance(node.op, Reorder)]
    images = [n for n in moved if n.output.shape[:2] == (4, 24) and not plan.annotations.is_view(n)]
    assert precision == "float32" or not images
    random = np.random.default_rng(0)
    given = [random.standard_normal(SHAPE, np.float32), np.array([0, 3, 1, 4])]
    given.append(np.array(0.02, np.float32))
    check_values(plan, given, precision, tmp_path)
