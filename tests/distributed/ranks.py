"""What each rank of the tests runs: trainings that ``test_trainer.py`` looks at.

Started by ``minidnn launch`` with a folder, to which every rank writes what it came to.
"""

from __future__ import annotations

import resource
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

import minidnn as md
from minidnn import layers as L
from minidnn.distributed import find_rank

SHAPE, CLASSES, STEPS = (4, 2, 5, 5), 3, 4


def network(kind: str) -> md.Sequential:
    """Of "plain" nothing depends on the batch or on chance; "normed" and "dropped" do."""
    extra: dict[str, list[Any]] = {
        "plain": [],
        "normed": [L.BatchNorm2d(6)],
        "dropped": [L.Dropout(0.5)],
    }
    return md.Sequential(
        L.Conv2d(2, 6, 3, padding=1),
        *extra[kind],
        *(L.ReLU(), L.Flatten(), L.Linear(150, CLASSES)),
    )


def batches(rank: int, count: int = STEPS) -> list[tuple[np.ndarray, np.ndarray]]:
    """Those of a rank."""
    random = np.random.default_rng(rank)
    return [
        (
            random.standard_normal(SHAPE).astype(np.float32),
            random.integers(0, CLASSES, SHAPE[0]),
        )
        for _ in range(count)
    ]


def trainer(kind: str, distributed: bool = True, **more: Any) -> md.Trainer:
    given: dict[str, Any] = {
        "optimizer": md.optim.SGD(0.1, momentum=0.9, weight_decay=0.01),
        "device": "reference",
        **more,
    }
    shape = given.pop("shape", SHAPE)
    net, loss = network(kind), given.pop("loss", md.losses.CrossEntropy())
    return md.Trainer(net, shape, loss, distributed=distributed, **given)


class Peak(md.metrics.Metric):
    """The largest of all outputs, of which it sees that of a batch."""

    adds = False

    def seen(self, output: Any, target: Any) -> tuple[Any, ...]:
        return (output.max(),)

    def batch(self, output: Any, target: Any) -> dict[str, np.ndarray]:
        return {"peaks": output.reshape(1)}

    def result(self, states: Any) -> float:
        return float(states["peaks"].max())


def measuring(distributed: bool = True) -> md.Trainer:
    """With metrics of whole sets, and targets that do not count."""
    metrics = [md.metrics.F1Score(average="macro"), md.metrics.AUROC(average="weighted"), Peak()]
    return trainer(
        "plain",
        distributed,
        loss=md.losses.CrossEntropy(ignore_index=2),
        metrics=metrics,
        optimizer=md.optim.SGD(0.0),
    )


class Sends(md.callbacks.Callback):
    """Sends this process SIGTERM after the third batch."""

    def after_step(self, trainer: Any) -> None:
        if trainer.progress.batches == 3:
            signal.raise_signal(signal.SIGTERM)


class Halts(md.callbacks.Callback):
    """Ends training after the second batch."""

    def after_step(self, trainer: Any) -> None:
        trainer.halt = "test" if trainer.progress.batches == 2 else None


def trained(ours: md.Trainer, data: list[tuple[np.ndarray, np.ndarray]]) -> dict[str, Any]:
    """The loss of each step, and all states after them."""
    losses = [float(ours.step(x, target)) for x, target in data]
    return {"losses": np.array(losses), **{name: a.copy() for name, a in ours.store.items()}}


