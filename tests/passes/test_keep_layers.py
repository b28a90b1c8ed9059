"""Layers and their gradients as functions of a library, evaluated as the nodes that they were."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cuda.target import CudaTarget
from minidnn.errors import UnsupportedError
from minidnn.fusion.functions import LayerFunction
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Graph
from minidnn.layers.build import to_graph
from minidnn.passes.infrastructure import Context
from minidnn.passes.keep_layers import keep_layers
from minidnn.passes.pipeline import optimize
from minidnn.report.explain import explain
from minidnn.runtime.plan import make_plan
from minidnn.storage import load_graph, write_graph
from minidnn.training.step import Objective, step_graph
from tests.cuda.cards import H200

SHAPE = (4, 3, 8, 8)


def context(precision: str = "float32", fuel: int | None = None) -> Context:
    return Context(CudaTarget(H200.device(precision), precision), "cudnn", fuel, stored=True)


def step(net: md.Layer, classes: int = 4) -> Graph:
    net.initialize(0)
    return step_graph(net, [SHAPE], Objective(md.losses.CrossEntropy(), {}), md.optim.SGD(0.1))


def functions_of(graph: Graph) -> Counter[str]:
    return Counter(node.op.name for node in graph.nodes if isinstance(node.op, LayerFunction))


def gradients_of(graph: Graph) -> set[str]:
    """What is left of gradients of layers, whose formulas have names of their own."""
    nodes = (node for node in graph.nodes if not node.source.startswith("loss"))
    return {node.op.name for node in nodes if node.op.name.endswith("Gradient")}


class Joined(L.Layer):
    """The input of a normalization is read before it and behind it; so is one layer's gradient."""

    def __init__(self) -> None:
        self.first, self.second = L.Conv2d(3, 4, 3, padding=1), L.Conv2d(3, 4, 1, bias=False)
        self.one, self.two = L.BatchNorm2d(4), L.BatchNorm2d(4)
        self.relu, self.last = L.ReLU(), L.BatchNorm2d(4, momentum=None, affine=False)
        self.head = L.Sequential(L.AdaptiveAvgPool2d(1), L.Flatten(), L.Linear(4, 4))

    def forward(self, x: Any) -> Any:
        y = self.relu(self.one(self.first(x)) + self.two(self.second(x)))
        return self.head(self.last(y) + y)


def check(graph: Graph, fuel: int | None = None) -> Graph:
    """It computes what it did, in float64 to the last digits."""
    found = keep_layers(graph, context(fuel=fuel))
    random = np.random.default_rng(0)
    given: list[Any] = [random.standard_normal(SHAPE), random.integers(0, 4, SHAPE[0]), 0.1]
    given = given[: len(graph.inputs)]
    before: dict[str, np.ndarray] = {}
    after: dict[str, np.ndarray] = {}
    wanted = evaluate(graph, given, "float64", states=before)
    for one, other in zip(evaluate(found, given, "float64", states=after), wanted, strict=True):
        np.testing.assert_allclose(one, other, 1e-12, 1e-12)
    for name, array in before.items():
        np.testing.assert_allclose(after[name], array, 1e-12, 1e-12)
    return found


def test_normalizations_that_share_a_gradient_and_an_input() -> None:
    found = functions_of(check(step(Joined())))
    assert found["cudnnBatchNormalizationForwardTraining"] == 3
    assert found["cudnnBatchNormalizationBackward"] == 3
    assert found["cudnnConvolutionBackwardBias"] == 2
    assert found["cudnnActivationBackward"] == found["cudnnPoolingBackward"] == 1
    about = context()
    assert not gradients_of(optimize(step(Joined()), about, verify=True))
    assert not [name for name in about.notes if name.startswith("cudnn")]


def test_fuel_stops_it_anywhere() -> None:
    graph = step(Joined())
    count = sum(functions_of(keep_layers(graph, context())).values())
    for fuel in range(0, count, 7):
        assert sum(functions_of(check(graph, fuel)).values()) <= fuel


def test_a_first_normalization_has_no_gradient_for_its_input() -> None:
    net = L.Sequential(L.BatchNorm2d(3), L.Flatten(), L.Linear(192, 4))
    assert functions_of(check(step(net)))["cudnnBatchNormalizationBackward"] == 1


