"""Callbacks: the best epoch, logs whose columns stay, and when checkpoints are saved."""

from __future__ import annotations

import csv
import signal
from collections.abc import Callable, Sequence
from math import inf, isnan, nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.errors import GraphError, MiniDNNWarning
from minidnn.training.callbacks.callback import Best, direction_of

random = np.random.default_rng(0)
X, T = random.standard_normal((8, 6)).astype(np.float32), random.integers(0, 3, 8)
BATCHES = [(X, T), (X[::-1].copy(), T[::-1].copy())]


def trainer(**options: Any) -> md.Trainer:
    optimizer = options.pop("optimizer", md.optim.Adam(0.01))
    return md.Trainer(
        L.Linear(6, 3), (8, 6), md.losses.CrossEntropy(), optimizer, device="reference", **options
    )


class Measured(md.callbacks.Callback):
    """Has epochs measure given numbers."""

    def __init__(self, name: str, numbers: Sequence[float]) -> None:
        self.name, self.numbers = name, numbers

    def after_epoch(self, trainer: Any, record: dict[str, Any]) -> None:
        record[self.name] = self.numbers[record["epoch"] - 1]


def first_best(numbers: Sequence[float], sign: float) -> list[int]:
    """At which epochs there is a new best one, by its definition."""
    found = []
    for i, number in enumerate(numbers):
        before = [sign * each for each in numbers[:i] if not isnan(each)]
        if not isnan(number) and all(sign * number > each for each in before):
            found.append(i)
    return found


@pytest.mark.parametrize("best", ["least", "most"])
def test_the_best_of_numbers_with_nan(best: Any) -> None:
    draws = np.random.default_rng(1)
    for _ in range(50):
        some = [nan, inf, -inf, 0.0, -0.0, 1.0, 2.0, -3.0]
        numbers: list[float] = draws.choice(some, draws.integers(1, 9)).tolist()
        ours = Best(None, "loss", best)
        ours.settle({})
        found = [i for i, number in enumerate(numbers) if ours.is_better({"loss": number})]
        assert found == first_best(numbers, 1.0 if best == "most" else -1.0)


def own(x: Any, t: Any) -> Any:
    return abs(x - t).mean()


def pointed(x: Any, t: Any) -> Any:
    return own(x, t)


pointed.best = "least"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "function", "best"),
    [
        *[
            (n, None, "least")
            for n in ("loss", "mae", "MSE", "rmse", "nmse", "aux_loss", "word_error")
        ],
        *[(n, None, "most") for n in ("accuracy", "f1", "F1Score", "top5", "mIoU", "auroc", "mAP")],
        *[(n, None, None) for n in ("own", "rate", "seconds", "accuracy_error", "width")],
        *[("own", pointed, "least"), ("own", md.losses.L1(), "least"), ("own", own, None)],
    ],
)
def test_which_way_is_better(name: str, function: Any, best: Any) -> None:
    assert direction_of(name, function) == best


def test_what_no_measure_says_is_asked() -> None:
    ours = trainer(metrics={"own": lambda x, t: x.mean()})
    stop = md.callbacks.EarlyStopping("own")
    with pytest.raises(GraphError, match="best=None, and 'own' does not say which way is better"):
        ours.fit(BATCHES, 1, callbacks=[stop])
    ours.fit(BATCHES, 1, callbacks=[md.callbacks.EarlyStopping("own", best="most")])


def test_stopping_waits_through_nan() -> None:
    numbers = [nan, nan, 3.0, 2.0, nan, 2.5, 9.0, 9.0]
    stop = md.callbacks.EarlyStopping("mae", patience=3)
    history = trainer().fit(BATCHES, 8, callbacks=[Measured("mae", numbers), stop])
    assert len(history) == 7  # the best was the fourth


def test_training_and_validation_are_not_compared(tmp_path: Path) -> None:
    keep = md.callbacks.Checkpoint(tmp_path / "best", keep_best="accuracy")
    ours = trainer()
    ours.fit(BATCHES, 1, callbacks=[Measured("accuracy", [2.0]), keep])
    told = [Measured("validation_accuracy", [0.0, 0.5, 0.5, 0.6]), keep]
    ours.fit(BATCHES, 3, callbacks=told)
    again = trainer()
    again.restore(tmp_path / "best")
    assert again.progress.epoch == 2  # and not the first, which had 2.0 in training
    with pytest.raises(GraphError, match="this epoch has no 'validation_accuracy', which the best"):
        ours.fit(BATCHES, 4, callbacks=[keep])


def test_a_record_that_could_not_be_read_again_is_not_saved(tmp_path: Path) -> None:
    keep = md.callbacks.Checkpoint(tmp_path / "run")
    numbers: Any = [np.float32(2.0), np.float64(3.0), True]
    ours = trainer()
    with pytest.raises(GraphError, match="the record of epoch 3 has note=True; valid in a check"):
        ours.fit(BATCHES, 3, callbacks=[Measured("note", numbers), keep])
    again = trainer()
    again.restore(tmp_path / "run")
    assert [record["note"] for record in again.history] == [2.0, 3.0]


