"""Schedules beside PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

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
    ],
)
def test_schedule(ours: optim.RateSchedule, theirs: Callable[[Any], Any]) -> None:
    found = [ours(step) for step in range(STEPS)]
    assert found == pytest.approx(rates(theirs), rel=1e-12, abs=1e-15)


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
        (lambda: optim.SGD(lambda step: -1.0).rate(3), "lr gives -1.0 for step 3; valid is a num"),
        (lambda: optim.SGD(lambda step: "x").rate(3), "lr gives 'x' for step 3"),  # type: ignore[arg-type,return-value]
    ],
)
def test_bad_arguments(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        make()
