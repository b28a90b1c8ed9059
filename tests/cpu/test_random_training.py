"""Gradients of random networks on the CPU engine, guarded, beside PyTorch's in float64.

Networks are drawn first and their kernels compiled together, as in test_backend_random.
"""

from __future__ import annotations

import numpy as np
import pytest

import minidnn as md
from minidnn.backends.cpu.isa import Isa, best_isa
from tests.cases.record import one_thread
from tests.gradients.random_networks import Trained, draw
from tests.sampling import some

from .warming import warm

pytestmark = pytest.mark.early


def check(seed: int, trained: Trained, isa: Isa) -> None:
    """As near to float64 as 16 times PyTorch's float32, or some roundings of the largest number."""
    exe = md.compile(
        trained.graph, device="cpu", isa=isa.name, threads=2, guarded=True, store=md.Store()
    )
    found = exe(*trained.batch)
    exe(*trained.batch)  # with pages before all buffers, where they were behind them
    with one_thread():
        exact, single = trained.by_torch(np.float64), trained.by_torch(np.float32)
    for name, array in exact.items():
        own = np.abs(single[name] - array).max(initial=0.0)
        allowed = 16 * own + 64 * np.finfo(np.float32).eps * np.abs(array).max(initial=1.0)
        label = f"seed {seed}, {isa.name}, {name}: {trained.recipe}"
        np.testing.assert_allclose(found[name], array, 0, allowed, err_msg=label)


def test_random_networks() -> None:
    """A hundred small ones, in CI a tenth of them.

    Their inputs have one shape, so that they share most of their kernels.
    """
    seeds = some(range(100), 10)
    drawn = [Trained(draw(seed, 1, 4, [(2, 4, 5, 5)]), seed) for seed in seeds]
    isa = best_isa()
    warm(((trained.graph, "model") for trained in drawn), isa, stored=True)
    for seed, trained in zip(seeds, drawn, strict=True):
        check(seed, trained, isa)


@pytest.mark.full
@pytest.mark.parametrize("part", range(10))
def test_many_random_networks(isa: Isa, part: int) -> None:
    seeds = range(100 * (part + 1), 100 * (part + 2))
    drawn = {seed: Trained(draw(seed), seed) for seed in seeds}
    warm(((trained.graph, "model") for trained in drawn.values()), isa, stored=True)
    for seed, trained in drawn.items():
        check(seed, trained, isa)
