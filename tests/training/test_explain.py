"""What a trainer says of its memory."""

from __future__ import annotations

import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.errors import UnsupportedError
from minidnn.report.training import kept_values
from tests.passes.test_recompute import SHAPE, bytes_of, network


def test_what_is_kept_is_told() -> None:
    net = md.Sequential(L.Linear(64, 32), L.Tanh(), L.Dropout(0.1), L.Linear(32, 16), L.Sigmoid())
    optimizer = md.optim.Adam(0.1)
    trainer = md.Trainer(net, (8, 64), md.losses.MSE(), optimizer, device="reference")
    # The gradients of tanh and sigmoid read their results, that of a weight what it multiplies.
    found = [
        (each.layers, each.value.shape, each.bytes, sorted(each.readers))
        for each in kept_values(trainer.step_program.plan)
    ]
    assert found == [
        (("0", "1"), (8, 32), 8 * 32 * 4, ["1"]),
        (("2",), (8, 32), 8 * 32 * 4, ["3"]),
        (("3", "4"), (8, 16), 8 * 16 * 4, ["4", "loss"]),
    ]
    text = trainer.explain()
    assert "region " in text and "kernels, " in text
    assert "float32 8x32" in text and "drawn again: masks of 1 dropout layers" in text
    parameters = 4 * (64 * 32 + 32 + 32 * 16 + 16)
    assert f"mean {parameters / 1e6:.3f} MB, square {parameters / 1e6:.3f} MB" in text


def test_what_is_computed_again_is_told_and_less_is_kept() -> None:
    optimizer = md.optim.SGD(0.1, momentum=0.9)
    free = md.Trainer(network(), SHAPE, md.losses.CrossEntropy(), optimizer, device="reference")
    assert " again: frees" not in free.explain()
    limit = int(sum(bytes_of(free)) * 0.7)
    bound = md.Trainer(
        network(),
        SHAPE,
        md.losses.CrossEntropy(),
        optimizer,
        device="reference",
        memory_limit=limit,
    )
    assert " again: frees" in bound.explain()
    before, after = (
        sum(each.bytes for each in kept_values(trainer.step_program.plan))
        for trainer in (free, bound)
    )
    assert after < before


def test_a_device_that_times_nothing_says_so() -> None:
    trainer = md.Trainer(
        L.Linear(4, 2), (2, 4), md.losses.MSE(), md.optim.SGD(0.1), device="reference"
    )
    with pytest.raises(UnsupportedError, match="'reference' does not time regions"):
        trainer.explain(measure=True)
