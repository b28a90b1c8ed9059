"""What fusion gains in training: a strategy's steps, rows of networks, and the table of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from benchmarks import fusion_step, training_report
from minidnn.bench.process import EngineError
from minidnn.errors import GraphError


def test_a_strategy_takes_steps() -> None:
    shape = (4, 1, 8, 8)
    made = {
        strategy: fusion_step.engine("digits", shape, "float32", "reference", strategy, 0.0)
        for strategy in ("layers", "model")
    }
    layers, model = (one.about for one in made.values())
    assert layers["nodes"] > model["nodes"]
    assert layers["loss"] == pytest.approx(model["loss"], rel=1e-5)
    assert made["model"].run() > 0
    with pytest.raises(GraphError, match="strategy='other'"):
        fusion_step.engine("digits", shape, "float32", "reference", "other", 0.0)


class Process:
    """An engine's process that measures nothing; of more than 32 images there is no memory."""

    made: ClassVar[list[tuple[str, str, int]]] = []

    def __init__(
        self, name: str, target: str, options: Any, environment: Mapping[str, str], timeout: float
    ) -> None:
        strategy, batch = options["strategy"], options["shape"][0]
        self.made.append((name, environment.get("CUDA_VISIBLE_DEVICES", ""), batch))
        if batch > 32 and strategy == "cudnn":
            raise EngineError(f"engine {name!r}: could not make: OutOfMemoryError: no room")
        if options["network"] == "vgg11":
            raise EngineError(f"engine {name!r}: could not make: KeyError: 1")
        self.seconds, self._times = 1.0, iter([3.0, 2.0, 2.5] * 9)
        regions = {"contracting": 1.0, "other": 8.0 if strategy == "layers" else 2.0}
        self.about = {"loss": 1.0, "bytes": 5, "nodes": 7, "regions": regions, "machine": {}}
        self._factor = {"layers": 4.0, "cudnn": 2.0, "model": 1.0}[strategy]

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None: ...

    def outputs(self) -> list[np.ndarray]:
        return [np.array(self._factor * next(self._times))]


def test_rows_of_all_networks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fusion_step, "EngineProcess", Process)
    monkeypatch.setattr(Process, "made", [])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    path = tmp_path / "rows.jsonl"
    command = [str(path), "--networks", "vgg11", "resnet18", "densenet121", "--gpus", "1", "2"]
    command += ["--stages", "bfloat16:128", "--rounds", "3", "--commit", "c"]
    fusion_step.main(command)
    rows = {row["network"]: row for row in fusion_step.read(path)}
    assert "KeyError" in rows["vgg11"]["failed"]
    for name in ("densenet121", "resnet18"):
        row = rows[name]
        assert (row["asked"], row["batch"]) == (128, 32)
        assert row["seconds"]["model"]["value"] == 2.5 and row["ratio"]["layers"]["value"] == 4.0
    assert {gpu for _, gpu, _ in Process.made} <= {"5", "6"}
    assert len({gpu for name, gpu, _ in Process.made if "resnet18" in name}) == 1
    capsys.readouterr()
    Process.made.clear()
    fusion_step.main(command)  # what failed comes again, what is there does not
    assert {name.split()[0] for name, *_ in Process.made} == {"vgg11"}
    Process.made.clear()
    fusion_step.main([*command, "--seconds", "0"])
    assert not Process.made
    table = training_report.fusion(list(rows.values()))
    assert "| resnet18 | 32 | 10000.00 | 5000.00 | 2500.00 | 4.00 | 2.00 | 8.00 | 2.00 |" in table
    assert "| geometric mean |  |  |  |  | 4.00 | 2.00 |" in table
    del rows["resnet18"]["seconds"]["cudnn"]
    table = training_report.fusion(list(rows.values()))
    assert "| resnet18 | 32 | 10000.00 |  | 2500.00 | 4.00 |  | 8.00 | 2.00 |" in table
    assert json.loads(path.read_text().splitlines()[0])["commit"] == "c"


def test_the_table_of_launches() -> None:
    row = {"network": "digits", "precision": "float32", "batch": 64, "device ms": 0.25}
    row |= {"ms": {"unread": 0.75, "fit 1": 1.5, "fit 16": 0.5, "fit 4": 1.0}, "same losses": True}
    *_, found = training_report.launches([row]).splitlines()
    assert found == "| digits | float32 | 64 | 0.250 | 0.750 | 1.500 | 1.000 | 0.500 | 3.00 | yes |"


def test_the_deepest_networks_come_first() -> None:
    names = sorted(fusion_step.NETWORKS, key=fusion_step._depth, reverse=True)
    assert names[:2] == ["densenet201", "densenet169"] and names[-1].startswith("squeezenet")
    assert len(names) == 21
