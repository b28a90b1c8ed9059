"""More tiles and matrices than a launch has blocks along its second and third axis."""

from __future__ import annotations

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.graph import operators as ops
from minidnn.layers.activations import OperatorLayer
from minidnn.layers.build import to_graph

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")


def test_large_planes_are_moved_to_nhwc_and_back() -> None:
    shape = (1, 16, 2048, 2056)
    layer = L.Conv2d(16, 16, 1, bias=False)
    exe = md.compile(layer, shape, device="cuda", precision="float16", tune="heuristic")
    given = torch.randn(shape, device="cuda", dtype=torch.float16)
    weight = torch.from_numpy(np.asarray(layer.state_dict()["weight"])).to(given)
    wanted = torch.nn.functional.conv2d(given, weight)
    torch.testing.assert_close(exe(given), wanted, rtol=1e-2, atol=1e-2)


def test_many_small_matrices_are_multiplied() -> None:
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((700, 100, *size), np.float32) for size in ((2, 3), (3, 2)))
    graph = to_graph(OperatorLayer(ops.MatMul()), [a.shape, b.shape])
    product = md.compile(graph, device="cuda", tune="heuristic")(a, b)
    np.testing.assert_allclose(product, a @ b, rtol=1e-5, atol=1e-5)
