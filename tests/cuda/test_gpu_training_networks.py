"""Twenty steps of the zoo's networks on a GPU, as near to float64 as PyTorch's float32 there."""

from __future__ import annotations

import pytest

from tests.training.networks import IN_FLOAT32, check_in_float32

pytestmark = pytest.mark.gpu


@pytest.mark.full
@pytest.mark.parametrize("name", IN_FLOAT32)
def test_network(name: str) -> None:
    check_in_float32(name, "cuda", tune="heuristic")
