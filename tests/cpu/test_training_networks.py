"""Twenty steps of the zoo's networks on the CPU engine, as near to float64 as PyTorch's float32."""

from __future__ import annotations

import pytest

from tests.training.networks import IN_FLOAT32, check_in_float32


@pytest.mark.full
@pytest.mark.parametrize("name", IN_FLOAT32)
def test_network(name: str) -> None:
    check_in_float32(name, "cpu", threads=2)
