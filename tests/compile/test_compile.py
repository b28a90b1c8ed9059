"""compile: arguments, errors, devices."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends import backend as backends
from minidnn.backends.reference import ReferenceBackend
from minidnn.errors import DeviceError, GraphError, UnsupportedError
from minidnn.fusion.collapse import EVERYWHERE
from minidnn.graph import operators as ops
from minidnn.graph.ir import Graph, Node
from minidnn.graph.trace import apply
from minidnn.passes.pipeline import PIPELINE
from minidnn.runtime.plan import Plan
from tests.passes.build import conv, graph_of

SHAPE = (1, 3, 8, 8)


def network() -> L.Layer:
    return md.Sequential(
        L.Conv2d(3, 4, 3, padding=1), L.BatchNorm2d(4), L.ReLU(), L.MaxPool2d(2), L.Softmax(1)
    )


def refused(kind: type[Exception], text: str, *args: Any, **options: Any) -> None:
    options.setdefault("device", "reference")
    with pytest.raises(kind) as caught:
        md.compile(*args, **options)
    assert str(caught.value) == text


def test_unknown_devices() -> None:
    valid = ", ".join(map(repr, backends.backend_names()))
    refused(DeviceError, f"device='tpu'; valid are {valid}", network(), SHAPE, device="tpu")
    refused(DeviceError, f"device=5; valid are {valid}", network(), SHAPE, device=5)
    refused(DeviceError, f"device=['cpu']; valid are {valid}", network(), SHAPE, device=["cpu"])


def test_unknown_precision_strategy_fuel_and_options() -> None:
    args = (network(), SHAPE)
    text = "precision='int8' on device 'reference'; valid are 'float32', 'float64'"
    refused(UnsupportedError, text, *args, precision="int8")
    text = "strategy='best'; valid are 'model', 'one', 'five', 'unrestricted', 'contractions', "
    text += "'layers', 'cudnn'"
    refused(GraphError, text, *args, strategy="best")
    for fuel in (-1, 1.5, True, "all"):
        text = f"fuel={fuel!r}; valid is a number of rewrites of at least 0, or None"
        refused(GraphError, text, *args, fuel=fuel)
    text = "option 'speed' of device 'reference'; valid are 'interpret', 'memory_limit'"
    refused(UnsupportedError, text, *args, speed=11)


def test_shapes() -> None:
    text = "shape=None; valid is the input's shape with the batch, such as (1, 3, 224, 224)"
    refused(GraphError, text, network())
    for shape in ((0, 3, 8, 8), (1, 3, -8, 8), (1, 3, 8, 8.0)):
        with pytest.raises(GraphError, match=r"shape=.* valid is a sequence of ints of at least 1"):
            md.compile(network(), shape, device="reference")  # type: ignore[arg-type]


def test_graphs_have_their_shapes_already() -> None:
    graph = graph_of(lambda t, x, y: apply(ops.Add(), x, y), (1, 2), (1, 2))
    fine: tuple[Any, ...] = (None, [(1, 2), (1, 2)], ((1, 2), (1, 2)), {"x1": (1, 2), "x0": (1, 2)})
    for shape in fine:
        md.compile(graph, shape, device="reference")
    own = {"x0": (1, 2), "x1": (1, 2)}
    wrong: tuple[Any, ...] = ((1, 2), [(1, 2)], {"x0": (1, 2)}, 5, ())
    for shape in wrong:
        text = f"shape={shape!r}, but the graph's inputs have shapes {own}"
        refused(GraphError, text, graph, shape)
    single = graph_of(lambda t, x: apply(ops.ReLU(), x), (1, 2))
    for shape in ((1, 2), [1, 2], [(1, 2)], {"x0": (1, 2)}):
        md.compile(single, shape, device="reference")


def test_empty_tensors_are_refused() -> None:
    graph = graph_of(lambda t, x: apply(ops.ReLU(), x), (0, 3, 4, 4))
    text = "%x0: float32[0, 3, 4, 4] has no elements; valid are sizes of at least 1"
    refused(GraphError, text, graph)
    graph = graph_of(lambda t, x: conv(t, x, 0), (1, 3, 4, 4))
    with pytest.raises(GraphError, match="has no elements; valid are sizes of at least 1"):
        md.compile(graph, device="reference")


def test_things_that_are_no_networks() -> None:
    with pytest.raises(GraphError, match=r"^network=7 is a int; valid are layers and graphs, or "):
        md.compile(7, SHAPE, device="reference")


def test_an_illegal_graph() -> None:
    graph = graph_of(lambda t, x: apply(ops.ReLU(), apply(ops.Tanh(), x)), (1, 2))
    broken = Graph(graph.inputs, graph.outputs, graph.nodes[::-1], graph.name)
    with pytest.raises(GraphError, match=r"^graph 'g' is not legal:\n  node 'relu' reads %tanh"):
        md.compile(broken, device="reference")


def test_observing_and_fuel() -> None:
    seen: list[str] = []
    exe = md.compile(
        network(), SHAPE, device="reference", observe=lambda step, a, b: seen.append(step.name)
    )
    assert seen == [step.name for step in PIPELINE]
    assert len(exe.plan.rewrites) >= 3
    plain = md.compile(network(), SHAPE, device="reference", fuel=0)
    assert plain.plan.rewrites == ()
    assert [n.op.name for n in plain.graph.nodes][:3] == ["Conv2d", "BatchNorm", "ReLU"]


def test_an_observer_is_a_function() -> None:
    with pytest.raises(GraphError, match=r"^observe=3; valid is a function of a pass and two gra"):
        md.compile(network(), SHAPE, device="reference", observe=3)  # type: ignore[call-overload]


@pytest.mark.parametrize("interpret", [False, True])
@pytest.mark.parametrize("strategy", EVERYWHERE)
def test_every_strategy_gives_the_same(strategy: str, interpret: bool) -> None:
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    net = network()
    expected = md.compile(net, SHAPE, device="reference")(x)
    exe = md.compile(net, SHAPE, device="reference", strategy=strategy, interpret=interpret)
    np.testing.assert_array_equal(exe(x), expected)


class Picky(ReferenceBackend):
    """A backend that can do next to nothing, and says why."""

    name = "picky"
    missing: str | None = None

    def unavailable(self) -> str | None:
        return self.missing

    def unsupported(self, node: Node, precision: str) -> str | None:
        return None if node.op.name == "FusedSequence" else f"no kernel for it in {precision}"

    def compile(self, plan: Plan, precision: str, options: Mapping[str, Any]) -> Any:
        raise AssertionError("nothing unsupported is compiled")


def test_unsupported_nodes_are_all_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(backends._BUILT_IN, "picky", Picky)

    def build(t, x):
        return apply(ops.Softmax(1), apply(ops.ReLU(), apply(ops.Softmax(1), x)))

    refused(
        UnsupportedError,
        "device 'picky' cannot run this network:\n"
        "  node 'softmax' (Softmax(dim=1)): no kernel for it in float32\n"
        "  node 'softmax.1' (Softmax(dim=1)): no kernel for it in float32",
        graph_of(build, (1, 4, 2, 2)),
        device="picky",
    )


def test_a_device_that_cannot_be_used_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(backends._BUILT_IN, "picky", Picky)
    monkeypatch.setattr(Picky, "missing", "no driver; install one")
    text = "device='picky' cannot be used here: no driver; install one"
    refused(DeviceError, text, network(), SHAPE, device="picky")


def test_the_default_device(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class First(Picky):
        missing = "no driver"

    monkeypatch.setattr(backends, "_BUILT_IN", {"reference": ReferenceBackend, "cuda": First})
    with caplog.at_level(logging.INFO, "minidnn.compiler"):
        exe = md.compile(L.ReLU(), (1, 2))
        md.compile(L.ReLU(), (1, 2))
    assert exe.device == "reference"
    assert caplog.messages == ["device 'reference' is used; not cuda: no driver"] * 2
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    monkeypatch.setattr(backends, "_BUILT_IN", {"cuda": First})
    with pytest.raises(DeviceError, match=r"^no device can be used here: cuda: no driver$"):
        md.compile(L.ReLU(), (1, 2))


def test_a_network_that_only_passes_its_input_on() -> None:
    x = np.ones((1, 2), np.float32)
    exe = md.compile(L.Identity(), (1, 2), device="reference")
    assert exe.graph.nodes == ()
    y = exe(x)
    np.testing.assert_array_equal(y, x)
    assert not np.shares_memory(x, y)
    assert isinstance(exe.graph, Graph)