def test_nothing_but_nan_is_told(tmp_path: Path) -> None:
    keep = md.callbacks.Checkpoint(tmp_path / "best", keep_best="mae")
    with pytest.warns(MiniDNNWarning, match="'mae' was NaN in all epochs; .*best was not saved"):
        trainer().fit(BATCHES, 2, callbacks=[Measured("mae", [nan, nan]), keep])
    assert not (tmp_path / "best").exists()


@pytest.mark.parametrize("average", [None, 0.5])
def test_the_best_weights_come_back(average: float | None, tmp_path: Path) -> None:
    seen: list[dict[str, np.ndarray]] = []

    class Looks(md.callbacks.Callback):
        def after_epoch(self, trainer: Any, record: dict[str, Any]) -> None:
            seen.append(trainer.state_dict())

    ours = trainer(average=average)
    stop = md.callbacks.EarlyStopping("mae", patience=2, restore_best=True)
    last = md.callbacks.Checkpoint(tmp_path / "last")
    told = [Measured("mae", [3.0, 1.0, nan, 2.0, 0.0]), Looks(), stop, last]
    assert len(ours.fit(BATCHES, 5, callbacks=told)) == 4
    for name, array in ours.state_dict().items():
        np.testing.assert_array_equal(array, seen[1][name])
    again = trainer(average=average)
    again.restore(tmp_path / "last")  # goes on from where training was
    for name, array in again.state_dict().items():
        np.testing.assert_array_equal(array, seen[3][name])
    with pytest.warns(MiniDNNWarning, match="no epoch of this fit.. had a better 'mae'"):
        again.fit(BATCHES, 5, callbacks=[Measured("mae", [9.0] * 5), stop])


def write(path: Path, *records: dict[str, Any]) -> list[dict[str, str]]:
    for record in records:
        md.callbacks.CSV(path).after_epoch(SimpleNamespace(), record)
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_numbers_stand_below_their_names(tmp_path: Path) -> None:
    draws = np.random.default_rng(2)
    names = ["epoch", "loss", "a,b", 'c"d', "line\nbreak", "zwölf"]
    records = [
        {n: draws.standard_normal() for n in draws.permutation(names)[: draws.integers(1, 7)]}
        for _ in range(30)
    ]
    found = write(tmp_path / "log.csv", *records)
    assert len(found) == 30
    for row, record in zip(found, records, strict=True):
        assert {n: float(v) for n, v in row.items() if v} == record


def test_a_row_that_was_torn_goes(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    write(path, {"epoch": 1, "loss": 0.5})
    whole = path.read_bytes()
    for torn in (b"2", b"2,0.", b"2,0.25"):
        path.write_bytes(whole + torn)
        assert write(path, {"epoch": 2, "loss": 0.125}) == [
            {"epoch": "1", "loss": "0.5"},
            {"epoch": "2", "loss": "0.125"},
        ]


class Saves(md.callbacks.Callback):
    """Counts in which batch a file appears or changes."""

    def __init__(self, *paths: Path) -> None:
        self.paths, self.found = paths, [list[int]() for _ in paths]
        self.before: dict[Path, int | None] = {}

    def after_step(self, trainer: Any) -> None:
        for path, found in zip(self.paths, self.found, strict=True):
            now = path.stat().st_ino if path.exists() else None
            if now != self.before.get(path):
                found.append(trainer.progress.batches)
            self.before[path] = now


@pytest.mark.parametrize(("epochs", "every", "at"), [(4, 3, 4), (2, 3, 2), (3, 3, 3), (5, None, 5)])
def test_checkpoints_keep_the_end(epochs: int, every: int | None, at: int, tmp_path: Path) -> None:
    path = tmp_path / "run"
    ours = trainer()
    ours.fit(BATCHES, epochs, callbacks=[md.callbacks.Checkpoint(path, every)])
    again = trainer()
    again.restore(path)
    assert again.progress.epoch == at and len(again.history) == epochs


@pytest.mark.parametrize("background", [False, True])
def test_saves_by_steps_resume_with_the_same_bits(background: bool, tmp_path: Path) -> None:
    path = tmp_path / "run"
    keep = md.callbacks.Checkpoint(path, None, every_steps=3, background=background)

    class Dies(md.callbacks.Callback):
        def after_step(self, trainer: Any) -> None:
            if trainer.progress.batches == 5:
                raise ZeroDivisionError

    whole, first, second = trainer(), trainer(), trainer()
    whole.fit(BATCHES, 4)
    with pytest.raises(ZeroDivisionError):
        first.fit(BATCHES, 4, callbacks=[keep, Dies()])
    second.restore(path)
    assert second.progress.batches == 3
    second.fit(BATCHES, 4, callbacks=[keep])
    for name in whole.store:
        np.testing.assert_array_equal(second.store[name], whole.store[name], err_msg=name)
    third = trainer()
    third.restore(path)
    assert third.progress.epoch == 4


def test_a_run_does_not_resume_on_fewer_batches_than_it_was_trained_on(tmp_path: Path) -> None:
    first, second = trainer(), trainer()
    keep = md.callbacks.Checkpoint(tmp_path / "run", None, every_steps=2, background=False)
    with pytest.raises(ZeroDivisionError):
        first.fit(BATCHES, 1, callbacks=[keep, _Dies(2)])
    second.restore(tmp_path / "run")
    with pytest.raises(GraphError, match=r"train has 1 batches, and the checkpoint .* after 2 of"):
        second.fit(BATCHES[:1], 1)


class _Dies(md.callbacks.Callback):
    def __init__(self, batches: int) -> None:
        self.batches = batches

    def after_step(self, trainer: Any) -> None:
        if trainer.progress.batches == self.batches:
            raise ZeroDivisionError


def test_saves_by_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10**6, 20))
    fake = SimpleNamespace(monotonic=lambda: float(next(clock)))
    monkeypatch.setattr("minidnn.training.callbacks.checkpoint.time", fake)
    keep = md.callbacks.Checkpoint(tmp_path / "run", None, every_minutes=1)
    saves = Saves(tmp_path / "run")
    trainer().fit(BATCHES, 4, callbacks=[keep, saves])
    assert saves.found == [[3, 6]]  # each look takes 20 seconds


