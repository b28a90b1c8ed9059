"""rederive: element-wise values that the backward pass reads are computed again, with the same
bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Graph
from minidnn.layers.build import to_graph
from minidnn.models import get_model
from minidnn.passes.infrastructure import Context
from minidnn.passes.mix_precision import mixed
from minidnn.passes.pipeline import optimize
from minidnn.passes.rederive import REDERIVE
from minidnn.report.training import kept_values
from minidnn.runtime.plan import Plan, make_plan
from minidnn.training.step import Objective
from tests.passes.build import inputs_of, run
from tests.passes.test_recompute import network, step

SHAPE = (4, 3, 14, 14)


def planned(net: L.Layer, shape: tuple[int, ...] = SHAPE) -> Plan:
    context = Context(stored=True)
    return make_plan(optimize(step(net, shape), context, verify=True), context)


def kept(net: L.Layer) -> list[str]:
    """The layers that compute each plane that is kept."""
    return [
        " ".join(each.layers)
        for each in kept_values(planned(net))
        if each.value.type.rank == 4 and each.value.shape[2] > 1
    ]


def head(channels: int) -> list[L.Layer]:
    return [L.AdaptiveAvgPool2d((1, 1)), L.Flatten(), L.Linear(channels, 4)]


def block(channels: int, before: int = 3) -> list[L.Layer]:
    conv = L.Conv2d(before, channels, 3, bias=False)
    return [conv, L.BatchNorm2d(channels), L.ReLU()]


def test_of_a_block_what_two_convolutions_are_computed_by_is_kept() -> None:
    net = L.Sequential(*block(8), *block(8, 8), *head(8))
    # A normalization's gradient reads what it normalized; that of a ReLU reads its result, but of
    # the second one that is not kept for a convolution, and is computed again.
    assert kept(net) == ["0", "1 2", "3"]


def test_what_a_window_reads_is_computed_again_for_its_gradient() -> None:
    net = L.Sequential(*block(8), L.MaxPool2d(3, 2), *block(8, 8), *head(8))
    # What the window gives is kept, and where its maxima are.
    assert kept(net) == ["0", "1 2 3", "1 2 3", "4"]


def test_results_and_what_sums_read_are_kept() -> None:
    class Measured(L.Layer):
        def forward(self, x: Any) -> Any:
            return np.exp(x).reshape((4, 8, 144, 1)) * 2.0

    net = L.Sequential(L.Conv2d(3, 8, 3), Measured(), *head(8))
    graph = step(net, SHAPE)
    context = Context()
    run(graph, REDERIVE, context=context)
    assert [r.description for r in context.rewrites] == []  # a reshape reads the exponential


def states_after(graph: Graph) -> dict[str, np.ndarray]:
    states: dict[str, np.ndarray] = {}
    inputs = [np.abs(x) if x.dtype.kind == "f" else x * 0 for x in inputs_of(graph)]
    evaluate(graph, inputs, states=states)
    return states


def test_the_same_bits_and_names() -> None:
    graph = step(network(), (4, 3, 12, 12))
    context = Context()
    result = run(graph, REDERIVE, context=context)
    assert context.rewrites
    assert all(str(r).endswith(" again where it is read") for r in context.rewrites)
    before, after = states_after(graph), states_after(result)
    assert before.keys() == after.keys()
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array, err_msg=name)


def test_gradients_that_are_converted_are_no_forward_pass() -> None:
    """Those in half precision are results in float32."""
    net = L.Sequential(*block(8), *block(8, 8), *head(8))
    graph = Objective(md.losses.CrossEntropy(), {}).applied(net, [SHAPE], "train")
    names = [name for name, _ in net.trainable_parameters()]
    graph, found = md.gradient(graph, graph.outputs[0], of=names), []
    for each in (graph, mixed(graph, "bfloat16")):
        context = Context()
        run(each, REDERIVE, context=context)
        found.append([rewrite.description for rewrite in context.rewrites])
    assert found[0] and found[0] == found[1]


def test_fuel_and_strategies_without_stacks_leave_it() -> None:
    graph = step(network(), (4, 3, 12, 12))
    assert run(graph, REDERIVE, context=Context(fuel=0)) is graph
    assert run(graph, REDERIVE, context=Context(strategy="layers")) is graph
    some = run(graph, REDERIVE, context=Context(fuel=1))
    assert len(graph.nodes) < len(some.nodes) < len(run(graph, REDERIVE).nodes)


def test_a_graph_without_updates_has_no_backward_pass() -> None:
    graph = to_graph(network(), (4, 3, 12, 12), mode="train")
    assert run(graph, REDERIVE) is graph


def test_explain_tells_of_it() -> None:
    trainer = md.Trainer(
        network(), (4, 3, 12, 12), md.losses.CrossEntropy(), md.optim.SGD(0.1), device="reference"
    )
    text = trainer.explain()
    assert "values are computed again where they are read" in text
    assert "nothing is computed again" not in text


@pytest.mark.parametrize(
    "name",
    [
        "resnet18",
        *(pytest.param(n, marks=pytest.mark.full) for n in ("resnet50", "densenet121")),
        *(pytest.param(n, marks=pytest.mark.full) for n in ("vgg11_bn", "squeezenet1_1")),
    ],
)
def test_a_step_has_no_more_in_use_at_once_than_pytorchs(name: str) -> None:
    pytest.importorskip("torch")
    from minidnn.backends.cpu.backend import CpuBackend
    from tests.oracles.torch_memory import peak_of_step

    shape = (32, 3, 224, 224)
    context = Context(CpuBackend().target("float32", {"threads": 2}), stored=True)
    plan = make_plan(optimize(step(get_model(name), shape), context), context)
    # Weights, statistics and momentum are on neither side.
    assert plan.arena.bytes + 2 * plan.group_arena.bytes <= peak_of_step(name, shape)
