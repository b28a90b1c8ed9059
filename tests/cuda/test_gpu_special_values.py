"""NaN and infinities at single places reach what reads them, and nothing beside it: every kernel of
contractions, on a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import minidnn as md
from minidnn.backends.cuda.contraction import tune
from minidnn.backends.cuda.contraction.config import CudaAlgorithm
from minidnn.backends.cuda.contraction.problem import ContractionProblem
from minidnn.backends.cuda.machine import Machine, machine_of
from minidnn.executable import Executable
from minidnn.graph.evaluate import evaluate
from minidnn.layers.build import to_graph

from .contractions import TILE, Forgetful
from .gradients import Gradient
from .single import only
from .special import CASES, Single, check, drawn, positive, reciprocal, singles

pytestmark = pytest.mark.gpu


def check_all(gradient: Gradient, monkeypatch: pytest.MonkeyPatch, seed: int = 0) -> None:
    """By each kernel that the machine has for it."""
    monkeypatch.setattr(tune, "_store", Forgetful())
    for single in singles(gradient, machine_of(0)):
        with monkeypatch.context() as patch:
            force(single, patch)
            exe = md.compile(gradient.graph, device="cuda", precision=gradient.precision)
            assert single.kernel.describe(single.choice) in exe.explain(measure=True)

            def computed(given: Sequence[np.ndarray], exe: Executable = exe) -> np.ndarray:
                return np.array(exe(*given), np.float32)

            check(single, computed, seed)


def force(single: Single, patch: pytest.MonkeyPatch) -> None:
    """Contractions are computed by that kernel, by that choice, or not at all."""

    def algorithms(problem: ContractionProblem, machine: Machine) -> list[CudaAlgorithm]:
        return [CudaAlgorithm(single.kernel.name, len(problem.stages))]

    def choices(problem: ContractionProblem, machine: Machine) -> list[int]:
        return [single.choice]

    patch.setattr(tune, "algorithms_for", algorithms)
    patch.setattr(single.kernel, "choices", choices)


@pytest.mark.parametrize("name", CASES)
def test_results_that_are_not_finite(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_all(CASES[name], monkeypatch)


@pytest.mark.parametrize("seed", [pytest.param(i, marks=pytest.mark.full) for i in range(90)])
def test_any_geometry(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check_all(drawn(seed), monkeypatch, seed)


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_what_comes_before_makes_nothing_of_padding(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """24 channels are no whole slab of products."""
    only(monkeypatch, lambda algorithm: algorithm.core == TILE.name)
    net, x = reciprocal(24), positive()
    (expected,) = evaluate(to_graph(net, x.shape), [x], "float64")
    exe = md.compile(net, x.shape, device="cuda", precision=precision)
    assert TILE.name in exe.explain(measure=True)
    np.testing.assert_allclose(np.asarray(exe(x), np.float64), expected, 0, 2.0**-4)
