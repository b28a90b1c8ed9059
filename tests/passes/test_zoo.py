"""All passes over the zoo's graphs: legal after every pass, and memory that nothing shares."""

from __future__ import annotations

import numpy as np
import pytest

from minidnn import models
from minidnn.backends.cpu.isa import AVX512
from minidnn.backends.cpu.target import CpuTarget, device_for
from minidnn.fusion.collapse import EVERYWHERE, Strategy
from minidnn.fusion.device import H200
from minidnn.fusion.target import Target
from minidnn.graph.ir import Graph
from minidnn.layers.build import to_graph
from minidnn.memory import lifetimes, plan_memory
from minidnn.passes.infrastructure import Context, Pass
from minidnn.passes.pipeline import PIPELINE, optimize
from tests.sampling import IS_FULL, only

NETWORKS = [name for name in models.list_models() if name != "digits"]


def graph_of(name: str, batch: int = 1) -> Graph:
    network = models.get_model(name)
    return to_graph(network, (batch, *network.input_shape))


#: Networks that have all that the zoo's networks have.
OF_EACH_KIND = (
    *("alexnet", "vgg11_bn", "resnet18", "resnet50", "squeezenet1_1", "densenet121"),
    "inception_v3",
)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", only(OF_EACH_KIND, NETWORKS))
def test_the_checker_and_all_contracts_hold_after_every_pass(name: str) -> None:
    """So it is when ``verify`` says: it raises where either does not."""
    graph = graph_of(name)
    strategies: tuple[Strategy, ...] = ("model",)
    thorough = {"alexnet", "squeezenet1_1", "densenet121"}
    if name in thorough or (IS_FULL and name in ("resnet18", "inception_v3")):
        strategies = EVERYWHERE
    for strategy in strategies:
        seen: list[Pass] = []
        context = Context(strategy=strategy)
        optimize(graph, context, lambda step, *_: seen.append(step), verify=True)  # noqa: B023
        assert seen == list(PIPELINE)


@pytest.mark.parametrize("name", ["densenet121", "inception_v3"])
def test_another_device_gives_other_plans_that_are_legal_too(name: str) -> None:
    optimize(graph_of(name), Context(Target(H200)), verify=True)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("batch", [1, 16])
@pytest.mark.parametrize("name", only(OF_EACH_KIND, NETWORKS))
def test_the_arena_is_near_its_lower_bound_and_nothing_overlaps(name: str, batch: int) -> None:
    context = Context()
    graph = optimize(graph_of(name, batch), context)
    arena = plan_memory(graph, context.annotations)
    assert arena.lower_bound <= arena.bytes <= 1.1 * arena.lower_bound
    found = lifetimes(graph, context.annotations)
    begin = np.array([arena.offsets[life.value] for life in found])
    end = begin + np.array([life.bytes for life in found])
    first = np.array([life.first for life in found])
    last = np.array([life.last for life in found])
    space = (begin[:, None] < end) & (begin < end[:, None])
    time = (first[:, None] <= last) & (first <= last[:, None])
    clash = space & time
    np.fill_diagonal(clash, False)
    assert not clash.any()
    assert (begin % 64 == 0).all() and end.max() == arena.bytes


@pytest.mark.parametrize("name", ["densenet121", "densenet161", "squeezenet1_1", "inception_v3"])
def test_on_the_cpu_no_join_is_copied(name: str) -> None:
    """Those of a dense block, of which each is the first part of the next, least of all."""
    context = Context(CpuTarget(device_for(AVX512, 2), 16))
    graph = optimize(graph_of(name), context)
    joins = [node for node in graph.nodes if node.op.name == "Concat"]
    assert joins and not any(list(context.annotations.copied(join)) for join in joins)
