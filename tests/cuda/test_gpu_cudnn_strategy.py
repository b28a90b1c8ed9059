"""The strategy "cudnn" on a GPU: every function forwards and backwards, and training by them."""

from __future__ import annotations

import warnings
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn import models
from minidnn.backends.cuda.library.support import layer_functions
from minidnn.executable import Executable
from minidnn.fusion.functions import LayerFunction
from minidnn.graph import operators as ops
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Graph
from minidnn.graph.types import rounded_to
from minidnn.layers.build import to_graph
from tests.cases import CASES, Case
from tests.gradients.exact import assert_near_exact, exact_gradients
from tests.gradients.test_cases import SMALL

from .precisions import PRODUCTS, assert_near, expected_of, rounded, tolerance
from .test_cudnn_strategy import Everything

pytestmark = pytest.mark.gpu
PRECISIONS = ("float32", "tf32", "float16", "bfloat16")


def is_known(case: Case) -> bool:
    """Whether cuDNN has a function for some node of a case."""
    nodes = case.graph(case.shapes[-1]).nodes
    return any(not isinstance(layer_functions(node, "float32"), str) for node in nodes)


def compiled(graph: Graph, precision: str, **options: Any) -> Executable:
    given: dict[str, Any] = {"tune": "heuristic", "strategy": "cudnn", **options}
    return md.compile(graph, device="cuda", precision=precision, **given)


def functions_of(exe: Executable) -> set[str]:
    return {node.op.name for node in exe.graph.nodes if isinstance(node.op, LayerFunction)}


def terms_of(graph: Graph) -> float | None:
    """How many roundings of the largest number cuDNN's results may be away where it adds otherwise
    than our kernels: for an ELU ``exp(x)`` and -1; the numbers of a long window, whose roundings
    are as often up as down."""
    for node in graph.nodes:
        if isinstance(node.op, ops.ELU):
            return 2
        if isinstance(node.op, ops.AdaptiveAvgPool2d) and node.op.is_long(node.inputs[0].type):
            return float(np.sqrt(node.inputs[0].type.size / node.output.type.size))
    return None


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("case", [case for case in CASES if is_known(case)], ids=str)
def test_layers(case: Case, precision: str) -> None:
    """Every case that has a function, NaN and infinities included."""
    for what, shapes, given in case.variants("float32"):
        if what.endswith("special") and precision != "float32":
            continue
        graph = case.graph(shapes)
        inputs = rounded(given, precision)
        exe = compiled(graph, precision)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            actual = np.asarray(exe(*inputs), np.float32)
        np.testing.assert_array_equal(np.asarray(exe(*inputs), np.float32), actual)
        if "cudnnPoolingForward" in functions_of(exe):  # where maxima begin
            actual = np.where(actual == np.finfo(np.float32).min, -np.inf, actual)
        label = f"{case} {precision} {what} by {functions_of(exe)}"
        error = tolerance(precision, graph)
        if (terms := terms_of(graph)) is None:
            assert_near(case, precision, error, inputs, actual, label)
            continue
        exact = expected_of(case, inputs, precision)
        finite = np.isfinite(exact)
        np.testing.assert_array_equal(actual[~finite], exact[~finite], label)
        away = np.abs(actual[finite] - exact[finite]).max(initial=0.0)
        size = float(np.abs(inputs[0][np.isfinite(inputs[0])]).max(initial=1.0))
        assert away <= terms * error * size, f"{label}: {away}"


@pytest.mark.parametrize("case", [case for case in SMALL if is_known(case)], ids=str)
def test_gradients(case: Case) -> None:
    graph, arrays, exact = exact_gradients(case)
    exe = compiled(graph, "float32")
    assert_near_exact(graph, exe(*arrays), exact, f" by {functions_of(exe)}")


class Weighted(L.Layer):
    """What a layer gives, and its sum, each element times a given one."""

    def __init__(self, layer: md.Layer) -> None:
        self.layer = layer

    def forward(self, x: Any, given: Any) -> Any:
        y = self.layer(x)
        return (y * given).sum(), y


