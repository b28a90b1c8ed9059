"""The benchmark of first runs: engines start in turn, and making and running count."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.first_run import first_seconds, measure
from minidnn.bench.engines import Kind
from minidnn.bench.networks import Case, Prepared


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    prepared = Prepared(Case("alexnet", 2, 4, 4), tmp_path)
    np.savez(prepared.inputs, x=np.ones((2, 3, 4, 4), np.float32))
    return prepared


def kind(name: str, folder: Path, sleep: float) -> Kind:
    settings = {"log": str(folder / "log"), "name": name, "sleep": sleep}
    return Kind(name, "tests.bench.engines:summing", "onnx", (), (), settings)


def test_every_round_begins_with_another_engine(tmp_path: Path, prepared: Prepared) -> None:
    found = measure([kind("a", tmp_path, 0.0), kind("b", tmp_path, 0.0)], prepared, 3)
    assert (tmp_path / "log").read_text().split() == ["a", "b", "b", "a", "a", "b"]
    assert all(0 < one["seconds"]["low"] <= one["seconds"]["value"] for one in found.values())


def test_the_run_counts(tmp_path: Path, prepared: Prepared) -> None:
    assert first_seconds(kind("a", tmp_path, 0.2), prepared) >= 0.2
