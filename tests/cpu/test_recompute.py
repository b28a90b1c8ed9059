"""Training under a memory limit on the CPU engine, guarded."""

from __future__ import annotations

from tests.passes.test_recompute import assert_same_bits, network


def test_the_same_bits() -> None:
    assert_same_bits(network(), (4, 3, 12, 12), 0.7, device="cpu", threads=2, guarded=True)
