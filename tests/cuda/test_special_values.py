"""NaN and infinities at single places reach what reads them, and nothing beside it: every kernel of
contractions, in the emulator."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cuda.contraction.kernel import ContractionKernel
from minidnn.backends.cuda.contraction.kernel_registry import KERNELS
from minidnn.backends.cuda.contraction.problem import ContractionProblem
from minidnn.graph.evaluate import evaluate
from minidnn.graph.types import rounded_to
from minidnn.layers.build import to_graph

from .contractions import DIRECT, EPSILON, STREAM, TILE
from .emulator.run import Emulated
from .gradients import Gradient
from .lowered import FEW, EmulatedProgram, Kernel, by_choice
from .single import emulated
from .special import CASES, OF_BYTES, SPREADS, check, drawn, positive, reciprocal, singles

SIMILAR = {"even chunks", "even columns", "column", "steps", "image, even"}
"""Cases of kernels that others run, too."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of compiled kernels: one text serves several tests."""
    return tmp_path_factory.mktemp("emulated")


def check_all(gradient: Gradient, folder: Path, seed: int = 0, every: bool = False) -> None:
    found = singles(gradient, FEW, every)
    sources = [launch.source for single in found for launch in single.launches]
    kernels = Emulated(sources, folder)
    for single in found:
        check(single, partial(single.emulated, kernels=kernels), seed)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.full if n in SIMILAR else ()) for n in CASES]
)
def test_results_that_are_not_finite(name: str, folder: Path) -> None:
    check_all(CASES[name], folder)


def test_every_kernel_is_checked() -> None:
    cases = [one for name, one in CASES.items() if name not in SIMILAR]
    checked = {single.kernel.name for one in cases for single in singles(one, FEW)}
    assert checked == set(KERNELS) - {SPREADS, OF_BYTES}


def shifted(channels: int) -> md.Layer:
    """A normalization whose first channel is infinite."""
    net = L.Sequential(L.BatchNorm2d(channels), L.ReLU(), L.Conv2d(channels, 16, 1))
    shift = np.zeros(channels, np.float32)
    shift[0] = np.inf
    net.load_state_dict({"0.bias": shift}, strict=False)
    return net


BEFORE = [
    *((TILE, "float16", make) for make in (reciprocal, shifted)),
    (STREAM, "bfloat16", shifted),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("core", "precision", "make"),
    BEFORE,
    ids=[f"{core.name}-{f.__name__}" for core, _, f in BEFORE],
)
def test_what_comes_before_makes_nothing_of_padding(
    core: ContractionKernel, precision: str, make: Callable[[int], md.Layer], tmp_path: Path
) -> None:
    """24 channels are no whole slab of products."""

    def kernel(problem: ContractionProblem) -> Kernel:
        assert problem.before and core.why_not(problem, FEW) is None
        return by_choice(core, problem, core.choices(problem, FEW)[0])

    net, x = make(24), rounded_to(precision, positive()).astype(np.float32)
    (expected,) = evaluate(to_graph(net, x.shape), [x], "float64")
    found = EmulatedProgram(net, x.shape, precision, kernel, tmp_path)(x)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(found[~finite], expected[~finite])
    error = np.abs(found[finite] - expected[finite])
    assert (error <= 8 * EPSILON[precision]).all()


def test_what_comes_before_exact_products_makes_nothing_of_padding(tmp_path: Path) -> None:
    net, x = reciprocal(25), positive(25)
    (expected,) = evaluate(to_graph(net, x.shape), [x], "float64")
    found = emulated(net, x, DIRECT.name, 0, False, tmp_path)
    np.testing.assert_allclose(found, expected, 0, 1e-6)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(180))
def test_any_geometry(seed: int, folder: Path) -> None:
    check_all(drawn(seed), folder, seed, every=True)