LAYERS: dict[str, Any] = {
    "relu": lambda: L.ReLU(),
    "relu6": lambda: L.ReLU6(),
    "elu": lambda: L.ELU(0.7),
    "sigmoid": lambda: L.Sigmoid(),
    "tanh": lambda: L.Tanh(),
    "silu": lambda: L.SiLU(),
    "softmax": lambda: L.Softmax(1),
    "log_softmax": lambda: L.LogSoftmax(-1),
    "most": lambda: L.MaxPool2d(3, 2, 1),
    "mean": lambda: L.AvgPool2d((2, 3), (1, 2), (1, 0)),
    "inner mean": lambda: L.AvgPool2d(3, 2, 1, count_include_pad=False),
    "whole mean": lambda: L.AdaptiveAvgPool2d(1),
    "norm": lambda: L.BatchNorm2d(8, eps=1e-3, momentum=0.3),
    "norm by count": lambda: L.BatchNorm2d(8, momentum=None),
    "plain norm": lambda: L.BatchNorm2d(8, affine=False),
    "conv": lambda: L.Conv2d(8, 12, 3, padding=1),
    "strided": lambda: L.Conv2d(8, 16, (3, 2), (2, 1), (1, 0), groups=2, bias=False),
    "depthwise": lambda: L.Conv2d(8, 8, 3, padding=2, dilation=2, groups=8),
    "dropout": lambda: L.Dropout(0.3),
    "dropped channels": lambda: L.Dropout2d(0.4),
    "linear": lambda: L.Sequential(L.Flatten(), L.Linear(8 * 9 * 11, 7)),
    "rows": lambda: L.Sequential(L.Flatten(2), L.Linear(9 * 11, 5)),
    "vectors": lambda: L.Sequential(L.Flatten(), L.BatchNorm1d(8 * 9 * 11)),
}
X = (4, 8, 9, 11)


def drawn(shape: tuple[int, ...]) -> np.ndarray:
    """Numbers that halves have, of which none are equal within a plane."""
    random = np.random.default_rng(len(shape))
    count = int(np.prod(shape[2:]))
    values = np.stack([random.permutation(count) for _ in range(int(np.prod(shape[:2])))])
    return ((values - count // 2) / 32.0).reshape(shape).astype(np.float32) + np.float32(1 / 64)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", LAYERS)
def test_layers_in_training(name: str, precision: str) -> None:
    """Results, gradients for inputs and parameters, and what states become, between convolutions,
    so that tensors are in half precision where there are states, too."""
    norm = "norm" in name
    layer = LAYERS[name]()
    net = L.Sequential(L.Conv2d(8, 8, 1), layer) if norm else layer
    network = Weighted(net).initialize(1)
    x = drawn(X)
    output = to_graph(net, X, mode="train").outputs[0]
    given = rounded_to("bfloat16", np.random.default_rng(2).standard_normal(output.shape))
    graph = to_graph(network, [X, output.shape], mode="train", states=True)
    of = [graph.inputs[0], *(s for s in graph.states if s.name.endswith(("weight", "bias")))]
    whole = md.gradient(graph, graph.outputs[0], of)
    held: dict[str, np.ndarray] = {}
    arrays = [x, np.asarray(given, np.float32)]
    expected = evaluate(whole, arrays, "float64", states=held)
    store = md.Store()
    exe = compiled(whole, precision, **({"store": store} if whole.states else {}))
    assert functions_of(exe), exe.explain()
    found = exe(*arrays)
    error = 64 * PRODUCTS[precision]
    total = float(np.abs(expected[1] * given).sum())
    for value, actual, wanted in zip(whole.outputs, found, expected, strict=True):
        away = np.abs(np.asarray(actual, np.float64) - wanted).max()
        size = np.abs(wanted).max() + (norm and np.abs(given).max() * 8)
        size = total if value is whole.outputs[0] else size
        assert away <= error * size, f"{value!r}: {away} of {size}\n{exe.explain()}"
    for state in whole.updates:
        wanted = held[state.name]
        np.testing.assert_allclose(store[state.name], wanted, error, error * np.abs(wanted).max())


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (5, 1000), (2, 3, 37, 41), (9, 4096)], ids=str)
def test_dropout_takes_over_the_mask(shape: tuple[int, ...], p: float) -> None:
    """It drops what all other strategies drop, run after run."""
    graph = to_graph(L.Dropout(p), shape, mode="train", states=True)
    x = 1.0 + np.random.default_rng(0).random(shape, np.float32)
    both = [compiled(graph, "float32", strategy=s, store=md.Store()) for s in ("cudnn", "layers")]
    assert functions_of(both[0]) == {"cudnnDropoutBackward"}
    for _ in range(3):
        one, other = (exe(x) for exe in both)
        np.testing.assert_array_equal(one == 0, other == 0)
        np.testing.assert_allclose(one, other, 3e-7)


