"""Our 1x1 convolution in streams: slices, residuals, what comes before, many pixels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cuda.contraction import tune
from minidnn.backends.cuda.contraction.algorithms import algorithms_for
from minidnn.backends.cuda.contraction.config import CudaAlgorithm
from minidnn.backends.cuda.contraction.problem import ContractionProblem
from minidnn.backends.cuda.machine import Machine, machine_of
from tests.cuda.contractions import STREAM, Forgetful, check_numbers, dense, residual

pytestmark = pytest.mark.gpu


@pytest.fixture(params=[0, 1, 2, 3])
def only_stream(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """1x1 convolutions are computed by this kernel or not at all; windows as always."""
    if machine_of(0).arch != "sm_90":
        pytest.skip("this GPU has no wgmma")

    def algorithms(problem: ContractionProblem, machine: Machine) -> list[CudaAlgorithm]:
        if problem.w.shape[2:] != (1, 1):
            return algorithms_for(problem, machine)
        reason = STREAM.why_not(problem, machine)
        assert reason is None, reason
        return [CudaAlgorithm(STREAM.name, len(problem.stages))]

    usual = STREAM.choices

    def choices(problem: ContractionProblem, machine: Machine) -> Sequence[int]:
        found = usual(problem, machine)
        return found[request.param :][:1] or found[:1]

    monkeypatch.setattr(tune, "algorithms_for", algorithms)
    monkeypatch.setattr(STREAM, "choices", choices)
    monkeypatch.setattr(tune, "_store", Forgetful())


NETS = {
    "one-tile": (lambda: L.Conv2d(16, 8, 1), (1, 16, 3, 5)),
    "one-slab": (lambda: L.Sequential(L.Conv2d(64, 48, 1), L.SiLU()), (2, 64, 9, 20)),
    "odd-chunks": (lambda: L.Sequential(L.Conv2d(72, 136, 1), L.ReLU()), (3, 72, 13, 11)),
    "many-slabs": (lambda: L.Conv2d(336, 96, 1), (4, 336, 28, 28)),
    "many-filters": (lambda: L.Conv2d(64, 328, 1), (20, 64, 15, 15)),
    "narrow": (lambda: L.Sequential(L.Conv2d(128, 16, 1), L.ReLU()), (20, 128, 55, 55)),
    "few-filters-fit": (lambda: L.Conv2d(800, 128, 1), (16, 800, 14, 14)),
    "residual": (lambda: residual(256, 1), (128, 256, 14, 14)),
    "dense": (lambda: dense(32), (3, 32, 14, 14)),
    "dense-long": (lambda: dense(160), (128, 160, 14, 14)),
    "dense-deep": (lambda: dense(1000), (16, 1000, 14, 14)),
    "large": (lambda: L.Sequential(L.Conv2d(256, 256, 1), L.ReLU()), (16, 256, 56, 56)),
}


# Another dtype changes an instruction, which the first of the choices has, too.
@pytest.mark.parametrize(
    ("only_stream", "dtype"),
    [
        *((choice, "float16") for choice in range(5)),
        (0, "bfloat16"),
        *(pytest.param(choice, "bfloat16", marks=pytest.mark.full) for choice in range(1, 5)),
    ],
    indirect=["only_stream"],
)
@pytest.mark.parametrize("name", NETS)
def test_numbers(name: str, dtype: str, only_stream: None) -> None:
    make, shape = NETS[name]
    check_numbers(make(), shape, dtype, "stream of")


def test_nan_is_never_lost(only_stream: None) -> None:
    net = L.Sequential(L.BatchNorm2d(16), L.ReLU(), L.Conv2d(16, 16, 1), L.ReLU())
    x = np.ones((1, 16, 8, 8), np.float16)
    x[0, 3, 4, 4] = np.nan
    y = md.compile(net, x.shape, device="cuda", precision="float16")(x)
    assert np.isnan(y[0, :, 4, 4]).all()
    assert np.isfinite(y[0, :, 4, 5]).all() and np.isfinite(y[0, :, 0, 0]).all()
