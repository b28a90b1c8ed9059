"""Training under a memory limit on the CPU engine, guarded."""

from __future__ import annotations

import numpy as np

import minidnn as md
from minidnn import layers as L
from tests.passes.test_recompute import assert_same_bits, network


def test_the_same_bits() -> None:
    assert_same_bits(network(), (4, 3, 12, 12), 0.7, device="cpu", threads=2, guarded=True)


def test_times_of_regions_leave_what_is_trained() -> None:
    trainer = md.Trainer(
        L.Linear(4, 2), (2, 4), md.losses.MSE(), md.optim.SGD(0.1), device="cpu", threads=2
    )
    before = trainer.state_dict()
    text = trainer.explain(measure=True)
    assert "ms measured" in text and "kept for the backward pass" in text
    for name, array in trainer.state_dict().items():
        np.testing.assert_array_equal(array, before[name])