def stepped(net: md.Layer, shape: tuple[int, ...], precision: str, **options: Any) -> Any:
    """Losses and the state after some steps."""
    random = np.random.default_rng(5)
    trainer = md.Trainer(
        net, shape, md.losses.CrossEntropy(), md.optim.SGD(1e-3, momentum=0.9),
        device="cuda", precision=precision, tune="heuristic", seed=3, **options,
    )  # fmt: skip
    losses = []
    for _ in range(4):
        x = random.standard_normal(shape, np.float32)
        losses.append(float(trainer.step(x, random.integers(0, 5, shape[0]))))
    return np.array(losses), trainer.state_dict(), trainer.step_program.explain()


NETWORKS: dict[str, Any] = {
    "everything": (Everything, (8, 3, 13, 12)),
    "resnet18": (lambda: models.resnet18(num_classes=5), (8, 3, 96, 96)),
}

#: Here a ReLU of either may let something through that the other's does not, for a rounding;
#: ``test_gpu_training`` has PyTorch's own error beside both.
DEEP = ("resnet18", "float32")


@pytest.mark.early
@pytest.mark.parametrize(
    ("name", "precision"), [case for case in product(NETWORKS, PRECISIONS) if case != DEEP]
)
def test_training(name: str, precision: str) -> None:
    """As by kernels of ours: the same losses and weights, dropout included."""
    make, shape = NETWORKS[name]
    net = make().initialize(0)
    losses, state, explained = stepped(net, shape, precision, strategy="cudnn")
    others, other, _ = stepped(net, shape, precision)
    assert "cudnnBatchNormalizationBackward" in explained
    error = {"float32": 1e-4, "tf32": 1e-2, "float16": 2e-2, "bfloat16": 1e-1}[precision]
    np.testing.assert_allclose(losses, others, error)
    for key, wanted in other.items():
        if wanted.dtype.kind == "f":
            size = max(float(np.linalg.norm(wanted)), 1e-2)
            away = float(np.linalg.norm(state[key] - wanted)) / size
            assert away <= 10 * error, f"{key}: {away}"


def test_the_same_bits_every_time() -> None:
    net, shape = Everything().initialize(0), NETWORKS["everything"][1]
    one, two = (stepped(net, shape, "float32", strategy="cudnn") for _ in range(2))
    np.testing.assert_array_equal(one[0], two[0])
    for key, array in one[1].items():
        np.testing.assert_array_equal(array, two[1][key])


def test_it_can_be_saved_and_is_bound(tmp_path: Path) -> None:
    import cupy

    shape = (2, 3, 13, 12)
    exe = compiled(to_graph(Everything().initialize(0), shape), "float16")
    exe.save(tmp_path / "net.mdx")
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    y = np.asarray(exe(x))
    np.testing.assert_array_equal(np.asarray(md.load(tmp_path / "net.mdx")(x)), y)
    given = cupy.asarray(x, "float16")
    bound = exe.bind(given)
    bound()
    np.testing.assert_array_equal(bound.outputs[0].get(), y)


@pytest.mark.parametrize("tune", ["quick", "heuristic"])
def test_convolutions_are_measured_or_guessed(tune: str) -> None:
    net = L.Sequential(L.Conv2d(16, 24, 3, padding=1), L.ReLU()).initialize(0)
    exe = compiled(to_graph(net, (2, 16, 15, 15)), "float32", tune=tune, memory_limit=1 << 28)
    assert "cudnnConvolutionForward" in exe.explain(measure=True)
