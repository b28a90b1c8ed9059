"""The trainer: steps, epochs, callbacks, checkpoints, and what users get wrong."""

from __future__ import annotations

import csv
import io
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.errors import GraphError, TrainingError, WeightsError

DEVICES = ["reference", pytest.param("cuda", marks=pytest.mark.gpu)]
SHAPE = (8, 1, 4, 4)
random = np.random.default_rng(0)
LABELS = random.integers(0, 3, (5, 8))
IMAGES = random.standard_normal((5, *SHAPE)).astype(np.float32)
IMAGES[np.arange(5)[:, None], np.arange(8), 0, LABELS, LABELS] += 5
BATCHES = list(zip(IMAGES, LABELS, strict=True))


def network() -> md.Sequential:
    return md.Sequential(
        *(L.Conv2d(1, 4, 3, padding=1), L.BatchNorm2d(4), L.ReLU()),
        *(L.Flatten(), L.Dropout(0.2), L.Linear(64, 3)),
    )


def trainer(**options: Any) -> md.Trainer:
    given: dict[str, Any] = {"optimizer": md.optim.Adam(0.01), "device": "reference"} | options
    given.setdefault("network", network())
    return md.Trainer(shape=SHAPE, loss=given.pop("loss", md.losses.CrossEntropy()), **given)


