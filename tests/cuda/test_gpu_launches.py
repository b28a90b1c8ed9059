"""Several training steps in one CUDA graph: their bits, wherever batches lie, and their memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minidnn as md
from benchmarks.steps_per_launch import Block
from minidnn import layers as L
from minidnn.errors import GraphError, OutOfMemoryError
from minidnn.runtime.program import RepeatingProgram

pytestmark = pytest.mark.gpu

SHAPE = (16, 3, 32, 32)
random = np.random.default_rng(0)
BATCHES = [
    (random.standard_normal(SHAPE, np.float32), random.integers(0, 10, SHAPE[0])) for _ in range(10)
]
PLACES: dict[str, Callable[[np.ndarray], Any]] = {
    "host": lambda array: array,
    "cupy": lambda array: __import__("cupy").asarray(array),
    "torch": lambda array: __import__("torch").from_numpy(array).cuda(),
}


def trainer(steps: int, precision: str = "float32", **options: Any) -> md.Trainer:
    """Algorithms are not chosen by measuring: another process that does so may choose others."""
    net = md.Sequential(
        *(L.Conv2d(3, 16, 7, 2, 3), L.ReLU(), L.MaxPool2d(3, 2, 1)),
        *(Block(16, 32, 1), Block(32, 64, 2), L.AdaptiveAvgPool2d(1), L.Flatten()),
        *(L.Dropout(0.2), L.Linear(64, 10)),
    )
    net.initialize(0)
    optimizer = md.optim.AdamW(md.optim.Cosine(1e-3, steps=20, warmup=4), weight_decay=0.01)
    given: dict[str, Any] = {"precision": precision, "device": "cuda", "seed": 5, "average": 0.9}
    given |= {"tune": "heuristic", "steps_per_launch": steps, **options}
    return md.Trainer(net, SHAPE, md.losses.CrossEntropy(), optimizer, **given)


class Losses(md.callbacks.Callback):
    def __init__(self) -> None:
        self.found: list[float] = []

    def after_step(self, trainer: md.Trainer) -> None:
        self.found.append(float(trainer.last["loss"]))


def fitted(ours: md.Trainer, place: str = "host") -> list[float]:
    put, losses = PLACES[place], Losses()
    ours.fit([(put(x), put(target)) for x, target in BATCHES], 2, callbacks=[losses])
    return losses.found


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16", "float16"])
def test_the_bits_are_those_of_single_steps(precision: str, place: str) -> None:
    one, four = trainer(1, precision), trainer(4, precision)
    assert isinstance(four.step_program.program, RepeatingProgram)
    assert fitted(one) == fitted(four, place)
    assert list(one.store) == list(four.store)
    for name in one.store:
        np.testing.assert_array_equal(one.store[name], four.store[name], err_msg=name)
    assert four.loss_scale == one.loss_scale and four.progress == one.progress


def test_batches_on_several_streams_follow_each_other() -> None:
    """Launches, single steps and evaluation take turns in the same memory."""
    import cupy

    one, four = trainer(1), trainer(4)
    wanted = []
    for ours in (one, four):
        losses = Losses()
        for epoch in range(3):
            with cupy.cuda.Stream(non_blocking=True):
                batches = [(cupy.asarray(x), cupy.asarray(t)) for x, t in BATCHES]
                ours.fit(batches, epoch + 1, validate=batches[:2], callbacks=[losses])
                losses.found.append(float(ours.step(*batches[epoch])))
        losses.found += [record["validation_loss"] for record in ours.history]
        wanted.append(losses.found)
    assert wanted[0] == wanted[1]


def test_inputs_and_results_are_all_that_it_takes_more() -> None:
    one, eight = trainer(1), trainer(8)
    programs: list[Any] = [each.step_program.program for each in (one, eight)]
    slot = 4 * BATCHES[0][0].size + 8 * SHAPE[0]
    more = programs[1].bytes - programs[0].bytes
    assert 8 * slot <= more <= 8 * (slot + 10 * 256)
    limit = programs[0].bytes + 2 * slot
    with pytest.raises(OutOfMemoryError, match=r"memory_limit=\d+.* 8 runs in a launch take"):
        trainer(8, memory_limit=limit)


def test_a_batch_that_does_not_fit_is_told() -> None:
    import cupy

    ours = trainer(2)
    before = {name: array.copy() for name, array in ours.store.items()}
    wrong = (BATCHES[0][0], cupy.zeros(SHAPE[0], np.float32))
    with pytest.raises(GraphError, match=r"target is float32 of shape .*; valid is an int dtype"):
        ours.fit([BATCHES[0], wrong], 1)
    for name, array in before.items():
        np.testing.assert_array_equal(ours.store[name], array)
