"""Schedules beside PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import minidnn as md
from minidnn import layers as L
from minidnn.errors import GraphError
from minidnn.training import optim

STEPS = 20


def rates(make: Callable[[Any], Any], lr: float = 0.3) -> list[float]:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr)
    schedule, found = make(optimizer), []
    for _ in range(STEPS):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


schedulers: Any = torch.optim.lr_scheduler


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (optim.ConstantRate(0.3), lambda o: schedulers.ConstantLR(o, 1.0)),
        (optim.StepDecay(0.3, every=6, factor=0.5), lambda o: schedulers.StepLR(o, 6, 0.5)),
        (optim.Cosine(0.3, steps=STEPS), lambda o: schedulers.CosineAnnealingLR(o, STEPS)),
        (
            optim.Cosine(0.3, steps=STEPS, end=0.1),
            lambda o: schedulers.CosineAnnealingLR(o, STEPS, 0.1),
        ),
        (
            optim.LinearDecay(0.3, steps=10, end=0.03),
            lambda o: schedulers.LinearLR(o, 1.0, 0.1, total_iters=10),
        ),
        (optim.OneCycle(0.3, steps=STEPS), lambda o: schedulers.OneCycleLR(o, 0.3, STEPS)),
        (
            optim.OneCycle(0.3, steps=STEPS, rise=0.5, start=10.0, last=100.0),
            lambda o: schedulers.OneCycleLR(
                o, 0.3, STEPS, pct_start=0.5, div_factor=10, final_div_factor=100
            ),
        ),
        (
            optim.MultiStep(0.3, [4, 9, 9], factor=0.5),
            lambda o: schedulers.MultiStepLR(o, [4, 9, 9], 0.5),
        ),
        (optim.Exponential(0.3, 0.9), lambda o: schedulers.ExponentialLR(o, 0.9)),
        (
            optim.Polynomial(0.3, steps=12, power=0.9),
            lambda o: schedulers.PolynomialLR(o, 12, 0.9),
        ),
        (
            optim.CosineRestarts(0.3, period=3, grow=2, end=0.01),
            lambda o: schedulers.CosineAnnealingWarmRestarts(o, 3, 2, 0.01),
        ),
        (
            optim.CosineRestarts(0.3, period=7),
            lambda o: schedulers.CosineAnnealingWarmRestarts(o, 7),
        ),
        *(
            (
                optim.Cyclic(0.1, 0.4, 3, down, mode, 0.95),  # type: ignore[arg-type]
                lambda o, mode=mode, down=down: schedulers.CyclicLR(
                    o, 0.1, 0.4, 3, down, mode, 0.95, cycle_momentum=False
                ),
            )
            for mode in ("triangular", "triangular2", "exp_range")
            for down in (None, 5)
        ),
        (
            optim.InTurn([0.3, optim.Exponential(0.3, 0.8), optim.Cosine(0.3, steps=9)], [3, 11]),
            lambda o: schedulers.SequentialLR(
                o,
                [
                    schedulers.ConstantLR(o, 1.0),
                    schedulers.ExponentialLR(o, 0.8),
                    schedulers.CosineAnnealingLR(o, 9),
                ],
                [3, 11],
            ),
        ),
    ],
)
def test_schedule(ours: Callable[[int], float], theirs: Callable[[Any], Any]) -> None:
    found = [ours(step) for step in range(STEPS)]
    assert found == pytest.approx(rates(theirs), rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("threshold_mode", ["rel", "abs"])
@pytest.mark.parametrize("seed", range(3))
def test_plateau(mode: str, threshold_mode: Any, seed: int) -> None:
    random = np.random.default_rng(seed)
    scores = np.sort(random.random(40))[:: -1 if mode == "min" else 1] + random.normal(0, 0.1, 40)
    scores[7] = np.nan
    options: dict[str, Any] = {"threshold": 0.05, "threshold_mode": threshold_mode}
    options |= {"cooldown": seed, "min_lr": 0.003, "eps": 1e-3}
    theirs = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.3)
    scheduler = schedulers.ReduceLROnPlateau(theirs, mode, 0.4, 2, **options)
    best: Any = "least" if mode == "min" else "most"
    ours = optim.ReduceOnPlateau("score", 0.4, 2, best=best, **options)
    trainer = SimpleNamespace(
        optimizer=optim.SGD(0.3), history=[], progress=SimpleNamespace(steps=0), measures={}
    )
    ours.begin(trainer, 40)
    for epoch, score in enumerate(scores):
        if epoch == 20:  # another process goes on
            trainer.optimizer = optim.SGD(0.3)
            ours = optim.ReduceOnPlateau("score", 0.4, 2, best=best, **options)
            ours.begin(trainer, 40)
        if epoch == 30:
            ours.begin(trainer, 50)
        rate = trainer.optimizer.rate(epoch)
        assert rate == pytest.approx(theirs.param_groups[0]["lr"], rel=1e-12)
        record = {"steps": epoch + 1, "score": 0.0, "validation_score": score}
        trainer.progress.steps = epoch + 1
        trainer.history.append(record)
        ours.after_epoch(trainer, record)
        scheduler.step(score)
    assert trainer.optimizer.rate(40) < 0.3


def test_a_trainer_with_a_plateau() -> None:
    """The rate falls below that of a schedule, and a program is not compiled again."""
    net = md.Sequential(L.Linear(3, 2))
    lr = optim.LinearDecay(0.1, steps=8)
    trainer = md.Trainer(net, (2, 3), md.losses.MSE(), optim.SGD(lr), device="reference")
    batches = [(np.zeros((2, 3), np.float32), np.full((2, 2), 1e9, np.float32))]
    plateau = optim.ReduceOnPlateau(factor=0.5, patience=0, threshold=1.0)
    history = trainer.fit(batches, 4, callbacks=[plateau])
    found = [record["rate"] for record in history]
    assert found == pytest.approx([lr(0), lr(1), lr(2) / 2, lr(3) / 4])
    assert trainer.optimizer.rate(4) == pytest.approx(lr(4) / 8)


BATCHES = [(np.zeros((2, 3), np.float32), np.zeros((2, 2), np.float32))]


def small_trainer(**options: Any) -> md.Trainer:
    net = md.Sequential(L.Linear(3, 2))
    return md.Trainer(net, (2, 3), md.losses.MSE(), optim.SGD(0.1), device="reference", **options)


def test_a_plateau_of_what_is_not_measured() -> None:
    with pytest.raises(GraphError, match="ReduceOnPlateau: epochs have no 'my_loss'; did you mean"):
        small_trainer().fit(BATCHES, 1, callbacks=[optim.ReduceOnPlateau("my_loss")])


def test_a_plateau_does_not_compare_training_with_validation() -> None:
    class Validated(md.callbacks.Callback):
        def after_epoch(self, trainer: Any, record: dict[str, Any]) -> None:
            record["loss"] = 0.0
            if record["epoch"] > 1:
                record["validation_loss"] = 1.0

    ours, plateau = small_trainer(), optim.ReduceOnPlateau(factor=0.5, patience=0)
    ours.fit(BATCHES, 2, callbacks=[Validated(), plateau])
    assert plateau.scale == 1.0  # the first number of validation begins anew
    ours.fit(BATCHES, 3, callbacks=[Validated(), plateau])
    assert plateau.scale == 0.5
    with pytest.raises(
        GraphError,
        match="ReduceOnPlateau: this epoch has no 'validation_loss', which the best so far was",
    ):
        ours.fit(BATCHES, 4, callbacks=[plateau])


def rising(x: Any, t: Any) -> Any:
    return x.mean()


rising.best = "most"  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["accuracy", "wer", "own"])
def test_a_plateau_knows_which_way_is_better_as_early_stopping_does(name: str) -> None:
    """By the measure itself or its name."""

    class Measured(md.callbacks.Callback):
        def after_epoch(self, trainer: Any, record: dict[str, Any]) -> None:
            record[name] = float(record["epoch"])

    metrics = {"own": rising, "other": lambda x, t: x.mean()}
    ours, plateau = small_trainer(metrics=metrics), optim.ReduceOnPlateau(name, 0.5, 0)
    ours.fit(BATCHES, 3, callbacks=[Measured(), plateau])
    assert plateau.scale == (0.25 if name == "wer" else 1.0)
    with pytest.raises(GraphError, match="ReduceOnPlateau: best=None, and 'other' does not say wh"):
        ours.fit(BATCHES, 4, callbacks=[optim.ReduceOnPlateau("other")])


def test_warmup_comes_first() -> None:
    schedule = optim.Cosine(0.4, steps=13, warmup=3)
    assert [schedule(step) for step in range(4)] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    rest = optim.Cosine(0.4, steps=10)
    assert [schedule(step + 3) for step in range(12)] == [rest(step) for step in range(12)]
    assert schedule(99) == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: optim.Cosine(-0.1, steps=4), "Cosine: lr=-0.1; valid is a number of at least 0"),
        (lambda: optim.Cosine(0.1, steps=4, warmup=4), "steps=4; valid is an int of at least 5"),
        (
            lambda: optim.StepDecay(0.1, every=0),
            "StepDecay: every=0; valid is an int of",
        ),
        (lambda: optim.MultiStep(0.1, [3, 2.5]), r"milestones\[1\]=2.5; valid is an int of at"),  # type: ignore[list-item]
        (lambda: optim.MultiStep(0.1, 7), "MultiStep: milestones=7; valid is a sequence of ints"),  # type: ignore[arg-type]
        (lambda: optim.Exponential(0.1, -1), "Exponential: factor=-1; valid is a number of"),
        (lambda: optim.CosineRestarts(0.1, 0), "period=0; valid is an int of at least 1"),
        (lambda: optim.Cyclic(0.1, 0.05), "Cyclic: top=0.05; valid is a number of at least 0.1"),
        (lambda: optim.Cyclic(0.1, 0.2, mode="x"), "mode='x'; valid are 'triangular', 'triang"),  # type: ignore[arg-type]
        (lambda: optim.InTurn([0.1, 0.2], [3, 4]), "milestones=.3, 4.; valid are 1 ints, one fe"),
        (lambda: optim.InTurn([0.1] * 3, [3, 3]), r"milestones\[1\]=3; valid is an int of at leas"),
        (lambda: optim.ReduceOnPlateau(factor=1), "factor=1; valid is a number below 1"),
        (lambda: optim.ReduceOnPlateau(best="x"), "best='x'; valid are 'least', 'most' and None"),  # type: ignore[arg-type]
        (lambda: optim.SGD(optim.ReduceOnPlateau()), "lr is a ReduceOnPlateau, which is a callb"),  # type: ignore[arg-type]
        (lambda: optim.SGD(lambda step: -1.0).rate(3), "lr gives -1.0 for step 3; valid is a num"),
        (lambda: optim.SGD(lambda step: "x").rate(3), "lr gives 'x' for step 3"),  # type: ignore[arg-type,return-value]
    ],
)
def test_bad_arguments(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        make()