class Loader:
    """A loader that can be resumed."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Any:
        while self.at < len(BATCHES):
            self.at += 1
            yield BATCHES[self.at - 1]
        self.at = 0

    def __len__(self) -> int:
        return len(BATCHES)

    def state(self) -> dict[str, Any]:
        return {"at": self.at}

    def restore(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


def without_time(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    timed = ("seconds", "images_per_second")
    return [{k: v for k, v in record.items() if k not in timed} for record in history]


@pytest.mark.parametrize("device", DEVICES)
def test_it_learns_and_the_network_takes_what_it_learned(device: str) -> None:
    ours = trainer(device=device)
    history = ours.fit(BATCHES, 6, validate=BATCHES[:2])
    assert [record["epoch"] for record in history] == [1, 2, 3, 4, 5, 6]
    assert history[-1]["loss"] < 0.5 * history[0]["loss"]
    assert history[-1]["validation_accuracy"] > 0.9
    net = network()
    net.load_state_dict(ours.state_dict())
    y = md.compile(net, SHAPE, device="reference")(IMAGES[0])
    found = ours.evaluate(BATCHES[:1])
    assert (y.argmax(1) == LABELS[0]).mean() == found["accuracy"]


@pytest.mark.parametrize("device", DEVICES)
def test_other_batch_sizes_share_the_states(device: str) -> None:
    ours = trainer(device=device)
    x, target = BATCHES[0]
    ours.step(x, target)
    before = ours.store["0.weight"].copy()
    loss = ours.step(x[:3], target[:3].astype(np.int32))
    assert loss.shape == () and set(ours.last) == {"loss", "accuracy"}
    assert not np.array_equal(ours.store["0.weight"], before)
    assert ours.progress.steps == 2


@pytest.mark.parametrize("device", DEVICES)
def test_accumulation_and_averages(device: str) -> None:
    ours = trainer(accumulate=2, average=0.5, device=device)
    begin = ours.store["0.weight"].copy()
    ours.step(*BATCHES[0])
    np.testing.assert_array_equal(ours.store["0.weight"], begin)
    ours.step(*BATCHES[1])
    new = ours.store["0.weight"]
    assert not np.array_equal(new, begin) and ours.progress.steps == 1
    np.testing.assert_allclose(ours.state_dict()["0.weight"], (begin + new) / 2, rtol=1e-5)
    net = network()
    net.load_state_dict(ours.state_dict())
    other = trainer(network=net)
    found = ours.evaluate(BATCHES)["loss"]
    assert found == pytest.approx(other.evaluate(BATCHES)["loss"], rel=1e-5)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("make", [lambda: BATCHES, Loader])
@pytest.mark.parametrize("after", [1, 4, 5, 7])
def test_resuming_gives_the_bits_of_the_run_that_never_stopped(
    make: Callable[[], Any], after: int, device: str, tmp_path: Path
) -> None:
    class Stops(md.callbacks.Callback):
        def after_step(self, trainer: md.Trainer) -> None:
            if trainer.progress.batches == after:
                raise KeyboardInterrupt

    path = tmp_path / "run.safetensors"
    options: dict[str, Any] = {"accumulate": 2, "average": 0.9, "seed": 3, "device": device}
    whole = trainer(**options)
    whole.fit(make(), 2, validate=BATCHES[:1])
    first = trainer(**options)
    first.fit(make(), 2, validate=BATCHES[:1], callbacks=[Stops(), md.callbacks.Checkpoint(path)])
    assert first.interrupted and first.progress.batches == after
    optimizer = md.optim.Adam(0.01)
    second = md.Trainer.load(path, network(), SHAPE, md.losses.CrossEntropy(), optimizer, **options)
    second.fit(make(), 2, validate=BATCHES[:1])
    assert without_time(second.history) == without_time(whole.history)
    assert set(second.store) == set(whole.store)
    for name in whole.store:
        np.testing.assert_array_equal(second.store[name], whole.store[name], err_msg=name)


def test_fit_goes_on_after_an_interruption() -> None:
    class Stops(md.callbacks.Callback):
        def after_step(self, trainer: md.Trainer) -> None:
            if trainer.progress.batches == 3:
                raise KeyboardInterrupt

    for loader in (BATCHES, Loader()):
        whole, ours = trainer(), trainer()
        whole.fit(BATCHES, 1)
        ours.fit(loader, 1, callbacks=[Stops()])
        assert ours.interrupted and not ours.history
        ours.fit(loader, 1)
        assert not ours.interrupted
        assert without_time(ours.history) == without_time(whole.history)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("within", "call"), [("step", 3), ("step", 5), ("evaluate", 1)])
def test_ctrl_c_anywhere_loses_and_repeats_nothing(
    within: str, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes when a step's states have changed, and what counts the steps has not."""
    calls = 0

    def pressed(self: md.Trainer, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        found = usual(self, *arguments)
        if calls == call:
            signal.raise_signal(signal.SIGINT)
        return found

    whole, ours = trainer(), trainer()
    data = md.data.Arrays(IMAGES.reshape(-1, *SHAPE[1:]), LABELS.ravel())
    whole.fit(md.data.Loader(data, 8, shuffle=True), 2, validate=BATCHES[:1])
    usual, loader = getattr(md.Trainer, within), md.data.Loader(data, 8, shuffle=True)
    with monkeypatch.context() as patch:
        patch.setattr(md.Trainer, within, pressed)
        ours.fit(loader, 2, validate=BATCHES[:1])
    assert ours.interrupted and ours.progress.batches == (call if within == "step" else 5)
    ours.fit(loader, 2, validate=BATCHES[:1])
    assert without_time(ours.history) == without_time(whole.history)
    for name in whole.store:
        np.testing.assert_array_equal(ours.store[name], whole.store[name], err_msg=name)


def test_the_seed_is_what_dropout_draws_from() -> None:
    losses = []
    for seed in (0, 0, 1):
        ours = trainer(seed=seed)
        losses.append(float(ours.step(*BATCHES[0])))
    assert losses[0] == losses[1] != losses[2]


def test_callbacks_write(tmp_path: Path) -> None:
    shown = io.StringIO()
    paths = [tmp_path / name for name in ("log.jsonl", "log.csv", "best.safetensors")]
    c = md.callbacks
    ours = trainer()
    ours.fit(
        BATCHES,
        2,
        callbacks=[
            c.ProgressBar(shown, every=0.0),
            c.JSONLines(paths[0]),
            c.CSV(paths[1]),
            c.Checkpoint(paths[2], keep_best="accuracy"),
        ],
    )
    assert "epoch 2/2 5/5 loss" in shown.getvalue() and "images/s" in shown.getvalue()
    assert [json.loads(line) for line in paths[0].read_text().splitlines()] == ours.history
    rows = list(csv.reader(paths[1].read_text().splitlines()))
    assert rows[0] == list(ours.history[0]) and len(rows) == 3
    best = max(ours.history, key=lambda record: record["accuracy"])
    assert trainer_at(paths[2]).history[-1] == best


def trainer_at(path: Path) -> md.Trainer:
    ours = trainer()
    ours.restore(path)
    return ours


def test_early_stopping() -> None:
    ours = trainer(optimizer=md.optim.SGD(0.0), network=network().freeze(False))
    history = ours.fit(BATCHES, 9, callbacks=[md.callbacks.EarlyStopping("loss", 2, change=1.0)])
    assert len(history) == 3
    with pytest.raises(GraphError, match="epochs have no 'acuracy'; did you mean 'accuracy'"):
        ours.fit(BATCHES, 4, callbacks=[md.callbacks.EarlyStopping("acuracy")])


@pytest.mark.parametrize("device", DEVICES)
def test_a_loss_that_is_not_finite_names_what_made_it(device: str) -> None:
    net = md.Sequential(network(), L.Elementwise(lambda x: x * 1e38 * 1e38))
    ours = trainer(network=net, device=device)
    before = ours.state_dict()
    with pytest.raises(TrainingError, match=r"batch 1 of epoch 1: .* layer '1' .* made 24 of"):
        ours.fit(BATCHES, 1)
    for name, array in ours.state_dict().items():
        np.testing.assert_array_equal(array, before[name])
    x = IMAGES[0].copy()
    x[0, 0, 0, 0] = np.nan
    with pytest.raises(TrainingError, match="input of the batch has 1 of 128 values that are NaN"):
        trainer().fit([(x, LABELS[0])], 1)


def test_a_loss_and_targets_of_ones_own() -> None:
    ours = md.Trainer(
        md.Sequential(L.Flatten(), L.Linear(16, 3)),
        SHAPE,
        lambda output, target: ((output.max(1) - target) ** 2).mean(),
        md.optim.SGD(0.01),
        targets=[((8,), "float32")],
        device="reference",
    )
    assert ours.step(IMAGES[0], LABELS[0].astype(np.float32)) > 0


x, t = BATCHES[0]


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda: trainer(loss=3), "loss=3; valid is a loss of minidnn.losses, or a function"),
        (lambda: trainer(optimizer="sgd"), "optimizer='sgd'; valid is one of minidnn.optim"),
        (lambda: trainer(accumulate=0), "Trainer: accumulate=0; valid is an int of at least 1"),
        (lambda: trainer().step(x, t + 1), r"target\[\d\] is 3; valid are indices from 0 to 2"),
        (lambda: trainer().step(x, t * 1.0), r"target is float64 of shape \(8,\); valid is an int"),
        (lambda: trainer().step(x, t[:3]), r"of shape \(3,\); valid is an int dtype of shape \(8,"),
        (
            lambda: trainer().step(x[:, :, :2], t),
            r"shapes \(8, 1, 2, 4\); valid are \(8, 1, 4",
        ),
        (lambda: trainer().fit([], 1), "fit: there are no batches"),
        (lambda: trainer().evaluate([]), "evaluate: there are no batches"),
    ],
)
def test_what_does_not_fit_is_told(use: Callable[[], Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        use()


def test_checkpoints_that_do_not_fit_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    trainer().save(path)
    other = md.Trainer(
        *(L.Linear(4, 3), (2, 4), md.losses.MSE(), md.optim.SGD(0.1)), device="reference"
    )
    with pytest.raises(WeightsError, match=r"a checkpoint of Sequential trained by Adam\(lr=0.01"):
        other.restore(path)
    with pytest.raises(WeightsError, match=r"is float32.*valid is float64"):
        trainer(precision="float64").restore(path)
    whole = path.read_bytes()
    changed = bytearray(whole)
    changed[-5] ^= 1
    md.save_weights({"a": np.zeros(3)}, tmp_path / "weights.safetensors")
    for data, message in (
        (whole[:-7], "run"),
        (whole[:100], "truncated"),
        (bytes(changed), "its numbers are not those that were saved"),
        (b"", "no checkpoint of a trainer"),
        ((tmp_path / "weights.safetensors").read_bytes(), "no checkpoint of a trainer"),
    ):
        path.write_bytes(data)
        ours = trainer()
        before = ours.state_dict()
        with pytest.raises(WeightsError, match=message):
            ours.restore(path)
        assert ours.progress.steps == 0
        for name, array in ours.state_dict().items():
            np.testing.assert_array_equal(array, before[name])


@pytest.mark.parametrize("device", ["cpu", DEVICES[1]])
def test_engines_train(device: str) -> None:
    """With the same elements dropped."""
    hidden = (L.Linear(16, 8), L.ReLU(), L.Dropout(0.3), L.Linear(8, 3))
    net = md.Sequential(L.Flatten(), *hidden)
    losses = []
    for each in (device, "reference"):
        ours = trainer(network=net, device=each)
        losses.append([float(ours.step(*batch)) for batch in BATCHES])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)
