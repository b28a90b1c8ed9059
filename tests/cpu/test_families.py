"""Small members of the zoo's later families on the CPU engine, beside its reference in float64."""

from __future__ import annotations

import numpy as np
import pytest

import minidnn as md
from minidnn.graph.evaluate import evaluate
from minidnn.layers.build import to_graph
from tests.models.networks import images, stir
from tests.sampling import only

pytest.importorskip("torch")
from tests.models.families import FAMILIES


@pytest.mark.parametrize("family", only(("efficientnet",), FAMILIES))
def test_numbers_between_guard_pages(family: str) -> None:
    make, size = FAMILIES[family]
    net, _ = make()
    stir(net)
    md.calibrate(net, images(4, size, 0))
    x = images(2, size, 1)
    (exact,) = evaluate(to_graph(net, x.shape), [x], dtype="float64")
    (single,) = evaluate(to_graph(net, x.shape), [x])
    found = md.compile(net, x.shape, device="cpu", guarded=True, threads=2)(x)
    scale = np.abs(exact).max()
    assert np.abs(exact[0] - exact[1]).max() > 1e-4 * scale
    limit = max(3 * np.abs(single - exact).max(), 3e-6 * scale)
    np.testing.assert_allclose(found, exact, rtol=0, atol=limit)
