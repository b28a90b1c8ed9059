"""What TensorBoard reads of a run, if it is installed."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.errors import DeviceError, GraphError


def test_events_are_read_back(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    random = np.random.default_rng(0)
    batches = [(random.standard_normal((4, 3)), random.standard_normal((4, 2))) for _ in range(3)]
    trainer = md.Trainer(
        L.Linear(3, 2), (4, 3), md.losses.MSE(), md.optim.SGD(0.1), device="reference"
    )
    board = md.callbacks.TensorBoard(tmp_path / "runs", every=2)
    losses: list[float] = []

    class Keep(md.callbacks.Callback):
        def after_step(self, trainer: md.Trainer) -> None:
            losses.append(float(trainer.last["loss"]))

    history = trainer.fit(batches, epochs=2, callbacks=[board, Keep()])
    (file,) = (tmp_path / "runs").iterdir()
    found = {
        (value.tag, event.step): value.tensor.float_val[0]
        for event in EventFileLoader(str(file)).Load()
        for value in event.summary.value
    }
    for step in (2, 4, 6):
        assert found["step/loss", step] == np.float32(losses[step - 1])
    assert ("step/loss", 3) not in found
    for record in history:
        for name in ("loss", "rate", "images_per_second"):
            assert found[f"epoch/{name}", record["steps"]] == np.float32(record[name])


def test_without_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(DeviceError, match=r"pip install 'minidnn\[tensorboard\]'"):
        md.callbacks.TensorBoard(tmp_path)


def test_every_is_a_number_of_steps(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="every=0; valid is an int of at least 1"):
        md.callbacks.TensorBoard(tmp_path, every=0)