def test_a_file_that_cannot_be_written_behind_is_told(tmp_path: Path) -> None:
    keep = md.callbacks.Checkpoint(tmp_path / "no" / "run", background=True)
    with pytest.raises(OSError, match="no"):
        trainer().fit(BATCHES, 3, callbacks=[keep])


class Sends(md.callbacks.Callback):
    def __init__(self, name: str, batch: int) -> None:
        self.name, self.batch = name, batch

    def after_step(self, trainer: Any) -> None:
        if trainer.progress.batches == self.batch:
            signal.raise_signal(getattr(signal, self.name))


@pytest.mark.parametrize("keep_best", [None, "accuracy"])
def test_sigterm_saves_and_ends(keep_best: str | None, tmp_path: Path) -> None:
    path = tmp_path / "run"
    keep = md.callbacks.Checkpoint(path, keep_best=keep_best)
    ours, whole = trainer(), trainer()
    history = ours.fit(BATCHES, 4, callbacks=[Sends("SIGTERM", 3), keep])
    assert ours.interrupted and ours.halt == "SIGTERM" and len(history) == 1
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    again = trainer()
    again.restore(path if keep_best is None else tmp_path / "run.interrupted")
    assert again.progress.batches == 3
    again.fit(BATCHES, 4, callbacks=[keep])
    whole.fit(BATCHES, 4)
    for name in whole.store:
        np.testing.assert_array_equal(again.store[name], whole.store[name], err_msg=name)


def test_sigterm_within_validation_ends_it(tmp_path: Path) -> None:
    def validation() -> Any:
        for i in range(3):
            if i == 1:
                signal.raise_signal(signal.SIGTERM)
            assert i < 2
            yield BATCHES[0]

    ours = trainer()
    keep = md.callbacks.Checkpoint(tmp_path / "run")
    assert ours.fit(BATCHES, 2, validate=validation(), callbacks=[keep]) == []
    again = trainer()
    again.restore(tmp_path / "run")
    assert again.fit(BATCHES, 1, validate=BATCHES)[0]["steps"] == 2


def test_sigusr1_saves_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "run"
    saves = Saves(path)
    keep = md.callbacks.Checkpoint(path, None)
    ours = trainer()
    ours.fit(BATCHES, 4, callbacks=[Sends("SIGUSR1", 3), keep, saves])
    assert not ours.interrupted and saves.found == [[3]]
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


def test_handlers_of_a_program_stay(tmp_path: Path) -> None:
    came: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: came.append(number))
    try:
        keep = md.callbacks.Checkpoint(tmp_path / "run", None)
        trainer().fit(BATCHES, 2, callbacks=[Sends("SIGUSR1", 1), keep])
    finally:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    assert came == [signal.SIGUSR1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: md.callbacks.Checkpoint("a", 0), "Checkpoint: every=0; valid is an int of at"),
        (lambda: md.callbacks.Checkpoint("a", every_steps=-3), "every_steps=-3; valid is an int"),
        (lambda: md.callbacks.Checkpoint("a", every_minutes=-1), "every_minutes=-1; valid is a"),
        (lambda: md.callbacks.Checkpoint("a", signals="KILL"), "signals='KILL'; valid are SIGTERM"),
        (
            lambda: md.callbacks.Checkpoint("a", best="most"),
            "best='most' with keep_best=None; valid",
        ),
        (
            lambda: md.callbacks.Checkpoint("a", 2, keep_best="loss"),
            "Checkpoint: every=2 with keep_best='loss', which looks at each epoch; valid is one",
        ),
        (lambda: md.callbacks.EarlyStopping(best="max"), "best='max'; valid are 'least', 'most'"),  # type: ignore[arg-type]
    ],
)
def test_arguments_that_are_not_valid(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        make()
