"""The tuner: what it tries, what it keeps, what it remembers, and how far off the model is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minidnn.errors import UnsupportedError
from minidnn.lab import studies
from minidnn.lab.api import H100
from minidnn.lab.cuda.product import PRODUCT
from minidnn.lab.isolated_jobs import Failure
from minidnn.lab.measure import Job
from minidnn.lab.operands import ProductShape, first_wrong
from minidnn.lab.studies import DEVICES, LabDevice
from minidnn.lab.tuner import StepTuning, default_choices, tune_step
from tests.cuda.emulator.run import Emulated, guarded

from .emulated import launch_all, plain

SHAPE = ProductShape(20, 24, 9)
BLOCKS = ((8, 8), (4, 4))
CHOICES = {"THREAD_ROWS": [2, 4], "THREAD_COLUMNS": [2, 4], "TILE_DEPTH": [4]}
CUDA: LabDevice = replace(DEVICES["cuda"], machine=lambda: H100, predict=studies.predict)


class Emulator:
    """Measures jobs in the emulator: a block of many threads is slow, and so are thin tiles."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.jobs = folder, 0

    def __call__(self, jobs: Sequence[Job]) -> Iterator[Any]:
        every = [plain(job.calls) for job in jobs]
        folder = self.folder / str(self.jobs)
        folder.mkdir()
        kernels = Emulated([call.launch.source for calls in every for call in calls], folder)
        for job, calls in zip(jobs, every, strict=True):
            self.jobs += 1
            _, y = guarded(job.size, np.dtype("f"))
            given = {name: np.load(path) for name, path in job.operands.files.items()}
            launch_all(kernels, calls, {**given, "y": y})
            expected = np.load(job.operands.expected)
            wrong = first_wrong(y, expected, job.operands.tolerance)
            blocks = job.launch.grid[0] * job.launch.grid[1]
            seconds = 1e-6 * (blocks + job.launch.block[0])
            yield Failure("error", wrong) if wrong else {"measured_seconds": seconds}


def tuned(run: Any, step: Any = None, **given: Any) -> StepTuning:
    step = step or PRODUCT.step("register_tile")
    return tune_step(PRODUCT, step, BLOCKS, SHAPE, CHOICES, CUDA, run, **given)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIDNN_CACHE", str(tmp_path / "cache"))


def test_the_best_is_found_and_remembered(tmp_path: Path) -> None:
    emulator = Emulator(tmp_path)
    found = tuned(emulator, method="exhaustive")
    assert len(found.tried) == emulator.jobs == 8 and not found.remembered
    times = [cell["measured_seconds"] for cell in found.tried]
    assert found.best["measured_seconds"] == min(times)
    first = min(found.tried, key=lambda cell: float(cell["predicted_seconds"]))
    assert found.loss == first["measured_seconds"] / min(times) >= 1
    again = tuned(emulator, method="exhaustive")
    assert again.remembered and emulator.jobs == 8 and again.best == found.best


@pytest.mark.parametrize("method", ["guided", "random"])
def test_few_are_tried_and_the_models_choice_is_one(method: str, tmp_path: Path) -> None:
    emulator = Emulator(tmp_path)
    found = tuned(emulator, method=method, most=4)
    assert len(found.tried) == emulator.jobs == 4
    assert found.tried[0] == found.model_choice and found.loss is not None
    keys = {(*cell["block"], *cell["parameters"].values()) for cell in found.tried}
    assert len(keys) == 4
    assert tuned(emulator, method=method, most=5).remembered is False


def test_what_is_wrong_is_not_kept(tmp_path: Path) -> None:
    step = PRODUCT.step("register_tile")
    broken = step.text.replace("fmaf(down[r],", "fmaf(THREAD_ROWS == 4 ? 0.5f : down[r],")
    found = tuned(Emulator(tmp_path), replace(step, source=broken), method="exhaustive")
    rows = {cell["parameters"]["THREAD_ROWS"] for cell in found.tried if "failed" in cell}
    assert rows == {4} and found.best["parameters"]["THREAD_ROWS"] == 2

    def refuses(jobs: Sequence[Job]) -> Iterator[Failure]:
        yield from (Failure("error", "it is wrong") for _ in jobs)

    nothing = tuned(refuses, method="random", most=2)
    with pytest.raises(UnsupportedError, match="nothing that was tried is right: it is wrong"):
        _ = nothing.best
    assert not tuned(refuses, method="random", most=2).remembered


def test_mistakes() -> None:
    with pytest.raises(UnsupportedError, match="method='best'; valid are guided, random, exh"):
        tuned(None, method="best")
    with pytest.raises(UnsupportedError, match="most=1; valid are numbers from 2 on"):
        tuned(None, most=1)
    assert default_choices(PRODUCT.step("column_tile")) == {
        "THREAD_ROWS": [2, 4, 8, 16, 32],
        "TILE_DEPTH": [2, 4, 8, 16, 32],
    }
