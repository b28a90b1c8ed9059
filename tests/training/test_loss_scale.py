"""Scaling of the loss: growth, steps that are skipped, and resuming."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn.errors import GraphError, UnsupportedError, WeightsError

from .test_trainer import BATCHES, network, trainer

PLAIN = md.optim.SGD(0.05, momentum=0.9)


def steep(y: Any, t: Any) -> Any:
    """A loss whose gradients overflow with the scale 2^127."""
    return md.losses.CrossEntropy()(y, t) * 64.0


OVERFLOWS: dict[str, Any] = {
    "initial": 2.0**127,
    "loss": steep,
    "targets": [((8,), "int64")],
    "metrics": {},
    "optimizer": md.optim.SGD(1e-4, momentum=0.9),
}


def scaled(initial: float = 1024.0, **options: Any) -> md.Trainer:
    given = {"optimizer": PLAIN} | options
    every = given.pop("every", 3)
    return trainer(loss_scale=md.optim.LossScale(initial, every=every), **given)


def moved(ours: md.Trainer, batch: Any) -> bool:
    """Whether a step changes a parameter."""
    before = ours.state_dict()["5.weight"]
    ours.step(*batch)
    return not np.array_equal(before, ours.state_dict()["5.weight"])


def test_a_power_of_two_changes_no_bit() -> None:
    net = network()
    plain, ours = trainer(network=net, optimizer=PLAIN), scaled(network=net)
    for batch in BATCHES:
        assert float(plain.step(*batch)) == float(ours.step(*batch))
    for name, array in plain.state_dict().items():
        np.testing.assert_array_equal(array, ours.state_dict()[name])
    assert plain.loss_scale is None


def test_it_grows_after_good_steps_in_a_row() -> None:
    ours = scaled(every=2)
    scales = []
    for batch in BATCHES:
        assert moved(ours, batch)
        scales.append(ours.loss_scale)
    assert scales == [1024.0, 2048.0, 2048.0, 4096.0, 4096.0]


def test_it_never_becomes_infinite() -> None:
    ours = scaled(
        2.0**127,
        loss=lambda y, t: (y * 1e-30).mean(),
        every=1,
        metrics={},
        targets=[((8,), "int64")],
    )
    ours.step(*BATCHES[0])
    assert ours.loss_scale == 2.0**127


@pytest.mark.parametrize("options", [{}, {"optimizer": md.optim.Adam(0.01, clip_norm=1.0)}])
def test_infinite_gradients_are_skipped_and_halve_it(options: dict[str, Any]) -> None:
    """The loss is finite all along; statistics of normalizations move as in any step."""
    ours = scaled(**OVERFLOWS | options)
    statistics = ours.state_dict()["1.running_mean"]
    skipped = 0
    while not moved(ours, BATCHES[skipped % 5]):
        skipped += 1
        assert ours.loss_scale == 2.0 ** (127 - skipped)
        assert int(ours.store["loss_scale@good_steps"]) == 0
        assert np.isfinite(ours.last["loss"])
        if skipped == 1:
            assert not np.array_equal(statistics, ours.state_dict()["1.running_mean"])
    assert 1 <= skipped <= 20
    for array in ours.store:
        assert np.isfinite(ours.store[array]).all()


def test_one_infinity_planted_in_a_gradient() -> None:
    """Of one parameter alone, and so all keep their numbers."""

    def loss(y: Any, t: Any) -> Any:
        # sqrt(0) is 0, and its slope infinite.
        return (y * y).mean() + np.sqrt(abs(t)).mean() * 0.0 + np.sqrt((y * 0.0) * (y * 0.0)).sum()

    ours = scaled(loss=loss, metrics={}, targets=[((8, 3), "float32")])
    target = np.zeros((8, 3), np.float32)
    before = {name: array.copy() for name, array in ours.state_dict().items()}
    assert np.isfinite(float(ours.step(BATCHES[0][0], target)))
    assert ours.loss_scale == 512.0
    for name in ("0.weight", "0.bias", "5.weight", "5.bias"):
        np.testing.assert_array_equal(ours.state_dict()[name], before[name])


def test_batches_are_added_up_unscaled() -> None:
    net = network()
    plain = trainer(network=net, optimizer=PLAIN, accumulate=2)
    ours = scaled(network=net, accumulate=2, every=1)
    for batch in BATCHES[:4]:
        assert float(plain.step(*batch)) == float(ours.step(*batch))
    for name, array in plain.state_dict().items():
        np.testing.assert_array_equal(array, ours.state_dict()[name])
    assert ours.loss_scale == 4096.0


def test_sums_begin_anew_after_a_step_that_was_skipped() -> None:
    ours = scaled(**OVERFLOWS, accumulate=2, every=1000)
    changes = [moved(ours, batch) for batch in (BATCHES * 5)[:24]]
    assert not changes[1] and changes[-1]
    assert ours.loss_scale is not None and 0 < ours.loss_scale < 2.0**127
    assert all(np.isfinite(ours.store[name]).all() for name in ours.store)


def test_resuming_gives_the_same_bits(tmp_path: Path) -> None:
    net = network()
    whole = scaled(**OVERFLOWS, network=net, average=0.9)
    begun = scaled(**OVERFLOWS, network=net, average=0.9)
    for batch in BATCHES[:3]:
        whole.step(*batch)
        begun.step(*batch)
    begun.save(tmp_path / "run")
    again = scaled(**OVERFLOWS | {"initial": 1.0}, network=net, average=0.9)
    again.restore(tmp_path / "run")
    assert again.loss_scale == whole.loss_scale
    for batch in BATCHES * 2:
        assert float(whole.step(*batch)) == float(again.step(*batch))
    assert set(whole.store) == set(again.store)
    for name in whole.store:
        np.testing.assert_array_equal(whole.store[name], again.store[name])
    with pytest.raises(WeightsError, match="unexpected: loss_scale@"):
        trainer(network=net, optimizer=PLAIN, average=0.9).restore(tmp_path / "run")


def test_the_precision_of_a_checkpoint_is_asked_for(tmp_path: Path) -> None:
    ours = trainer(optimizer=PLAIN)
    ours.save(tmp_path / "run")
    with pytest.raises(WeightsError, match="valid is 'float64'"):
        trainer(optimizer=PLAIN, precision="float64").restore(tmp_path / "run")


def test_what_is_not_valid() -> None:
    for wrong in ({"initial": 0.0}, {"growth": 0.5}, {"backoff": 0.0}, {"every": 0}):
        with pytest.raises(GraphError, match=f"LossScale: {next(iter(wrong))}="):
            md.optim.LossScale(**wrong)
    with pytest.raises(GraphError, match=r"loss_scale=1024\.0; valid is a minidnn.optim.LossScale"):
        trainer(loss_scale=1024.0)


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_devices_without_halves_say_so(device: str) -> None:
    with pytest.raises(UnsupportedError, match="device 'cuda' computes in 'float16'"):
        trainer(device=device, precision="float16")
