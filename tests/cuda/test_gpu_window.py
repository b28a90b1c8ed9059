"""Our convolution whose filters pass with its pixels: windows, padding, slices, residuals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cuda.contraction import tune, window
from minidnn.backends.cuda.contraction.forms import forms_of
from minidnn.backends.cuda.contraction.problem import ContractionProblem
from minidnn.backends.cuda.contraction.recipe import Form
from minidnn.backends.cuda.machine import Machine, machine_of
from tests.cuda.contractions import WINDOW, Forgetful, check_numbers, residual

pytestmark = pytest.mark.gpu


@pytest.fixture(params=window.TILES)
def only_window(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows are computed by this kernel, with so many tiles where they fit, or not at all; 1x1
    convolutions as always."""
    if machine_of(0).arch != "sm_90":
        pytest.skip("this GPU has no wgmma")

    def forms(problem: ContractionProblem, machine: Machine) -> list[Form]:
        if problem.w.shape[2:] == (1, 1):
            return forms_of(problem, machine)
        reason = WINDOW.why_not(problem, machine)
        assert reason is None, reason
        return [Form(WINDOW.name, len(problem.stages))]

    usual = WINDOW.choices

    def choices(problem: ContractionProblem, machine: Machine) -> Sequence[int]:
        found = usual(problem, machine)
        return [request.param] if request.param in found else found[:1]

    monkeypatch.setattr(tune, "forms_of", forms)
    monkeypatch.setattr(WINDOW, "choices", choices)
    monkeypatch.setattr(tune, "_store", Forgetful())


def sliced() -> md.Layer:
    """A convolution that writes a part of a joined value."""
    x = md.Input((32, 14, 14))
    narrow = L.ReLU()(L.Conv2d(32, 48, 1)(x))
    return md.Model(x, L.ReLU()(L.Concat()(x, L.Conv2d(48, 24, 3, padding=1)(narrow))))


NETS = {
    "one-tile": (lambda: L.Conv2d(16, 8, 3, padding=1), (1, 16, 3, 5)),
    "3x3": (lambda: L.Sequential(L.Conv2d(48, 64, 3, padding=1), L.SiLU()), (2, 48, 11, 17)),
    "no-padding": (lambda: L.Conv2d(32, 40, 3), (3, 32, 12, 19)),
    "uneven-padding": (lambda: L.Conv2d(16, 16, (3, 5), padding=(0, 2)), (2, 16, 9, 13)),
    "5x5-dilated": (lambda: L.Conv2d(16, 24, 5, padding=4, dilation=2), (2, 16, 16, 16)),
    "1x7": (lambda: L.Conv2d(32, 32, (1, 7), padding=(0, 3)), (2, 32, 12, 12)),
    "7x1": (lambda: L.Conv2d(32, 32, (7, 1), padding=(3, 0)), (2, 32, 12, 12)),
    "stem-7x7": (lambda: L.Sequential(L.Conv2d(3, 64, 7, 2, 3), L.ReLU()), (2, 3, 45, 51)),
    "many-filters": (lambda: L.Conv2d(32, 328, 3, padding=1), (2, 32, 15, 15)),
    "residual": (lambda: residual(64, 3), (3, 64, 14, 14)),
    "slice": (sliced, (3, 32, 14, 14)),
    "long-line": (lambda: L.Conv2d(192, 48, 3, padding=1), (24, 192, 56, 56)),
    "wide-rows": (lambda: L.Conv2d(16, 32, 3, padding=1), (5, 16, 40, 224)),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", NETS)
def test_numbers(name: str, dtype: str, only_window: None) -> None:
    make, shape = NETS[name]
    check_numbers(make(), shape, dtype, "window of")


def test_nan_is_never_lost(only_window: None) -> None:
    net = L.Sequential(L.Conv2d(32, 16, 3, padding=1), L.ReLU())
    x = np.ones((1, 32, 8, 8), np.float16)
    x[0, 3, 4, 4] = np.nan
    y = md.compile(net, x.shape, device="cuda", precision="float16")(x)
    assert np.isnan(y[0, :, 3:6, 3:6]).all()
    assert np.isfinite(y[0, :, 0, 0]).all()
