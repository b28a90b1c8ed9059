"""Linear layers whose sums are computed in parts, on a GPU: every number of parts, every batch."""

from __future__ import annotations

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cuda.contraction import tune

from .contractions import ROWS, Forgetful, draw_weights

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("parts", [1, 3, 16])
@pytest.mark.parametrize("batch", [1, 4, 7, 33, 65, 128, 300])
def test_numbers(batch: int, parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "_store", Forgetful())
    monkeypatch.setattr(ROWS, "choices", lambda problem, machine: [parts])
    net = L.Sequential(L.Linear(516, 1000), L.ReLU(), L.Linear(1000, 130))
    random = np.random.default_rng(0)
    draw_weights(net, random)
    exe = md.compile(net, (batch, 516), device="cuda", tune="heuristic")
    assert f"rows in {parts} parts" in exe.explain(measure=True)
    x = random.standard_normal((batch, 516)).astype(np.float32)
    y = x.astype(np.float64)
    for layer in (net[0], net[2]):
        state = {key: np.asarray(value, np.float64) for key, value in layer.state_dict().items()}
        y = y @ state["weight"].T + state["bias"]
        y = np.maximum(y, 0) if layer is net[0] else y
    found = exe(x)
    np.testing.assert_allclose(found, y, atol=1e-5 * np.abs(y).max())
    np.testing.assert_array_equal(found, exe(x))