def test_frozen_normalizations_have_a_function_forwards_alone() -> None:
    norm = L.BatchNorm2d(4)
    norm.freeze()
    net = L.Sequential(L.Conv2d(3, 4, 1), norm, L.Flatten(), L.Linear(256, 4))
    found = functions_of(check(step(net)))
    assert found["cudnnBatchNormalizationForwardInference"] == 1
    assert not found["cudnnBatchNormalizationBackward"]


def test_dropout_draws_one_mask_for_a_layer_and_its_gradient() -> None:
    net = L.Sequential(L.Flatten(), L.Linear(192, 8), L.Dropout(0.5), L.Linear(8, 4))
    found = check(step(net))
    assert functions_of(found)["cudnnDropoutBackward"] == 2
    assert [node.op.name for node in found.nodes].count("RandomDrop") == 1


NONE: dict[str, tuple[Any, str, str]] = {
    "no function": (L.GELU(), "GELU", "cuDNN has no function for it"),
    "dilation": (L.MaxPool2d(2, dilation=2), "MaxPool2d", "cuDNN's windows have no dilation"),
    "ends": (L.AvgPool2d(3, 2, ceil_mode=True), "AvgPool2d", "cuDNN's windows end inside"),
    "divisor": (
        L.AvgPool2d(2, divisor_override=3),
        "AvgPool2d",
        "cuDNN's averages have no other divisor",
    ),
    "sizes": (
        L.AdaptiveAvgPool2d(3),
        "AdaptiveAvgPool2d",
        "cuDNN's windows are all of one size",
    ),
    "padding": (
        L.Conv2d(3, 3, 2, padding="same"),
        "Conv2d",
        "padding differs from one side to the other",
    ),
}


@pytest.mark.parametrize("name", NONE)
def test_what_has_no_function_is_noted_with_the_reason(name: str) -> None:
    layer, op, reason = NONE[name]
    about = context()
    graph = keep_layers(to_graph(layer, SHAPE), about)
    assert not functions_of(graph)
    assert about.notes == {op: f"{reason}; a kernel of ours computes {graph.nodes[0].name}"}


def test_other_strategies_and_devices_have_none() -> None:
    graph = to_graph(L.ReLU(), SHAPE)
    target = CudaTarget(H200.device("float32"), "float32")
    assert keep_layers(graph, Context(target, "layers")) is graph
    assert keep_layers(graph, Context(strategy="cudnn")) is graph
    for device in ("cpu", "reference"):
        with pytest.raises(UnsupportedError) as caught:
            md.compile(L.ReLU(), SHAPE, device=device, strategy="cudnn")
        text = f"strategy='cudnn' on device '{device}'; valid is device='cuda'"
        assert str(caught.value) == text


def test_a_trainer_of_another_device_refuses_it() -> None:
    net = L.Sequential(L.Flatten(), L.Linear(192, 4))
    with pytest.raises(UnsupportedError, match=r"^strategy='cudnn' on device 'reference'; valid"):
        md.Trainer(
            net, SHAPE, md.losses.CrossEntropy(), md.optim.SGD(0.1), device="reference",
            strategy="cudnn",
        )  # fmt: skip


def test_it_is_explained_and_saved(tmp_path: Path) -> None:
    about = context()
    plan = make_plan(optimize(to_graph(Joined(), SHAPE), about), about)
    text = explain(plan, "cuda", "float32")
    assert "one: cudnnBatchNormalizationForwardInference" in text
    write_graph(plan.graph, tmp_path / "graph.safetensors")
    assert str(load_graph(tmp_path / "graph.safetensors")) == str(plan.graph)


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_tensors_are_halves_and_vectors_are_not(precision: str) -> None:
    graph = optimize(step(Joined()), context(precision), verify=True)
    for node in graph.nodes:
        if not isinstance(node.op, LayerFunction):
            continue
        product = node.op.precision == "half"
        for value in (*node.inputs, *node.outputs):
            if product:
                assert value.dtype == precision, node
            elif value.type.rank < 2:
                assert value.dtype == "float32", node
    norms = [n for n in graph.nodes if n.op.name == "cudnnBatchNormalizationForwardTraining"]
    kept = {node.inputs[0].dtype for node in norms[:2]}
    assert kept == {"float32" if precision == "bfloat16" else precision}
