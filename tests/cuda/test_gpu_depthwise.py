"""Depthwise convolutions by our kernel on a GPU: every strip, every precision, large sizes."""

from __future__ import annotations

import re

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cuda.contraction import depthwise, tune
from minidnn.backends.cuda.contraction.config import CudaAlgorithm
from minidnn.backends.cuda.contraction.problem import ContractionProblem
from minidnn.backends.cuda.machine import Machine
from minidnn.graph.evaluate import evaluate
from minidnn.graph.types import rounded_to
from minidnn.layers.build import to_graph
from tests.cuda.contractions import DEPTHWISE, Forgetful, draw_weights
from tests.cuda.test_depthwise import DTYPES, NETS, ROUNDING, layer

pytestmark = pytest.mark.gpu


@pytest.fixture(params=[0, 1, 2, -1])
def only_depthwise(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions are computed by this kernel or not at all, by one of its strips."""

    def algorithms(problem: ContractionProblem, machine: Machine) -> list[CudaAlgorithm]:
        reason = DEPTHWISE.why_not(problem, machine)
        assert reason is None, reason
        return [CudaAlgorithm(DEPTHWISE.name, len(problem.stages))]

    def choices(problem: ContractionProblem, machine: Machine) -> list[int]:
        found = depthwise.strips_for(problem, machine)
        return [found[request.param % len(found)]]

    monkeypatch.setattr(tune, "algorithms_for", algorithms)
    monkeypatch.setattr(DEPTHWISE, "choices", choices)
    monkeypatch.setattr(tune, "_store", Forgetful())


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("name", NETS)
def test_numbers(name: str, precision: str, only_depthwise: None) -> None:
    make, shape = NETS[name]
    check(make(), shape, precision)


LARGE = {
    "3x3": (lambda: L.Sequential(layer(144, 3, 1, 1), L.ReLU6()), (32, 144, 57, 55)),
    "3x3-stride": (lambda: L.Sequential(layer(96, 3, 2, 1), L.SiLU()), (40, 96, 112, 113)),
    "5x5": (lambda: L.Sequential(layer(672, 5, 1, 2), L.Hardswish()), (33, 672, 14, 14)),
    "7x7": (lambda: layer(96, 7, 1, 3), (32, 96, 56, 56)),
    "small": (lambda: layer(960, 3, 1, 1), (128, 960, 7, 7)),
}


@pytest.mark.parametrize("name", LARGE)
def test_large(name: str, only_depthwise: None) -> None:
    make, shape = LARGE[name]
    check(make(), shape, "float16")


def check(net: md.Layer, shape: tuple[int, ...], precision: str) -> None:
    """Holds the network to float64, in which its first and last images are computed."""
    random, dtype = np.random.default_rng(0), DTYPES[precision]
    draw_weights(net, random)
    state = net.state_dict().items()
    net.load_state_dict({key: rounded_to(dtype, array).astype("f") for key, array in state})
    x = rounded_to(dtype, random.standard_normal(shape).astype(np.float32)).astype(np.float32)
    few = np.unique([0, shape[0] - 1])
    (expected,) = evaluate(to_graph(net, (len(few), *shape[1:])), [x[few]], "float64")
    exe = md.compile(net, shape, device="cuda", precision=precision)
    assert re.search(r"depthwise \d", exe.explain(measure=True))
    y = np.asarray(exe(x), np.float64)
    allowed = ROUNDING[precision] * np.abs(expected) + 2.0**-22 * 7 * 4
    assert (np.abs(y[few] - expected) <= allowed).all()
    assert np.isfinite(y).all()
    np.testing.assert_array_equal(np.asarray(exe(x), np.float64), y)
