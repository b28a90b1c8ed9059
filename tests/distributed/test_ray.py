"""The trainer as a worker of Ray Train: reports, checkpoints, and workers that are killed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn.errors import MiniDNNError

from . import ranks


class Checkpoints:
    """Ray's checkpoints, in a folder that stays when the one given is gone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made = 0

    def from_directory(self, given: str) -> Checkpoints:
        self.made += 1
        kept = Checkpoints(self.folder / str(self.made))
        shutil.copytree(given, kept.folder)
        return kept

    @contextmanager
    def as_directory(self) -> Iterator[str]:
        yield str(self.folder)


class FakeRay(ModuleType):
    """What a single worker sees of Ray Train."""

    def __init__(self, folder: Path) -> None:
        super().__init__("ray.train")
        self.Checkpoint = Checkpoints(folder)
        self.reports: list[dict[str, Any]] = []
        self.last: Checkpoints | None = None

    def get_checkpoint(self) -> Checkpoints | None:
        return self.last

    def report(self, record: dict[str, Any], checkpoint: Checkpoints | None) -> None:
        self.reports.append(record)
        self.last = checkpoint or self.last


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeRay:
    found = FakeRay(tmp_path)
    whole = ModuleType("ray")
    whole.train = found  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", whole)
    monkeypatch.setitem(sys.modules, "ray.train", found)
    return found


class Fails(md.callbacks.Callback):
    def after_step(self, trainer: Any) -> None:
        if trainer.progress.batches == 6:
            raise ConnectionError("the worker is gone")


@pytest.mark.parametrize("every", [None, 1, 3])
def test_a_new_worker_goes_on_with_the_same_bits(fake: FakeRay, every: int | None) -> None:
    expected = ranks.trainer("dropped", False)
    expected.fit(ranks.batches(0), epochs=2)
    report = md.callbacks.RayReport(every)
    with pytest.raises(ConnectionError):
        ranks.trainer("dropped", False).fit(ranks.batches(0), 2, callbacks=[report, Fails()])
    steps = {None: [4], 1: [1, 2, 3, 4, 4, 5, 6], 3: [3, 4]}[every]
    assert [record["steps"] for record in fake.reports] == steps
    other = ranks.trainer("dropped", False, seed=5)
    other.fit(ranks.batches(0), 2, callbacks=[md.callbacks.RayReport(every)])
    for name, array in expected.store.items():
        np.testing.assert_array_equal(other.store[name], array, name)
    assert fake.reports[-1]["epoch"] == 2 and fake.reports[-1]["steps"] == 8


def test_the_page_starts_workers(fake: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its blocks hand Ray a function that trains, and what that is told."""
    started: list[tuple[Any, dict[str, Any]]] = []

    class Started:
        def __init__(self, train: Any, **options: Any) -> None:
            started.append((train, options))

        def fit(self) -> None:
            pass

    torch = ModuleType("ray.train.torch")
    vars(torch).update(TorchTrainer=Started, TorchConfig=dict)
    monkeypatch.setitem(sys.modules, "ray.train.torch", torch)
    vars(fake).update(FailureConfig=dict, RunConfig=dict, ScalingConfig=dict)
    page = Path(__file__).parents[2] / "docs/how-to/train-on-several-gpus.md"
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"loader": list}
    for block in blocks:
        if "ray" in block.lower():
            exec(compile(block, page.name, "exec"), names)
    ((train, options),) = started
    assert train is names["train"] and options["train_loop_config"] == {"loader": list}
    assert options["scaling_config"]["num_workers"] == 16


@pytest.mark.parametrize("every", [0, -1, 1.5, True])
def test_how_often_is_checked(fake: FakeRay, every: Any) -> None:
    with pytest.raises(MiniDNNError, match=f"every={every}"):
        md.callbacks.RayReport(every)


def test_without_ray_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "ray.train", None)
    with pytest.raises(MiniDNNError, match=r"RayReport needs Ray Train.*'minidnn\[ray\]'"):
        md.callbacks.RayReport()


@pytest.mark.full
def test_a_worker_that_is_killed_begins_again(root: Path, tmp_path: Path) -> None:
    """Both ranks end, and go on from the checkpoint before, as if nothing had been."""
    pytest.importorskip("torch.distributed", reason="Gloo comes with PyTorch")
    pytest.importorskip("ray.train", reason="Ray Train is not installed (minidnn[ray])")
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    environment |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    environment |= {"RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "300"}
    found = {}
    for dies in (0, 8):
        folder = tmp_path / str(dies)
        folder.mkdir()
        done = subprocess.run(
            [sys.executable, "-m", "tests.distributed.on_ray", str(folder), str(dies)],
            cwd=root,
            env=environment,
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        begun = {(folder / f"begun-{rank}").read_text() for rank in (0, 1)}
        assert begun == ({".."} if dies else {"."})
        found[dies] = [dict(np.load(folder / f"states-{rank}.npz")) for rank in (0, 1)]
    for before, after in zip(found[0], found[8], strict=True):
        for name, array in before.items():
            np.testing.assert_array_equal(after[name], array, name)
