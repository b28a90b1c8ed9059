"""Our convolution that reads each pixel once: windows, padding, slices, residuals, long lines."""

from __future__ import annotations

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cuda.contraction import tune
from minidnn.backends.cuda.contraction.algorithms import algorithms_for
from minidnn.backends.cuda.contraction.config import CudaAlgorithm
from minidnn.backends.cuda.contraction.problem import ContractionProblem
from minidnn.backends.cuda.machine import Machine, machine_of
from minidnn.graph.evaluate import evaluate
from minidnn.layers.build import to_graph
from tests.cuda.contractions import HALO, Forgetful, check_numbers, dense, residual

pytestmark = pytest.mark.gpu


@pytest.fixture
def only_halo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows are computed by this kernel or not at all; 1x1 convolutions as always."""
    if machine_of(0).arch != "sm_90":
        pytest.skip("this GPU has no wgmma")

    def algorithms(problem: ContractionProblem, machine: Machine) -> list[CudaAlgorithm]:
        if problem.w.shape[2:] == (1, 1):
            return algorithms_for(problem, machine)
        reason = HALO.why_not(problem, machine)
        assert reason is None, reason
        return [CudaAlgorithm(HALO.name, len(problem.stages))]

    monkeypatch.setattr(tune, "algorithms_for", algorithms)
    monkeypatch.setattr(tune, "_store", Forgetful())


NETS = {
    "one-tile": (lambda: L.Conv2d(16, 8, 3, padding=1), (1, 16, 3, 5)),
    "3x3": (lambda: L.Sequential(L.Conv2d(48, 64, 3, padding=1), L.SiLU()), (2, 48, 11, 17)),
    "no-padding": (lambda: L.Conv2d(32, 40, 3), (3, 32, 12, 19)),
    "uneven-padding": (lambda: L.Conv2d(16, 16, (3, 5), padding=(0, 2)), (2, 16, 9, 13)),
    "5x5-dilated": (lambda: L.Conv2d(16, 24, 5, padding=4, dilation=2), (2, 16, 16, 16)),
    "odd-chunks": (lambda: L.Conv2d(24, 32, 3, padding=1), (2, 24, 13, 10)),
    "one-chunk": (lambda: L.Conv2d(8, 16, 3, padding=1), (2, 8, 21, 10)),
    "1x7": (lambda: L.Conv2d(32, 32, (1, 7), padding=(0, 3)), (2, 32, 12, 12)),
    "7x1": (lambda: L.Conv2d(32, 32, (7, 1), padding=(3, 0)), (2, 32, 12, 12)),
    "stem-7x7": (lambda: L.Sequential(L.Conv2d(3, 64, 7, 2, 3), L.ReLU()), (2, 3, 45, 51)),
    "stem-3x3": (lambda: L.Conv2d(3, 64, 3, padding=1), (2, 3, 20, 22)),
    "96-filters": (lambda: L.Conv2d(16, 96, 3, padding=1), (9, 16, 31, 33)),
    "many-filters": (lambda: L.Conv2d(32, 328, 3, padding=1), (2, 32, 15, 15)),
    "residual": (lambda: residual(64, 3), (3, 64, 14, 14)),
    "dense": (lambda: dense(32), (3, 32, 14, 14)),
    "long-line": (lambda: L.Conv2d(128, 32, 3, padding=1), (24, 128, 56, 56)),
    "wide-rows": (lambda: L.Conv2d(16, 32, 3, padding=1), (5, 16, 40, 224)),
    "two-blocks-each": (lambda: L.Conv2d(16, 64, 4), (16, 16, 115, 115)),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", NETS)
def test_numbers(name: str, dtype: str, only_halo: None) -> None:
    make, shape = NETS[name]
    check_numbers(make(), shape, dtype, "halo of")


@pytest.mark.parametrize("channels", [16, 24, 40])
@pytest.mark.parametrize("window", [(3, 3), (3, 1)])
def test_nan_reaches_its_windows_alone(
    channels: int, window: tuple[int, int], only_halo: None
) -> None:
    padding = (window[0] // 2, window[1] // 2)
    net = L.Sequential(L.Conv2d(channels, 16, window, padding=padding), L.ReLU())
    x = np.ones((1, channels, 8, 8), np.float16)
    x[0, 3, 4, 4], x[0, -1, 0, 0] = np.nan, np.nan
    (expected,) = evaluate(to_graph(net, x.shape), [x], "float64")
    y = md.compile(net, x.shape, device="cuda", precision="float16")(x)
    np.testing.assert_array_equal(np.isnan(y), np.isnan(expected))
