"""Our tensor-core kernels: every tile, windows, residuals, slices, and what comes before."""

from __future__ import annotations

import re

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cuda.contraction import tune
from minidnn.backends.cuda.contraction.config import CudaAlgorithm
from minidnn.backends.cuda.contraction.tile_choice import DIVISIONS, TILES
from minidnn.backends.cuda.machine import Machine, machine_of
from minidnn.graph.evaluate import evaluate
from minidnn.graph.types import rounded_to
from minidnn.layers.build import to_graph
from tests.cuda.contractions import EPSILON, TILE, Forgetful, dense, draw_weights, residual, within

pytestmark = pytest.mark.gpu


DIVIDED = [DIVISIONS.number(*one) for one in ((2, 2), (2, 4), (2, 8), (3, 2), (5, 8), (6, 4))]


@pytest.fixture(params=[*range(len(TILES)), *DIVIDED], ids=DIVISIONS.shown)
def only_tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contractions are computed by this tile or not at all."""
    machine = machine_of(0)
    if DIVISIONS[request.param][1] > 1 and not machine.has_clusters:
        pytest.skip(f"{machine.arch} has no clusters")

    def algorithms(problem: object, machine: Machine) -> list[CudaAlgorithm]:
        reason = TILE.why_not(problem, machine)  # type: ignore[arg-type]
        assert reason is None, reason
        return [CudaAlgorithm(TILE.name, len(problem.stages))]  # type: ignore[attr-defined]

    monkeypatch.setattr(tune, "algorithms_for", algorithms)
    monkeypatch.setattr(tune, "_store", Forgetful())
    monkeypatch.setattr(TILE, "choices", lambda p, machine: [within(p, request.param)])


NETS = {
    "1x1": (lambda: L.Sequential(L.Conv2d(72, 136, 1), L.ReLU()), (3, 72, 13, 9)),
    "1x1-stride": (lambda: L.Conv2d(64, 40, 1, stride=2), (2, 64, 15, 15)),
    "3x3": (lambda: L.Sequential(L.Conv2d(40, 64, 3, padding=1), L.SiLU()), (2, 40, 11, 17)),
    "3x3-stride": (lambda: L.Conv2d(16, 32, 3, stride=2, padding=1), (4, 16, 15, 15)),
    "5x5-dilated": (lambda: L.Conv2d(8, 24, 5, padding=4, dilation=2), (2, 8, 16, 16)),
    "1x7": (lambda: L.Conv2d(32, 32, (1, 7), padding=(0, 3)), (2, 32, 12, 12)),
    "stem-7x7": (lambda: L.Sequential(L.Conv2d(3, 64, 7, 2, 3), L.ReLU()), (2, 3, 45, 51)),
    "stem-3x3": (lambda: L.Conv2d(3, 64, 3, padding=1), (2, 3, 20, 22)),
    "stem-11x11": (lambda: L.Conv2d(3, 64, 11, 4, 2), (2, 3, 63, 65)),
    "residual": (lambda: residual(72, 1), (3, 72, 14, 14)),
    "dense": (lambda: dense(32), (3, 32, 14, 14)),
    "large": (lambda: L.Sequential(L.Conv2d(256, 256, 1), L.ReLU()), (16, 256, 28, 28)),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", NETS)
def test_numbers(name: str, dtype: str, only_tiles: None) -> None:
    make, shape = NETS[name]
    net = make()
    random = np.random.default_rng(0)
    draw_weights(net, random)
    x = rounded_to(dtype, random.standard_normal(shape).astype(np.float32)).astype(np.float32)
    (expected,) = evaluate(to_graph(net, shape), [x], "float64")
    exe = md.compile(net, shape, device="cuda", precision=dtype)
    assert re.search(r"tile \d", exe.explain(measure=True))
    result = np.asarray(exe(x), np.float64)
    scale = np.abs(expected).max()
    assert np.abs(result - expected).max() <= 6 * EPSILON[dtype] * scale
    np.testing.assert_array_equal(np.asarray(exe(x), np.float64), result)


def test_nan_is_never_lost(only_tiles: None) -> None:
    net = L.Sequential(L.Conv2d(16, 16, 3, padding=1), L.ReLU())
    x = np.ones((1, 16, 8, 8), np.float16)
    x[0, 3, 4, 4] = np.nan
    y = md.compile(net, x.shape, device="cuda", precision="float16")(x)
    assert np.isnan(y[0, :, 3:6, 3:6]).all()
    assert np.isfinite(y[0, :, 0, 0]).all()
