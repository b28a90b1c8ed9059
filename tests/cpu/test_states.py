"""States on the CPU engine: several runs, weights that are packed in every run, shared stores."""

from __future__ import annotations

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cpu.isa import Isa
from tests.states.build import BUILDERS, Build, graph_of, running_mean
from tests.states.test_programs import random_graph, runs_like_the_evaluator


@pytest.mark.parametrize("build", BUILDERS)
@pytest.mark.together
def test_several_runs(build: Build) -> None:
    runs_like_the_evaluator(graph_of(build), "cpu", 1e-5)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.together
def test_random_graphs(seed: int) -> None:
    graph = random_graph(seed)
    runs_like_the_evaluator(graph, "cpu", 1e-5, store=md.Store(), guarded=bool(seed % 2))


def network() -> L.Sequential:
    """Contractions by all algorithms and ways to pack, with what they absorb, and vectors over
    channels in sequences."""
    net = L.Sequential(
        *(L.Conv2d(3, 20, 3, padding=1), L.SiLU(), L.MaxPool2d(2)),
        *(L.Conv2d(20, 32, 3, padding=1, bias=False), L.BatchNorm2d(32), L.ReLU()),
        *(L.AvgPool2d(3, 1), L.BatchNorm2d(32), L.MaxPool2d(2)),
        *(L.Conv2d(32, 48, 1), L.Conv2d(48, 48, 3, padding=2, dilation=2, groups=48)),
        *(L.BatchNorm2d(48), L.Conv2d(48, 40, 3, padding=1, groups=4)),
        *(L.Flatten(), L.LayerNorm((640,)), L.Linear(640, 10), L.Softmax(-1)),
    )
    net.initialize(2)
    return net


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.together(2)
def test_weights_that_are_states(isa: Isa, batch: int) -> None:
    """They are those of the store in every run, also where other sizes were compiled for it."""
    x = np.random.default_rng(0).standard_normal((batch, 3, 21, 21), np.float32)
    net, store = network(), md.Store()
    md.compile(net, (2, 3, 21, 21), device="cpu", isa=isa.name, store=store)
    exe = md.compile(
        net, x.shape, device="cpu", isa=isa.name, store=store, guarded=True, threads=batch
    )
    for turn in range(2):
        right = md.compile(net, x.shape, device="reference", precision="float64")(x)
        np.testing.assert_allclose(exe(x), right, 1e-5, 1e-6)
        for name in store:
            store[name] = store[name] * np.float32(1.5 - turn)
        net.load_state_dict({**net.state_dict(), **store})


@pytest.mark.together(2)
def test_packing_changes_no_bit() -> None:
    layers = [each for each in network() if not isinstance(each, L.BatchNorm2d)]
    net, shape = L.Sequential(*layers), (3, 3, 21, 21)
    x = np.random.default_rng(1).standard_normal(shape, np.float32)
    exe = md.compile(net, shape, device="cpu", store=md.Store())
    np.testing.assert_array_equal(exe(x), md.compile(net, shape, device="cpu")(x))


def test_measuring_leaves_the_store_as_it_was() -> None:
    graph = graph_of(running_mean)
    exe = md.compile(graph, device="cpu", tune="quick")
    assert exe.store is not None
    assert int(exe.store["count"]) == int(graph.states[1].data)
    exe.profile(np.ones((2, 3, 4, 5), np.float32))
    assert int(exe.store["count"]) == int(graph.states[1].data)
