"""Images a second of ranks that train together, beside one of them alone.

minidnn launch --processes 2 benchmarks/distributed_step.py resnet50 --precision bfloat16

Each rank has its own batch, as large as that of the one alone; rank 0 prints a line of JSON.  Both
are taken in turn, round after round, and the median over the rounds counts.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from statistics import median
from typing import Any

import numpy as np

import minidnn as md
from minidnn import models

WARM = 5


def trainer_of(given: argparse.Namespace, distributed: bool) -> md.Trainer:
    device = given.device
    if device == "cuda" and not distributed:
        device = f"cuda:{os.environ['LOCAL_RANK']}"
    return md.Trainer(
        getattr(models, given.network)(),
        (given.batch, 3, given.size, given.size),
        md.losses.CrossEntropy(),
        md.optim.SGD(0.1, momentum=0.9, weight_decay=5e-4),
        device=device,
        precision=given.precision,
        distributed=distributed,
        synchronized=given.synchronized and distributed,
    )


def batch_of(given: argparse.Namespace) -> tuple[Any, Any]:
    """Images and targets, in the memory of this rank's GPU if it has one."""
    random = np.random.default_rng(int(os.environ["RANK"]))
    shape = (given.batch, 3, given.size, given.size)
    x, target = random.standard_normal(shape).astype(np.float32), random.integers(0, 1000, shape[0])
    if given.device != "cuda":
        return x, target
    import cupy

    with cupy.cuda.Device(int(os.environ["LOCAL_RANK"])):
        return cupy.asarray(x), cupy.asarray(target)


def seconds(ours: md.Trainer, batch: tuple[Any, Any], steps: int) -> float:
    """Of one step, when so many are made one after another and the last is waited for."""
    begin = time.perf_counter()
    for _ in range(steps):
        loss = ours.step(*batch)
    float(loss)
    return (time.perf_counter() - begin) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("network")
    add("--device", default="cuda")
    add("--precision", default="bfloat16")
    add("--batch", type=int, default=128)
    add("--size", type=int, default=224)
    add("--rounds", type=int, default=7)
    add("--steps", type=int, default=20)
    add("--synchronized", action="store_true", help="statistics over the batches of all ranks")
    given = parser.parse_args()
    together, alone = trainer_of(given, True), trainer_of(given, False)
    assert together.group is not None
    batch, ranks = batch_of(given), together.group.place.size
    times: dict[str, list[float]] = {"together": [], "alone": []}
    for turn in range(given.rounds + 1):
        for name, ours in (("together", together), ("alone", alone)):
            together.group.sum_of([])  # all ranks begin at once
            found = seconds(ours, batch, given.steps if turn else WARM)
            if turn:
                times[name].append(found)
    # Ranks alone may differ: their mean is what one does.
    own = [median(times["together"]), median(times["alone"])]
    both, one = (total / ranks for total in together.group.sum_of(own))
    if together.rank == 0:
        figures = {
            "network": given.network,
            "precision": given.precision,
            "ranks": ranks,
            "synchronized": given.synchronized,
            "library": together.group.describe(),
            "batch": given.batch,
            "ms_alone": 1e3 * one,
            "ms_together": 1e3 * both,
            "images_per_second_alone": given.batch / one,
            "images_per_second_together": ranks * given.batch / both,
            "efficiency": one / both,
        }
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
