"""Products of pixels and filters on tensor cores of any kind, run by the emulator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cuda.contraction.problem import ContractionProblem
from minidnn.backends.cuda.contraction.tile_choice import DIVISIONS, PARTS, TILES
from minidnn.backends.cuda.tensor import LANES
from minidnn.graph.evaluate import evaluate
from minidnn.graph.types import rounded_to
from minidnn.layers.build import to_graph
from tests.sampling import every

from .cards import H200
from .contractions import EPSILON, TILE, draw_weights, drawn, far_apart, within
from .lowered import EmulatedProgram, Kernel

pytestmark = pytest.mark.early


def joined(channels: int, filters: int, window: int) -> md.Layer:
    """A convolution behind a normalization, between slices, and one whose input is added."""
    x = md.Input((channels, 9, 15))
    narrow = L.Sequential(L.BatchNorm2d(channels), L.ReLU(), L.Conv2d(channels, filters, 1))(x)
    y = L.Concat()(x, narrow)
    last = L.Conv2d(channels + filters, channels + filters, window, padding=window // 2)
    return md.Model(x, L.ReLU()(last(y) + y))


NETS = {
    "normalized": (lambda: joined(72, 64, 1), (3, 72, 9, 15)),
    "3x3": (lambda: joined(24, 48, 3), (3, 24, 9, 15)),
    "stride": (lambda: L.Conv2d(40, 136, 3, 2, 1), (4, 40, 15, 15)),
    "far": (lambda: L.Sequential(L.Conv2d(64, 72, 1), L.SiLU()), (3, 64, 9, 15)),
    "stem": (lambda: L.Sequential(L.Conv2d(3, 64, 7, 2, 3), L.SiLU()), (2, 3, 25, 31)),
}


WHOLE = [DIVISIONS.number(i, 1) for i in range(len(TILES))]
DIVIDED = [DIVISIONS.number(*one) for one in ((2, 2), (2, 8), (3, 4), (0, 2), (6, 4))]
#: Each choice with one network in turn, in full with all.
EVERY = [
    pytest.param(
        *(name, choice),
        id=f"{name}-{DIVISIONS.shown(choice)}",
        marks=pytest.mark.full if (i + j) % len(NETS) else (),
    )
    for i, name in enumerate(NETS)
    for j, choice in enumerate([*WHOLE, *DIVIDED])
]


@pytest.mark.sampled(4)
@pytest.mark.race
@pytest.mark.parametrize(("name", "choice"), EVERY)
def test_numbers(name: str, choice: int, tmp_path: Path) -> None:
    make, size = NETS[name]
    random = np.random.default_rng(0)
    x = random.standard_normal(size).astype(np.float32)
    if name == "far":
        x = far_apart(x)
    dtype = ("float16", "bfloat16")[(list(NETS).index(name) + choice) % 2]
    check(make(), x, dtype, choice, tmp_path)


@pytest.mark.sampled(3)
@pytest.mark.race
@pytest.mark.parametrize("seed", every(2, range(12), always=(3,)))
def test_any_geometry(seed: int, tmp_path: Path) -> None:
    random = np.random.default_rng(seed)
    make, size = drawn(random, LANES)
    parts = [(i, p) for i, t in enumerate(TILES) for p in PARTS if t.divides(p)]
    choice = DIVISIONS.number(*parts[random.integers(len(parts))])
    dtype = ("float16", "bfloat16")[seed % 2]
    x = random.standard_normal(size).astype(np.float32)
    check(make(), x, dtype, choice, tmp_path, multiprocessors=int(random.integers(1, 5)))


def check(
    net: md.Layer,
    x: np.ndarray,
    dtype: str,
    choice: int,
    folder: Path,
    multiprocessors: int = 1,
) -> None:
    """The tile's results beside float64, and in both orders of threads; there are few blocks, so
    that each makes several tiles."""
    machine = replace(H200, multiprocessors=multiprocessors)

    def kernel(problem: ContractionProblem) -> Kernel:
        assert TILE.why_not(problem, H200) is None
        number = within(problem, choice)
        launch = TILE.launches(problem, number, machine)[0]
        return TILE.name, launch, TILE.numbers(problem, number, machine)

    draw_weights(net, np.random.default_rng(0))
    x = rounded_to(dtype, x).astype(np.float32)
    (expected,) = evaluate(to_graph(net, x.shape), [x], "float64")
    run = EmulatedProgram(net, x.shape, dtype, kernel, folder)
    y = run(x)
    assert np.abs(y - expected).max() <= 4 * EPSILON[dtype] * np.abs(expected).max()
    np.testing.assert_array_equal(run(x, backwards=True), y)
