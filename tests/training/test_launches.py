"""Several steps in a launch: the bits of single steps, what callbacks see, what is refused."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn.errors import GraphError, TrainingError
from minidnn.training.launches import Batch, launches

from .test_trainer import BATCHES, IMAGES, LABELS, SHAPE, Loader, network, trainer, without_time

DEVICES = ["reference", pytest.param("cuda", marks=pytest.mark.gpu)]
RATE = md.optim.Cosine(0.05, steps=15, warmup=3)


class Seen(md.callbacks.Callback):
    """What a callback sees of each step; it may do something after one."""

    def __init__(self, at: int = 0, then: Any = None) -> None:
        self.steps: list[tuple[Any, ...]] = []
        self._at, self._then = at, then

    def after_step(self, trainer: md.Trainer) -> None:
        at = trainer.progress
        last = {name: float(value) for name, value in trainer.last.items()}
        self.steps.append((at.batches, at.steps, at.position, at.samples, last, dict(at.sums)))
        if at.batches == self._at:
            self._then(trainer)


def raises(trainer: md.Trainer) -> None:
    raise KeyboardInterrupt


def same_states(one: md.Trainer, other: md.Trainer) -> None:
    assert list(one.store) == list(other.store)
    for name in one.store:
        np.testing.assert_array_equal(one.store[name], other.store[name], err_msg=name)


def options(device: str) -> dict[str, Any]:
    """On a GPU without algorithms that are chosen by measuring, which may be others each time."""
    given = {"optimizer": md.optim.Adam(RATE), "seed": 3, "average": 0.9, "device": device}
    return given | ({"tune": "heuristic"} if device == "cuda" else {})


@pytest.mark.parametrize(
    ("device", "counts"),
    [
        ("reference", (2, 3, 8)),
        ("cpu", (3,)),
        pytest.param("cuda", (2, 3, 8), marks=pytest.mark.gpu),
    ],
)
def test_losses_and_states_are_those_of_single_steps(device: str, counts: tuple[int, ...]) -> None:
    """Also with dropout, a schedule, and batches of another size in between."""
    batches = [*BATCHES[:4], (IMAGES[4][:3], LABELS[4][:3]), *BATCHES]
    found = []
    for count in (1, *counts):
        ours, seen = trainer(steps_per_launch=count, **options(device)), Seen()
        history = ours.fit(batches, 2, validate=BATCHES[:1], callbacks=[seen])
        found.append((ours, seen.steps, without_time(history)))
    (one, told, history), *others = found
    assert len(told) == 20
    for other, *rest in others:
        assert rest == [told, history]
        assert other.progress == one.progress and other.reached is other.progress
        same_states(one, other)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("after", "make"), [(1, Loader), (7, lambda: BATCHES), (8, Loader)])
def test_resuming_within_a_launch(make: Any, after: int, device: str, tmp_path: Path) -> None:
    """A checkpoint has all steps that were taken, also those that callbacks are not told of yet."""
    path = tmp_path / "run.safetensors"
    whole = trainer(**options(device))
    whole.fit(make(), 2)

    def saves(trainer: md.Trainer) -> None:
        trainer.save(path)
        raise KeyboardInterrupt

    first = trainer(steps_per_launch=3, **options(device))
    first.fit(make(), 2, callbacks=[Seen(after, saves)])
    taken = {1: 3, 7: 8, 8: 8}[after]
    assert first.interrupted and first.progress.batches == taken
    given = options(device)
    second = md.Trainer.load(
        path, network(), SHAPE, md.losses.CrossEntropy(), given.pop("optimizer"), **given
    )
    assert second.progress.batches == taken
    second.fit(make(), 2)
    same_states(second, whole)
    assert without_time(second.history) == without_time(whole.history)


def test_what_is_left_over_is_taken_and_saved_singly(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    ours = trainer(steps_per_launch=3)
    ours.fit(Loader(), 1, callbacks=[Seen(4, lambda trainer: trainer.save(path))])
    ours.restore(path)
    assert ours.loader_state == {"at": 4} and ours.progress.batches == 4


def test_ctrl_c_waits_for_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    data = md.data.Arrays(IMAGES.reshape(-1, *SHAPE[1:]), LABELS.ravel())
    whole, ours = trainer(), trainer(steps_per_launch=2)
    whole.fit(md.data.Loader(data, 8, shuffle=True), 2)
    program, calls = type(ours.step_program), 0
    usual = program.__call__

    def pressed(self: Any, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:  # the first of the second launch
            signal.raise_signal(signal.SIGINT)
        return usual(self, *arguments)

    loader = md.data.Loader(data, 8, shuffle=True)
    with monkeypatch.context() as patch:
        patch.setattr(program, "__call__", pressed)
        ours.fit(loader, 2)
    assert ours.interrupted and ours.progress.batches == ours.progress.position == 4
    ours.fit(loader, 2)
    same_states(ours, whole)
    assert without_time(ours.history) == without_time(whole.history)


@pytest.mark.parametrize("device", DEVICES)
def test_a_loss_that_is_not_finite_is_named(device: str) -> None:
    x = IMAGES[2].copy()
    x[0, 0, 0, 0] = np.nan
    batches = [*BATCHES[:2], (x, LABELS[2]), *BATCHES[3:]]
    ours, seen = trainer(steps_per_launch=4, device=device), Seen()
    message = (
        "batch 3 of epoch 1: the loss is nan, and nothing was changed by it; the next 1, of the "
        "same launch, were trained on; input of the batch has 1 of 128 values"
    )
    with pytest.raises(TrainingError, match=message):
        ours.fit(batches, 1, callbacks=[seen])
    assert [position for _, _, position, *_ in seen.steps] == [1, 2]
    assert ours.progress.batches == 4
    one, other = trainer(**options(device)), trainer(steps_per_launch=4, **options(device))
    for each in (one, other):
        each.fit(batches, 1, stop_on_nan=False)
    same_states(one, other)
    assert np.isnan(other.history[0]["loss"]) and np.isfinite(other.store["0.weight"]).all()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"steps_per_launch": 0}, "steps_per_launch=0; valid is an int of at least 1"),
        ({"steps_per_launch": 2.0}, "steps_per_launch=2.0; valid is an int of at least 1"),
        (
            {"steps_per_launch": 2, "accumulate": 2},
            "steps_per_launch=2, accumulate=2, distributed=False; valid is 1, or more with accum",
        ),
        (
            {"steps_per_launch": 4, "distributed": True},
            "steps_per_launch=4, accumulate=1, distributed=True; valid is 1, or more with accum",
        ),
    ],
)
def test_what_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        trainer(**given)


@pytest.mark.parametrize(
    ("sizes", "steps", "expected"),
    [
        ((8, 8, 8, 8, 8), 2, ((8, 8), (8, 8), (8,))),
        ((8, 8, 8, 3), 3, ((8, 8, 8), (3,))),
        ((8, 3, 3, 8, 8, 8), 2, ((8,), (3, 3), (8, 8), (8,))),
        ((8, 8), 1, ((8,), (8,))),
        ((), 4, ()),
    ],
)
def test_batches_of_one_size_share_a_launch(
    sizes: Sequence[int], steps: int, expected: tuple[tuple[int, ...], ...]
) -> None:
    batches = [Batch(None, None, (), ((size, 1),), None) for size in sizes]
    found = tuple(tuple(b.samples for b in group) for group in launches(batches, steps))
    assert found == expected
