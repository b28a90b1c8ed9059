"""Putting layers together: containers, functional models, one's own layers, expressions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn import scalar
from minidnn.graph.checker import check
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Graph
from minidnn.layers.build import to_graph

X = np.array([[-2.0, -0.5, 0.0, 3.0]])


def run(network: L.Layer, *arrays: np.ndarray, shapes: Any = None) -> tuple[np.ndarray, ...]:
    graph = to_graph(network, shapes or [array.shape for array in arrays])
    check(graph)
    return evaluate(graph, arrays, dtype="float64")


def names(graph: Graph) -> list[str]:
    return [node.name for node in graph.nodes]


# Containers


def test_sequential() -> None:
    net = L.Sequential(L.ReLU(), L.Sequential(L.Tanh(), L.Sigmoid()))
    assert names(to_graph(net, (1, 4))) == ["0", "1.0", "1.1"]
    (out,) = run(net, X)
    np.testing.assert_allclose(out, 1 / (1 + np.exp(-np.tanh(np.maximum(X, 0)))))
    assert len(net) == 2
    assert net[0] is next(iter(net))
    assert net[-1] is net[1]


@pytest.mark.parametrize("kind", [dict, OrderedDict])
def test_sequential_of_named_layers(kind: Callable[..., Any]) -> None:
    net = L.Sequential(kind([("act", L.ReLU()), ("fc", L.Linear(4, 1))]))
    assert list(net.state_dict()) == ["fc.weight", "fc.bias"]
    assert names(to_graph(net, (1, 4))) == ["act", "fc"]


def test_an_empty_sequential_gives_its_input() -> None:
    graph = to_graph(L.Sequential(), (1, 4))
    assert graph.nodes == ()
    assert graph.outputs == graph.inputs


def test_layer_list() -> None:
    class Dense(L.Layer):
        def __init__(self) -> None:
            self.layers = L.LayerList(L.Linear(4, 2)).append(L.Linear(6, 3))

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = L.Concat()(x, layer(x))
            return x

    net = Dense()
    assert list(net.state_dict()) == [
        f"layers.{i}.{name}" for i in range(2) for name in ("weight", "bias")
    ]
    graph = to_graph(net, (3, 4))
    assert graph.outputs[0].shape == (3, 9)
    assert [len(L.LayerList()), len(net.layers)] == [0, 2]


# Functional models


def test_model() -> None:
    x = md.Input((3, 8, 8))
    conv = L.Conv2d(3, 4, 3, padding=1)
    y = L.ReLU()(conv(x))
    assert (y.shape, y.dtype) == ((4, 8, 8), "float32")
    net = md.Model(x, y)
    assert list(net.state_dict()) == ["conv2d.weight", "conv2d.bias"]
    for batch in (1, 5):
        graph = to_graph(net, (batch, 3, 8, 8))
        check(graph)
        assert names(graph) == ["conv2d", "relu"]
        assert graph.outputs[0].shape == (batch, 4, 8, 8)


def test_models_number_or_name_their_layers() -> None:
    x = md.Input((4,))
    y = L.Linear(4, 4)(x)
    y = L.Linear(4, 4).named("middle")(y)
    y = L.Linear(4, 4)(y)
    net = md.Model(x, y)
    assert [name for name, _ in net.children()] == ["linear", "middle", "linear_1"]


def test_several_inputs_and_outputs() -> None:
    a, b = md.Input((4,)), md.Input((4,))
    net = md.Model([a, b], (a + b, L.ReLU()(b)))
    total, positive = run(net, X, -X)
    np.testing.assert_array_equal(total, 0 * X)
    np.testing.assert_array_equal(positive, np.maximum(-X, 0))
    graph = to_graph(net, [(1, 4), (1, 4)])
    assert [value.name for value in graph.inputs] == ["input0", "input1"]
    assert graph.output_names is None


def test_inputs_and_outputs_by_name() -> None:
    image, mask = md.Input((1, 4, 4)), md.Input((1, 1, 4))
    net = md.Model({"image": image, "mask": mask}, {"product": image * mask, "image": image})
    graph = to_graph(net, {"mask": (2, 1, 1, 4), "image": (2, 1, 4, 4)})
    assert [value.name for value in graph.inputs] == ["image", "mask"]
    assert graph.output_names == ("product", "image")
    assert graph.outputs[1] is graph.inputs[0]


def test_a_model_is_a_layer() -> None:
    x = md.Input((4,))
    inner = md.Model(x, {"double": x * 2, "half": x / 2})
    y = md.Input((4,))
    results = inner(y)
    assert list(results) == ["double", "half"]
    net = md.Model(y, results["double"] - results["half"])
    np.testing.assert_allclose(run(net, X)[0], 1.5 * X)
    (out,) = run(L.Sequential(md.Model(x, L.Tanh()(x)), L.ReLU()), X)
    np.testing.assert_allclose(out, np.maximum(np.tanh(X), 0))


def test_a_part_of_a_model() -> None:
    x = md.Input((4,))
    hidden = L.Linear(4, 2)(x)
    out = L.Linear(2, 1)(L.ReLU()(hidden))
    assert names(to_graph(md.Model(x, hidden), (1, 4))) == ["linear"]
    assert names(to_graph(md.Model(hidden, out), (1, 2))) == ["relu", "linear"]


def test_a_shared_layer_in_a_model() -> None:
    a, b = md.Input((4,)), md.Input((4,))
    twin = L.Linear(4, 2)
    net = md.Model([a, b], twin(a) - twin(b))
    assert list(net.state_dict()) == ["linear.weight", "linear.bias"]
    np.testing.assert_allclose(run(net, X, X)[0], np.zeros((1, 2)))


def test_layers_with_several_results() -> None:
    class Split(L.Layer):
        def forward(self, x: Any) -> Any:
            return L.ReLU()(x), L.Tanh()(x)

    x = md.Input((4,))
    first, second = Split()(x)
    np.testing.assert_allclose(
        run(md.Model(x, first * second), X)[0], np.maximum(X, 0) * np.tanh(X)
    )
    assert len(run(Split(), X)) == 2
    graph = to_graph(L.Sequential(Split()), (1, 4))
    assert names(graph) == ["0.relu", "0.tanh"]


def test_other_dtypes() -> None:
    x = md.Input((4,), dtype="float64")
    graph = to_graph(md.Model(x, L.Flatten()(L.ReLU()(x))), (2, 4))
    assert {value.dtype for value in graph.values} == {"float64"}
    numbers = md.Input((2, 2), dtype="int64")
    assert L.Flatten()(numbers).dtype == "int64"
    assert to_graph(L.ReLU(), (2, 4), "float16").outputs[0].dtype == "float16"


# Arithmetic


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: a + b,
        lambda a, b: a - b,
        lambda a, b: a * b,
        lambda a, b: a / b,
        lambda a, b: a + 2,
        lambda a, b: 2 + a,
        lambda a, b: a - 2,
        lambda a, b: 2 - a,
        lambda a, b: a * 0.5,
        lambda a, b: 0.5 * a,
        lambda a, b: a / 4,
        lambda a, b: 4 / b,
        lambda a, b: -a,
        lambda a, b: a**2,
        lambda a, b: b**-1.5,
        lambda a, b: np.float32(0.5) * a,
        lambda a, b: a + np.int64(3),
        lambda a, b: np.float64(2) / b - a,
        lambda a, b: (1 - a) * (a - 1) + b,
    ],
)
def test_arithmetic(function: Callable[[Any, Any], Any]) -> None:
    class Written(L.Layer):
        def forward(self, a: Any, b: Any) -> Any:
            return function(a, b)

    other = np.array([[1.0, 2.0, 0.5, 4.0]])
    expected = function(X, other)
    np.testing.assert_allclose(run(Written(), X, other)[0], expected, rtol=1e-15)
    x, y = md.Input((4,)), md.Input((4,))
    # Both inputs must be used.
    model = md.Model([x, y], (function(x, y), x, y))
    np.testing.assert_allclose(run(model, X, other)[0], expected, rtol=1e-15)


# One's own layers


class Residual(L.Layer):
    def __init__(self, body: L.Layer) -> None:
        self.body = body

    def forward(self, x: Any) -> Any:
        return x + self.body(x)


def test_own_layers_nest() -> None:
    net = L.Sequential(Residual(Residual(L.Tanh())), L.ReLU())
    assert names(to_graph(net, (1, 4))) == ["0.body.body", "0.body.add", "0.add", "1"]
    np.testing.assert_allclose(run(net, X)[0], np.maximum(2 * X + np.tanh(X), 0))
    y = md.Input((4,))
    np.testing.assert_allclose(run(md.Model(y, Residual(L.Tanh())(y)), X)[0], X + np.tanh(X))


def test_layers_made_inside_forward() -> None:
    class Made(L.Layer):
        def forward(self, x: Any) -> Any:
            return L.Flatten()(L.AvgPool2d(2)(L.ReLU()(x)))

    graph = to_graph(L.Sequential(Made(), L.Identity()), (2, 3, 4, 4))
    assert graph.outputs[0].shape == (2, 12)
    x = md.Input((3, 4, 4))
    assert Made()(x).shape == (12,)


def test_own_parameters() -> None:
    class Scale(L.Layer):
        def __init__(self) -> None:
            self.factor = L.Parameter((4,), lambda random, shape: np.full(shape, 3, np.float32))

        def forward(self, x: Any) -> Any:
            return x * self.parameter("factor")

    assert list(L.Sequential(Scale()).state_dict()) == ["0.factor"]
    np.testing.assert_array_equal(run(L.Sequential(Scale()), X)[0], 3 * X)
    np.testing.assert_array_equal(run(Scale(), X)[0], 3 * X)


# Element-wise layers


def test_elementwise() -> None:
    mish = L.Elementwise(lambda x: x * scalar.tanh(scalar.log1p(scalar.exp(x))))
    np.testing.assert_allclose(run(mish, X)[0], X * np.tanh(np.log1p(np.exp(X))), rtol=1e-14)
    (node,) = to_graph(mish, (1, 4)).nodes
    assert node.op.kind == "elementwise"


def test_elementwise_with_parameters() -> None:
    def affine(x: Any, scale: Any, shift: Any) -> Any:
        return x * scale + shift

    layer = L.Elementwise(affine, scale=[1, 2, 3, 4], shift=np.zeros(4))
    assert list(layer.state_dict()) == ["scale", "shift"]
    np.testing.assert_array_equal(run(layer, X)[0], X * [1, 2, 3, 4])
    layer.load_state_dict({"scale": np.ones(4), "shift": np.full(4, 5.0)})
    np.testing.assert_array_equal(run(L.Sequential(layer), X)[0], X + 5)
    # Given again by a seed: what was given at first.
    layer.initialize(9)
    np.testing.assert_array_equal(run(layer, X)[0], X * [1, 2, 3, 4])


def test_elementwise_of_two_inputs_and_an_image() -> None:
    gate = L.Elementwise(
        lambda a, b, bias: scalar.where(a > b, a, b + bias), name="gate", bias=[10.0, 20.0]
    )
    a, b = np.zeros((1, 2, 2, 2)), np.full((1, 2, 1, 1), 1.0)
    expected = np.broadcast_to([[[[11.0]], [[21.0]]]], (1, 2, 2, 2))
    np.testing.assert_array_equal(run(gate, a, b)[0], expected)
    assert names(to_graph(gate, [(1, 2, 2, 2)] * 2)) == ["gate"]


def test_elementwise_keeps_defaults_and_takes_comparisons_and_numbers() -> None:
    leaky = L.Elementwise(lambda x, slope=0.5: scalar.where(x > 0, x, slope * x))
    np.testing.assert_array_equal(run(leaky, X)[0], np.where(X > 0, X, 0.5 * X))
    step = L.Elementwise(lambda x: x >= 0)
    np.testing.assert_array_equal(run(step, X)[0], X >= 0)
    seven = L.Elementwise(lambda x: 7)
    np.testing.assert_array_equal(run(seven, X)[0], np.full((1, 4), 7))


# Text


@pytest.mark.parametrize(
    ("layer", "text"),
    [
        (L.ReLU(inplace=True), "ReLU()"),
        (L.LeakyReLU(0.2), "LeakyReLU(negative_slope=0.2)"),
        (L.GELU("tanh"), "GELU(approximate=tanh)"),
        (L.Dropout(), "Dropout(p=0.5)"),
        (L.Conv2d(3, 4, 3), "Conv2d(3, 4, kernel_size=(3, 3))"),
        (
            L.Conv2d(4, 8, (3, 1), 2, ((0, 1), (2, 3)), groups=2, bias=False),
            "Conv2d(4, 8, kernel_size=(3, 1), stride=(2, 2), padding=((0, 1), (2, 3)), groups=2, "
            "bias=False)",
        ),
        (L.Linear(3, 4, bias=False), "Linear(3, 4, bias=False)"),
        (L.BatchNorm2d(4, affine=False), "BatchNorm2d(4, eps=1e-05, affine=False)"),
        (L.MaxPool2d(3, 2, 1), "MaxPool2d(kernel_size=(3, 3), stride=(2, 2), padding=(1, 1))"),
        (L.AdaptiveAvgPool2d((1, None)), "AdaptiveAvgPool2d(output_size=(1, None))"),
        (L.Reshape(2, -1), "Reshape(shape=(2, -1))"),
        (L.Elementwise(lambda x: x + 1), "Elementwise(x0 + 1.0)"),
        (L.Sequential(), "Sequential()"),
        (
            Residual(L.Sequential({"act": L.ReLU(), "fc": L.Linear(1, 1)})),
            "Residual(\n  (body): Sequential(\n    (act): ReLU()\n    (fc): Linear(1, 1)\n  )\n)",
        ),
        (md.Input((3, 4), name="image"), "Symbol(image: float32[batch, 3, 4])"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_repr(layer: Any, text: str) -> None:
    assert repr(layer) == text
