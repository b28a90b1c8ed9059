"""The benchmark of scaling: which cores it takes, what it runs, and what it reports."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import scaling
from benchmarks.figures import Results
from minidnn.bench import engines
from minidnn.bench.engines import KINDS, OWN, Kind
from minidnn.bench.networks import Case, Prepared


def test_one_logical_core_of_each_physical_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scaling, "TOPOLOGY", tmp_path)
    for core, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        folder = tmp_path / f"cpu{core}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{siblings}\n")
    assert scaling.physical_cores([0, 1, 2, 3]) == [0, 1]
    assert scaling.physical_cores([3, 2]) == [2, 3]
    assert scaling.physical_cores([8, 9]) == [8, 9]  # the system does not tell


def test_on_takes_cores_and_gives_them_back() -> None:
    before = os.sched_getaffinity(0)
    one = min(before)
    with pytest.raises(KeyError), scaling.on([one]):
        assert os.sched_getaffinity(0) == {one}
        raise KeyError
    assert os.sched_getaffinity(0) == before


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """minidnn and PyTorch are engines that sum; the log names them as they start."""
    log = tmp_path / "log"
    log.write_text("")
    monkeypatch.setattr(engines, "NEEDED", ())
    for name, sleep in ((OWN, 0.002), ("torch", 0.006)):
        settings: dict[str, Any] = {"log": str(log), "name": name, "sleep": sleep}
        fake = Kind(name, "tests.bench.engines:summing", "onnx", (), (), settings)
        monkeypatch.setitem(KINDS, name, fake)  # type: ignore[index]

    def prepare(case: Case, folder: Path) -> Prepared:
        prepared = Prepared(case, folder)
        x = np.ones((case.batch, 3, 4, 4), np.float32)
        np.savez(prepared.inputs, x=x)
        np.save(prepared.expected, x.sum(axis=(1, 2, 3)))
        return prepared

    class Rates:
        copy = 5e10

        def peak(self, isa: str, threads: int) -> float:
            return 2e11 * threads

    monkeypatch.setattr(scaling, "prepare", prepare)
    monkeypatch.setattr(scaling, "measured_rates", lambda threads: Rates())
    return log


def options(**given: Any) -> Namespace:
    settings = {
        "networks": ["alexnet"],
        "batch": 2,
        "threads": [1],
        "against": ["torch"],
        "rounds": 3,
        "seconds": 1e9,
    }
    return Namespace(**{**settings, **given})


def test_each_is_measured_once_and_reported(log: Path, tmp_path: Path) -> None:
    results = Results(tmp_path / "scaling.json")
    scaling.measure(options(seconds=-1.0), results, tmp_path)
    assert log.read_text() == ""  # the time was over
    for _ in range(2):
        scaling.measure(options(), results, tmp_path)
        assert log.read_text().split() == [OWN, "torch"]
    engines = results.part("alexnet")["1"]["engines"]
    assert engines[OWN]["deviation"] == 0
    assert engines["torch"]["ratio"]["value"] > 1.5


def test_the_largest_number_of_threads_comes_first(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[int, int]] = []

    def run_engines(kinds: Any, prepared: Prepared, cores: list[int], rounds: int) -> Any:
        ran.append((prepared.case.threads, len(kinds)))
        assert cores == list(range(8))
        return {kind.name: {"seconds": 1.0} for kind in kinds}

    monkeypatch.setattr(scaling, "run_engines", run_engines)
    monkeypatch.setattr(scaling, "physical_cores", lambda usable: list(range(9)))
    monkeypatch.setattr(scaling.os, "sched_setaffinity", lambda process, cores: None)
    results = Results(tmp_path / "scaling.json")
    scaling.measure(options(threads=[1, 2, 4, 8]), results, tmp_path)
    assert ran == [(8, 2), (1, 1), (4, 1), (2, 1), (1, 2), (2, 2), (4, 2)]


def test_more_threads_than_cores_are_refused(log: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"--threads 4096: there are \d+ cores"):
        scaling.measure(options(threads=[1, 4096]), Results(tmp_path / "r.json"), tmp_path)


def test_the_report(tmp_path: Path) -> None:
    results = Results(tmp_path / "scaling.json")
    rates = {"flops by threads": {"1": 2e11, "8": 1.2e12}, "copy": 1e10}
    results.add("machine rates", "avx2", rates)
    ratio = {"value": 1.25, "low": 1.2, "high": 1.3}
    peer = {"seconds": 0.3, "ratio": ratio}
    results.add("vgg16", "8", {"engines": {OWN: {"seconds": 0.24}, "torch": peer}})
    results.add("vgg16", "1", {"engines": {OWN: {"seconds": 1.68}}})
    lines = list(scaling.report(results, ["vgg16"]))
    assert "multiply-adds, avx2, by threads: 1: 200 GFLOP/s, 8: 1200 GFLOP/s (6.0)\n" in lines
    assert lines[-2:] == [
        "| vgg16 | 1 | 1680 | 1.0 |  |",
        "| vgg16 | 8 | 240 | 7.0 | 1.25 [1.20, 1.30] |",
    ]
