"""The same seed gives the same bits on the CPU engine: run to run, with any number of threads, and
after resuming at each step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from tests.sampling import every

CLASSES, IMAGES, BATCH, SIZE, EPOCHS, STEPS = 4, 40, 8, 10, 2, 10
random = np.random.default_rng(5)
X = random.standard_normal((IMAGES, 3, SIZE + 2, SIZE + 2)).astype(np.float32)
Y = random.integers(0, CLASSES, IMAGES)


class Network(L.Layer):
    """All that is summed over a batch: filters, two normalizations, biases; and draws between."""

    def __init__(self) -> None:
        self.stem = L.Sequential(L.Conv2d(3, 24, 3, padding=1), L.BatchNorm2d(24), L.ReLU())
        self.wide = L.Sequential(
            *(L.Conv2d(24, 24, 3, padding=1, groups=2, bias=False), L.BatchNorm2d(24)),
            *(L.ReLU(), L.Dropout2d(0.2)),
        )
        self.pool = L.MaxPool2d(3, 2, 1)
        self.head = L.Sequential(L.Flatten(), L.Linear(600, 33), L.ReLU(), L.Dropout(0.3))
        self.last = L.Linear(33, CLASSES)

    def forward(self, x: Any) -> Any:
        y = self.stem(x)
        return self.last(self.head(self.pool(self.wide(y) + y)))


def loader() -> md.data.Loader:
    steps: list[Any] = [md.data.Flip(), md.data.RandomCrop(SIZE)]
    return md.data.Loader(md.data.Arrays(X, Y, steps), BATCH, shuffle=True, seed=2)


def trainer(threads: int, **options: Any) -> md.Trainer:
    return md.Trainer(
        Network().initialize(1),
        (BATCH, 3, SIZE, SIZE),
        md.losses.CrossEntropy(label_smoothing=0.1),
        md.optim.AdamW(md.optim.Cosine(0.01, steps=STEPS), weight_decay=1e-2, clip_norm=1.0),
        seed=9,
        average=0.9,
        device="cpu",
        threads=threads,
        **options,
    )


class SaveEach(md.callbacks.Callback):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def after_step(self, trainer: md.Trainer) -> None:
        trainer.save(self.folder / f"{trainer.progress.batches}.safetensors")


def bits(trainer: md.Trainer) -> Mapping[str, Any]:
    timed = ("seconds", "images_per_second")
    history = [{k: v for k, v in r.items() if k not in timed} for r in trainer.history]
    return {"history": history} | {k: v.tobytes() for k, v in trainer.store.items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Mapping[str, Any]]:
    """The bits of a run, and the folder with its checkpoint after each step."""
    folder = tmp_path_factory.mktemp("steps")
    ours = trainer(1)
    ours.fit(loader(), EPOCHS, callbacks=[SaveEach(folder)])
    assert ours.progress.steps == STEPS and len({r["loss"] for r in ours.history}) == EPOCHS
    return folder, bits(ours)


@pytest.mark.parametrize("threads", every(2, [1, 2, 3]))
def test_any_number_of_threads(threads: int, whole: tuple[Path, Mapping[str, Any]]) -> None:
    ours = trainer(threads)
    ours.fit(loader(), EPOCHS)
    assert bits(ours) == whole[1]


@pytest.mark.parametrize("after", every(3, range(1, STEPS + 1)))
def test_resuming(after: int, whole: tuple[Path, Mapping[str, Any]]) -> None:
    """With another number of threads, for each step one."""
    folder, expected = whole
    ours = trainer(1 + after % 3)
    assert bits(ours) != expected
    ours.restore(folder / f"{after}.safetensors")
    ours.fit(loader(), EPOCHS)
    assert bits(ours) == expected
