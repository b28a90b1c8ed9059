"""What a compiled network keeps in memory: packed weights and what runs need, nothing twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.errors import GraphError
from minidnn.fusion.region import constants
from minidnn.graph.ir import Constant, Graph, Node, Value
from minidnn.graph.operators import ReLU
from minidnn.graph.types import TensorType
from minidnn.layers.build import to_graph
from minidnn.runtime.program import PackedProgram

ROOT = Path(__file__).resolve().parents[2]
RESIDENT = Path("/proc/self/statm")

SHARE = 1.15
SLACK_BYTES = 8 << 20
"""For kernels that are loaded and for Python's objects; the last page of each buffer is large."""

PROGRAM = """
    import json, os
    import numpy as np
    import minidnn as md
    from minidnn import layers as L

    def resident():
        fields = open("/proc/self/statm", encoding="ascii").read().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")

    def compiled():
        deep = [L.Conv2d(256, 256, 3, padding=1), L.BatchNorm2d(256), L.ReLU()]
        wide = [L.Conv2d(256, 2048, 1), L.AdaptiveAvgPool2d(1), L.Flatten(), L.Linear(2048, 2048)]
        net = L.Sequential(L.Conv2d(3, 256, 3, padding=1), *deep * 3, *wide)
        return md.compile(net, shape, device="cpu", threads=2)

    shape = (2, 3, 14, 14)
    x, out = np.ones(shape, np.float32), np.empty((2, 2048), np.float32)
    small = L.Sequential(L.Conv2d(3, 16, 3), L.ReLU(), L.Flatten(), L.Linear(16 * 144, 8))
    md.compile(small, shape, device="cpu", threads=2)(x)  # what is loaded once
    before = resident()
    exe = compiled()
    exe(x, out=out)
    own = exe.program.constant_bytes, exe.program.run_bytes
    print(json.dumps([resident() - before, *own]))
"""


@pytest.mark.skipif(not RESIDENT.exists(), reason="the system does not tell resident memory")
def test_what_stays_resident_is_packed_weights_and_arenas() -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    growth, packed, run = json.loads(done.stdout)
    # 3 convolutions of 256 channels, at least as they are, and the two layers after them.
    assert packed >= 4 * (3 * 9 * 256 * 256 + 256 * 2048 + 2048 * 2048)
    assert growth <= SHARE * (packed + run) + SLACK_BYTES


def _net() -> L.Sequential:
    return L.Sequential(L.Conv2d(3, 16, 3), L.BatchNorm2d(16), L.ReLU(), L.Conv2d(16, 8, 1))


def _input() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((1, 3, 8, 8), np.float32)


def test_a_compiled_networks_graph_has_no_arrays() -> None:
    exe = md.compile(_net(), (1, 3, 8, 8), device="cpu", threads=1)
    assert isinstance(exe.program, PackedProgram)
    found = list(constants(exe.graph))
    assert len(found) == 4
    for constant in found:
        with pytest.raises(GraphError, match=f"constant {constant.name}: .* was let go"):
            _ = constant.data
    # None of this needs them.
    exe.explain(measure=True)
    np.testing.assert_array_equal(exe(_input()), exe(_input()))


def test_a_network_can_be_compiled_again() -> None:
    net = _net()
    first, second = (md.compile(net, (1, 3, 8, 8), device="cpu", threads=1) for _ in range(2))
    np.testing.assert_array_equal(first(_input()), second(_input()))


def test_the_callers_graph_keeps_its_arrays() -> None:
    graph = to_graph(_net(), (1, 3, 8, 8))
    before = {constant: constant.data for constant in constants(graph)}
    first, second = (md.compile(graph, device="cpu", threads=1) for _ in range(2))
    assert all(constant.data is data for constant, data in before.items())
    np.testing.assert_array_equal(first(_input()), second(_input()))


def test_observed_graphs_keep_their_arrays() -> None:
    seen = []
    exe = md.compile(
        _net(),
        (1, 3, 8, 8),
        device="cpu",
        threads=1,
        observe=lambda _pass, _before, after: seen.append(after),
    )
    assert seen[-1] is exe.graph
    assert all(constant.data.shape == constant.shape for constant in constants(seen[-1]))


def test_outputs_that_are_constant_are_given() -> None:
    x = Value(TensorType((1, 3, 8, 8)), "x")
    data = np.arange(6, dtype=np.float32).reshape(1, 6)
    relu = Node(ReLU(), [x], "relu")
    outputs = [relu.output, Constant(TensorType((1, 6)), "six", lambda: data)]
    exe = md.compile(Graph([x], outputs, [relu]), device="cpu", threads=1)
    y, six = exe(_input())
    np.testing.assert_array_equal(y, np.maximum(_input(), 0))
    np.testing.assert_array_equal(six, data)
