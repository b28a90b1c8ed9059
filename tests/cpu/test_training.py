"""Gradients and training steps on the CPU engine: forward, backward and update as one plan."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.graph import operators as ops
from minidnn.graph.expression import argument
from minidnn.graph.ir import Graph, Node, State, Value
from minidnn.graph.trace import apply, tracing
from minidnn.graph.types import TensorType
from minidnn.layers.build import to_graph
from tests.gradients.losses import with_loss

BATCH, CLASSES, RATE, STEPS = 8, 5, 0.1, 20


@pytest.mark.parametrize(
    ("shape", "weight", "options"),
    [
        ((2, 8, 11, 9), (16, 8, 3, 3), {"padding": ((1, 1), (0, 2))}),
        ((2, 8, 9, 8), (12, 4, 3, 3), {"groups": 2, "stride": (2, 1), "dilation": (1, 2)}),
        ((3, 16, 5, 5), (24, 16, 1, 1), {}),
    ],
)
@pytest.mark.together
def test_both_gradients_of_a_convolution(
    shape: tuple[int, ...], weight: tuple[int, ...], options: dict[str, Any]
) -> None:
    with tracing("g") as trace:
        x, w = trace.input(TensorType(shape), "x"), trace.input(TensorType(weight), "w")
        y = apply(ops.Conv2d(**options), x, w)
    graph = with_loss(trace.graph([y]))
    graph = md.gradient(graph, loss="loss", of=["x", "w"])
    random = np.random.default_rng(0)
    given = [random.standard_normal(v.shape, np.float32) for v in graph.inputs]
    right = md.compile(graph, device="reference", precision="float64")(*given)
    for found, expected in zip(md.compile(graph, device="cpu")(*given), right, strict=True):
        np.testing.assert_allclose(found, expected, 1e-4, 1e-4)


def network() -> L.Sequential:
    net = L.Sequential(
        *(L.Conv2d(3, 8, 3, padding=1), L.BatchNorm2d(8), L.ReLU(), L.MaxPool2d(2)),
        *(L.Conv2d(8, 12, 3, padding=1, stride=2), L.ReLU(), L.Flatten()),
        L.Linear(48, CLASSES),
    )
    net.initialize(4)
    return net


def training_step(net: L.Sequential) -> Graph:
    """The loss, the cross-entropy with targets that are given as probabilities; parameters descend
    along its gradient."""
    graph = to_graph(net, (BATCH, 3, 8, 8), states=True)
    target = Value(TensorType((BATCH, CLASSES)), "target")
    logs = Node(ops.LogSoftmax(1), graph.outputs, "logs")
    product = Node(
        ops.Formula(argument(0) * argument(1) * (-1 / BATCH), 2), (logs.output, target), "product"
    )
    total = Node(ops.Reduce("sum", (0, 1)), product.outputs, "loss")
    nodes = (*graph.nodes, logs, product, total)
    graph = Graph((*graph.inputs, target), total.outputs, nodes, "step")
    trained = [state for state in graph.states if ".running_" not in state.name]
    graph = md.gradient(graph, "loss", of=trained)
    descend = ops.Formula(argument(0) - RATE * argument(1), 2)
    steps = [
        Node(descend, (state, gradient), f"{state.name}.next")
        for state, gradient in zip(trained, graph.outputs[1:], strict=True)
    ]
    updates: dict[State, Any] = {s: n.output for s, n in zip(trained, steps, strict=True)}
    return Graph(graph.inputs, graph.outputs[:1], (*graph.nodes, *steps), "step", updates=updates)


def batches() -> list[list[np.ndarray]]:
    """Two batches in turn."""
    random = np.random.default_rng(6)
    images = random.standard_normal((2, BATCH, 3, 8, 8), np.float32)
    targets = np.eye(CLASSES, dtype=np.float32)[random.integers(CLASSES, size=(2, BATCH))]
    return [[images[i % 2], targets[i % 2]] for i in range(STEPS)]


def trained(**options: Any) -> dict[str, np.ndarray]:
    """The losses of all steps, and what the parameters are afterwards."""
    step = md.compile(training_step(network()), **options)
    losses = np.array([step(*batch) for batch in batches()])
    assert step.store is not None
    return {"losses": losses, **{name: array.copy() for name, array in step.store.items()}}


@pytest.mark.together(2)
def test_a_training_step_is_that_of_the_reference_and_of_torch() -> None:
    found = trained(device="cpu", threads=2)
    assert found["losses"][-1] < 0.7 * found["losses"][0]
    for others in (trained(device="reference", precision="float64"), trained_by_torch()):
        for name, array in others.items():
            np.testing.assert_allclose(found[name], array, 1e-4, 1e-5, err_msg=name)


def test_bits_do_not_depend_on_threads() -> None:
    one, two = trained(device="cpu", threads=1), trained(device="cpu", threads=2, guarded=True)
    for name, array in one.items():
        np.testing.assert_array_equal(array, two[name], err_msg=name)


def trained_by_torch() -> dict[str, np.ndarray]:
    torch = pytest.importorskip("torch")
    nn = torch.nn
    net = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 12, 3, padding=1, stride=2), nn.ReLU(), nn.Flatten()),
        nn.Linear(48, CLASSES),
    )
    start = {name: torch.tensor(np.array(array)) for name, array in network().state_dict().items()}
    net.load_state_dict(start, strict=False)
    net.eval().double()
    optimizer = torch.optim.SGD(net.parameters(), RATE)
    losses = []
    for images, targets in batches():
        x, target = torch.tensor(images).double(), torch.tensor(targets).double()
        loss = nn.functional.cross_entropy(net(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    arrays = {name: each.detach().numpy() for name, each in net.named_parameters()}
    return {"losses": np.array(losses), **arrays}


def dropping() -> L.Sequential:
    net = L.Sequential(
        *(L.Conv2d(3, 8, 3, padding=1), L.ReLU(), L.Dropout2d(0.3), L.Conv2d(8, 4, 3)),
        *(L.Flatten(), L.Dropout(0.5), L.Linear(144, CLASSES)),
    )
    net.initialize(4)
    return net


@pytest.mark.together
def test_masks_of_dropout_are_those_of_the_reference_in_each_step() -> None:
    random = np.random.default_rng(2)
    x = random.standard_normal((BATCH, 3, 8, 8), np.float32)
    target = random.integers(0, CLASSES, BATCH)
    losses, stores = [], []
    for options in ({"device": "cpu", "threads": 2}, {"device": "reference"}):
        trainer = md.Trainer(
            dropping(),
            x.shape,
            md.losses.CrossEntropy(),
            md.optim.SGD(0.0),  # losses differ by masks alone
            seed=7,
            **options,
        )
        losses.append([float(trainer.step(x, target)) for _ in range(5)])
        stores.append(trainer.store)
    assert len(set(losses[0])) == 5
    np.testing.assert_allclose(losses[0], losses[1], 1e-5)
    assert stores[0]["random.step"] == stores[1]["random.step"] == 5
