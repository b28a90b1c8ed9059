"""Gradients of random networks in float64 beside PyTorch's."""

from __future__ import annotations

import numpy as np
import pytest

import minidnn as md
from minidnn.graph.evaluate import evaluate
from tests.cases.record import one_thread
from tests.gradients.random_networks import Trained, draw
from tests.sampling import some


def check(seed: int, compiled: bool) -> None:
    """Compares all gradients, of the graph as it is or of what passes make of it."""
    trained = Trained(draw(seed), seed)
    graph, store = trained.graph, md.Store()
    if compiled:
        exe = md.compile(graph, device="reference", precision="float64", store=store)
        found = list(exe(*trained.batch).values())
    else:
        found = list(evaluate(graph, trained.batch, "float64"))
    with one_thread():
        expected = trained.by_torch(np.float64)
    assert graph.output_names == tuple(expected)
    for actual, (name, array) in zip(found, expected.items(), strict=True):
        scale = max(1.0, float(np.abs(array).max()))
        label = f"seed {seed}, {name}: {trained.recipe}"
        np.testing.assert_allclose(actual, array, 1e-7, 1e-9 * scale, err_msg=label)


@pytest.mark.parametrize("part", range(4))
def test_random_networks(part: int) -> None:
    """A thousand, in CI a sixth of them: passes take most of the time, and every tenth graph goes
    through them."""
    for seed in some(range(250 * part, 250 * (part + 1)), 6):
        check(seed, compiled=seed % 10 == 0)


@pytest.mark.full
@pytest.mark.parametrize("part", range(10))
def test_many_random_networks(part: int) -> None:
    for seed in range(1000 * (part + 1), 1000 * (part + 2)):
        check(seed, compiled=True)