def scenarios(rank: int, folder: Path) -> dict[str, dict[str, Any]]:
    own = batches(rank)
    found = {
        "plain": trained(trainer("plain", precision="float64"), own),
        "again": trained(trainer("plain", precision="float64"), own),
        "normed": trained(trainer("normed"), own),
        "same": trained(trainer("normed"), batches(0)),
        "dropped": trained(trainer("dropped"), batches(0)),
        "parts": trained(trainer("normed", accumulate=2, average=0.5), batches(0)),
        "clipped": trained(
            trainer("plain", optimizer=md.optim.Adam(0.1, clip_norm=0.01), precision="float64"), own
        ),
        "scaled": trained(trainer("plain", loss_scale=md.optim.LossScale(64.0)), own),
        "fast": trained(trainer("normed", device=sys.argv[2]), own),
    }
    for name, device in (("synchronized", "reference"), ("synchronized fast", sys.argv[2])):
        more: dict[str, Any] = {"precision": "float64"} if device == "reference" else {}
        ours = trainer("normed", synchronized=True, device=device, **more)
        found[name] = trained(ours, own)
    found["synchronized parts"] = trained(
        trainer("normed", synchronized=True, accumulate=2, precision="float64"), own
    )
    ours = trainer("dropped")
    trained(ours, own[:2])
    ours.save(folder / "checkpoint")
    before = trained(ours, own[2:])
    other = trainer("dropped", seed=9)
    other.restore(folder / "checkpoint")
    found["went on"] = before
    found["resumed"] = trained(other, own[2:])
    ours = trainer("normed")
    trained(ours, own[:1])
    found["before NaN"] = {name: array.copy() for name, array in ours.store.items()}
    x, target = own[1]
    bad = [(np.full_like(x, np.nan), target) if rank else (x, target)]
    found["NaN"] = trained(ours, bad)
    found["evaluated"] = {"means": np.array(list(ours.evaluate(own[: 1 + rank]).values()))}
    history = trainer("plain").fit(own, 2)
    found["fit"] = {"losses": np.array([record["loss"] for record in history])}
    ours = measuring()
    record = ours.fit(own, 1)[0]
    told = ours.evaluate(own[: 1 + rank])
    of_one_rank = ours.evaluate(own[: 2 * rank])
    halted = measuring()
    halted.fit(own, 1, callbacks=[Halts()])
    for _ in range(2):  # what is measured so far is rank 0's, until the next step
        halted.save(folder / "halted")
        halted = measuring()
        halted.restore(folder / "halted")
    went_on = halted.fit(own, 1)[0]
    names = ("accuracy", "f1_score", "auroc", "peak")
    found["measured"] = {
        "evaluated": np.array([told["loss"], *(told[name] for name in names)]),
        "of one rank": np.array([of_one_rank[name] for name in names]),
        "epoch": np.array([record[name] for name in names[1:]]),
        "went on": np.array([went_on[name] for name in names[1:]]),
    }
    ours = trainer("plain")
    keep = md.callbacks.Checkpoint(folder / "ended")
    ours.fit(batches(rank, 40), 1, callbacks=[*([Sends()] if rank else []), keep])
    found["ended"] = {"batches": np.array([ours.progress.batches, ours.interrupted])}
    return found


def on_gpus(rank: int, folder: Path) -> dict[str, dict[str, Any]]:
    """What does not follow from the CPU: precisions, streams, and the library."""
    own = batches(rank, 8)
    found = {}
    for precision in ("float32", "bfloat16", "float16"):
        for name in (precision, f"{precision} again"):
            found[name] = trained(trainer("normed", device="cuda", precision=precision), own)
    for precision in ("float32", "bfloat16"):
        ours = trainer("normed", device="cuda", precision=precision, synchronized=True)
        found[f"synchronized {precision}"] = trained(ours, own)
    ours = trainer("dropped", device="cuda", precision="float32")
    trained(ours, own[:2])
    ours.save(folder / "checkpoint")
    found["went on"] = trained(ours, own[2:])
    ours.restore(folder / "checkpoint")
    found["resumed"] = trained(ours, own[2:])
    found["evaluated"] = {"means": np.array(list(ours.evaluate(own[: 1 + rank]).values()))}
    return found


def main() -> None:
    rank, folder = find_rank().rank, Path(sys.argv[1])
    act = on_gpus if sys.argv[2] == "cuda" else scenarios
    for name, arrays in act(rank, folder).items():
        np.savez(folder / f"{name}-{rank}.npz", **arrays)
    if len(sys.argv) > 3:
        print("all is written", flush=True)
        end_on_a_full_disk(Path(sys.argv[3]))


def end_on_a_full_disk(kept: Path) -> None:
    """A limit on the size of files refuses to write as a full disk does."""
    ours = trainer("plain")
    data = batches(ours.rank)
    trained(ours, data[:1])
    ours.save(kept)
    trained(ours, data[1:])
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
    ours.save(kept)
    print("came to its end")


if __name__ == "__main__":
    main()
