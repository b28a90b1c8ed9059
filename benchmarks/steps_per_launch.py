"""Milliseconds of a training step of networks that are smaller than the host is fast, by how many
steps are taken in a launch.

python -m benchmarks.steps_per_launch --launches 1 4 16

Batches lie on the GPU. "fit" reads the loss of every step, as ``Trainer.fit`` does; "unread" is a
loop over ``Trainer.step`` that reads none but the last, so that the host runs ahead.  "device" is
what the GPU works on a step, by its launches of the largest number, timed by events.  All take
turns, epoch after epoch; medians count.  A line of JSON tells of each network.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np

import minidnn as md
from benchmarks.figures import machine
from minidnn import layers as L
from minidnn import models
from minidnn.bench.results import commit
from minidnn.measure import interleaved


class Block(L.Layer):
    """Two convolutions beside what they read."""

    def __init__(self, channels: int, more: int, stride: int) -> None:
        self.first = L.Conv2d(channels, more, 3, stride, 1, bias=False)
        self.norm, self.relu = L.BatchNorm2d(more), L.ReLU()
        self.second = L.Conv2d(more, more, 3, padding=1, bias=False)
        self.last = L.BatchNorm2d(more)
        self.beside = L.Conv2d(channels, more, 1, stride, bias=False) if more > channels else None

    def forward(self, x: Any) -> Any:
        y = self.last(self.second(self.relu(self.norm(self.first(x)))))
        return self.relu(y + (x if self.beside is None else self.beside(x)))


def small_resnet() -> L.Layer:
    """ResNet-8 of pictures of 32x32."""
    return L.Sequential(
        *(L.Conv2d(3, 16, 3, padding=1, bias=False), L.BatchNorm2d(16), L.ReLU()),
        *(Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2)),
        *(L.AdaptiveAvgPool2d(1), L.Flatten(), L.Linear(64, 10)),
    )


NETWORKS: dict[str, tuple[Callable[[], Any], tuple[int, int, int]]] = {
    "digits": (lambda: models.get_model("digits"), (1, 8, 8)),
    "resnet8": (small_resnet, (3, 32, 32)),
    "resnet18": (lambda: models.get_model("resnet18", num_classes=10), (3, 32, 32)),
}


def trainer_of(name: str, steps: int, given: argparse.Namespace) -> md.Trainer:
    make, shape = NETWORKS[name]
    optimizer = md.optim.SGD(0.01, momentum=0.9, weight_decay=5e-4)
    return md.Trainer(
        make(),
        (given.batch, *shape),
        md.losses.CrossEntropy(),
        optimizer,
        steps_per_launch=steps,
        device=given.device,
        precision=given.precision,
    )


def batches_of(name: str, given: argparse.Namespace) -> list[tuple[Any, Any]]:
    random = np.random.default_rng(0)
    shape = (given.batch, *NETWORKS[name][1])
    found: list[tuple[Any, Any]] = [
        (random.standard_normal(shape, np.float32), random.integers(0, 10, given.batch))
        for _ in range(given.steps)
    ]
    if given.device == "cuda":
        import cupy

        found = [(cupy.asarray(x), cupy.asarray(target)) for x, target in found]
    return found


def measured(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """The line of a network."""
    batches = batches_of(name, given)
    made = {steps: trainer_of(name, steps, given) for steps in dict.fromkeys([1, *given.launches])}
    unread = trainer_of(name, 1, given)

    def loop() -> float:
        for x, target in batches:
            loss = unread.step(x, target)
        return float(loss)

    def fit(ours: md.Trainer) -> float:
        return float(ours.fit(batches, ours.progress.epoch + 1)[-1]["loss"])

    def timed(run: Callable[[], float]) -> tuple[float, float]:
        begin = time.perf_counter()
        loss = run()
        return 1e3 * (time.perf_counter() - begin) / len(batches), loss

    takes = {"unread": partial(timed, loop)}
    takes |= {f"fit {n}": partial(timed, partial(fit, ours)) for n, ours in made.items()}
    for take in takes.values():
        take()
    found = interleaved(takes, given.rounds)
    losses = {tuple(loss for _, loss in found[f"fit {n}"]) for n in made}
    about = machine(given.device == "cuda")
    row: dict[str, Any] = {**about, "commit": given.commit, "network": name}
    row |= {"batch": given.batch, "precision": given.precision, "same losses": len(losses) == 1}
    row["ms"] = {name: round(median(ms for ms, _ in some), 4) for name, some in found.items()}
    if given.device == "cuda":
        row["device ms"] = round(on_device(made[max(made)], batches), 4)
    return row


def on_device(ours: md.Trainer, batches: list[tuple[Any, Any]]) -> float:
    """Milliseconds of a step of the GPU alone, of a launch's graph without its copies."""
    import cupy

    ours.fit(batches, ours.progress.epoch + 1)
    program: Any = ours.step_program.program
    count = ours.steps_per_launch
    stream = cupy.cuda.Stream(non_blocking=True)
    found = []
    if count == 1:
        executable = program._instances[None].executable
    else:
        executable = program._repeated[count]._replay.executable
    with ours.store.unchanged(list(ours.store)):
        for _ in range(9):
            before, after = cupy.cuda.Event(), cupy.cuda.Event()
            before.record(stream)
            cupy.cuda.runtime.graphLaunch(executable, stream.ptr)
            after.record(stream)
            after.synchronize()
            found.append(cupy.cuda.get_elapsed_time(before, after) / count)
    return median(found)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--networks", nargs="+", default=list(NETWORKS), choices=NETWORKS)
    add("--launches", nargs="+", type=int, default=[1, 4, 16], help="steps of a launch")
    add("--device", choices=("cuda", "cpu", "reference"), default="cuda")
    add("--precision", default="float32")
    add("--batch", type=int, default=64)
    add("--steps", type=int, default=128, help="of an epoch")
    add("--rounds", type=int, default=7)
    add("--commit", default=commit(), help="where there is no git repository")
    given = parser.parse_args(arguments)
    for name in given.networks:
        print(json.dumps(measured(name, given)), flush=True)


if __name__ == "__main__":
    main()
