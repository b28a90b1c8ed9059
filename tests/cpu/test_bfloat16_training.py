"""Training in bfloat16 on the CPU engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn.backends.cpu import isa
from tests.gradients.random_networks import Shape, Trained, draw
from tests.sampling import some

from .each_node import errors, in_float64, kept, states_and_inputs
from .warming import warm

pytestmark = pytest.mark.skipif(
    isa.why_no_bfloat16(isa.AVX512) is not None, reason=str(isa.why_no_bfloat16(isa.AVX512))
)
#: Blocks of channels that are full, that are not, and images.
WIDE: Sequence[Shape] = ((2, 16, 6, 5), (3, 40, 5, 7), (2, 3, 9, 8), (2, 32, 4, 4), (8, 24, 3, 3))


def compiled(graph: Any, **options: Any) -> Any:
    """Guarded, and with the arrays of its constants."""
    given: dict[str, Any] = {"threads": 2, "isa": "avx512", "guarded": True, "observe": kept}
    given |= options
    return md.compile(graph, device="cpu", precision="bfloat16", store=md.Store(), **given)


def check(trained: Trained, **options: Any) -> None:
    """Each kernel gives what its node is, and all together are as near to the gradients in float64
    as exact arithmetic with the same roundings."""
    exe = compiled(trained.graph, **options)
    known = states_and_inputs(exe, trained.batch)
    wrong, results = errors(exe, trained.batch)
    assert not wrong, f"{wrong}: {trained.recipe}"
    exact = list(trained.by_torch(np.float64).values())
    made = in_float64(exe.graph, known)
    for value, found, right in zip(exe.graph.outputs, results, exact, strict=True):
        own, away = (float(np.linalg.norm(x - right)) for x in (made[value], found))
        size = max(float(np.linalg.norm(right)), 0.1)
        assert away <= 1.1 * own + 2.0**-10 * size, f"{value!r}: {away}, {own}: {trained.recipe}"


def check_seeds(seeds: Sequence[int], *arguments: Any) -> None:
    drawn = [Trained(draw(seed, *arguments), seed) for seed in seeds]
    graphs = ((trained.graph, "model") for trained in drawn)
    warm(graphs, isa.AVX512, stored=True, precision="bfloat16")
    for trained in drawn:
        check(trained)


def test_random_networks() -> None:
    """As those in float32 are tested: of one shape, which share most kernels."""
    check_seeds(some(range(100), 12), 1, 4, [(2, 4, 5, 5)])


def test_wide_random_networks() -> None:
    check_seeds(some(range(60), 12), 3, 7, WIDE, 48)


@pytest.mark.full
@pytest.mark.parametrize("part", range(10))
def test_many_random_networks(part: int) -> None:
    seeds = range(50 * (part + 2), 50 * (part + 3))
    check_seeds(seeds)
    check_seeds(seeds, 3, 9, WIDE, 48)
