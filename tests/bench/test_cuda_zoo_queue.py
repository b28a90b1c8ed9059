"""Cells for workers: their order, what is tried again, what is skipped, and the end.  The workers
here measure nothing, so no GPU is needed."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from argparse import ArgumentTypeError, Namespace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from benchmarks import cuda_zoo
from benchmarks.cuda_zoo_queue import Cell, Pool, Setting
from minidnn.bench.networks import BEYOND

WORKER = """
import json, os, sys, time
answers = os.fdopen(int(sys.argv[sys.argv.index("--answers") + 1]), "w")
folder = sys.argv[1]
for text in sys.stdin:
    cell = json.loads(text)
    times = os.path.join(folder, cell["name"])
    open(times, "a").write(f"begin {time.monotonic()}\\n")
    what = cell.get("what")
    if what == "dies" or (what == "dies once" and open(times).read().count("begin") == 1):
        os._exit(7)
    time.sleep(cell.get("seconds", 0))
    open(times, "a").write(f"end {time.monotonic()}\\n")
    answers.write(json.dumps(cell | {"pid": os.getpid(), "failed": {}}) + "\\n")
    answers.flush()
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pins workers to cores")


class Ran:
    """What a pool has made of cells."""

    def __init__(
        self, folder: Path, cells: list[Cell], workers: tuple[int, ...] = (1,), **options: Any
    ) -> None:
        self.seconds = options.pop("seconds", 60.0)
        self.found: list[dict[str, Any]] = []
        script = folder / "worker.py"
        script.write_text(WORKER)
        command = (sys.executable, str(script), str(folder))
        cores = frozenset(os.sched_getaffinity(0))
        settings = [Setting(command, dict(os.environ), cores, count) for count in workers]
        begin = time.monotonic()
        self.left = Pool(cells, settings, self.found.append, **options).run(self.seconds)
        self.took = time.monotonic() - begin
        self.names = [cell["name"] for cell in self.found]


def cell(name: str, gigabytes: float = 0.0, **content: Any) -> Cell:
    return Cell({"name": name, **content}, gigabytes)


def test_one_worker_answers_in_order(tmp_path: Path) -> None:
    ran = Ran(tmp_path, [cell(name) for name in "abc"])
    assert ran.names == ["a", "b", "c"]
    assert ran.left == 0
    assert len({one["pid"] for one in ran.found}) == 1


def test_several_workers_share_the_cells(tmp_path: Path) -> None:
    ran = Ran(tmp_path, [cell(f"{i}", seconds=0.2) for i in range(6)], (2, 1))
    assert sorted(ran.names) == [f"{i}" for i in range(6)]
    assert len({one["pid"] for one in ran.found}) == 3


def test_the_cell_of_a_worker_that_died_is_tried_once_more(tmp_path: Path) -> None:
    ran = Ran(tmp_path, [cell("a", what="dies once"), cell("b", what="dies"), cell("c")])
    assert ran.names == ["a", "b", "c"]
    failed = [one["failed"] for one in ran.found]
    assert failed == [{}, {"worker": "the process has ended with status 7"}, {}]
    assert (tmp_path / "b").read_text().count("begin") == 2


@pytest.mark.alone
def test_a_worker_that_does_not_answer_is_replaced(tmp_path: Path) -> None:
    ran = Ran(tmp_path, [cell("a", seconds=60), cell("b")], cell_seconds=1.0)
    assert ran.names == ["a", "b"]
    assert ran.found[0]["failed"] == {"worker": "no answer within 1 s"}


def test_a_worker_that_cannot_be_started_leaves_its_cells_failed() -> None:
    found: list[dict[str, Any]] = []
    setting = Setting(("/nowhere/worker",), {}, frozenset(os.sched_getaffinity(0)), 1)
    assert Pool([cell("a")], [setting], found.append).run(60.0) == 0
    assert "/nowhere/worker" in found[0]["failed"]["worker"]


@pytest.mark.alone
def test_when_the_time_is_over_workers_are_ended(tmp_path: Path) -> None:
    before = threading.active_count()
    cells = [cell("a"), cell("b", seconds=60), cell("c")]
    ran = Ran(tmp_path, cells, seconds=2.0)
    assert ran.names == ["a"]
    assert ran.left == 2
    assert ran.took < 30
    assert threading.active_count() == before


@pytest.mark.alone
def test_cells_with_one_gpu_fit_its_memory(tmp_path: Path) -> None:
    cells = [cell("a", 6, seconds=0.4), cell("b", 6, seconds=0.4), cell("c", 20, seconds=0.1)]
    ran = Ran(tmp_path, [*cells, cell("d", 2)], (3,), gigabytes=10.0)
    assert sorted(ran.names) == ["a", "b", "c", "d"]
    spans = {}
    for name in "abc":
        lines = (tmp_path / name).read_text().split()
        spans[name] = (float(lines[1]), float(lines[3]))
    ordered = sorted(spans.values())
    assert all(one[1] <= other[0] for one, other in pairwise(ordered))


def options(results: Path, **others: Any) -> Namespace:
    given: dict[str, Any] = {
        "results": results,
        "networks": ["alexnet", "vgg11"],
        "precisions": ["tf32", "float16"],
        "batches": [1, 128],
        "engines": ["minidnn", "torch"],
        "commit": "abc",
        "any_commit": False,
        "workers": 1,
        "beyond": False,
        "leave_out": [],
        "stages": None,
    }
    return Namespace(**given | others)


def result(commit: str, network: str, batch: int, **failed: str) -> dict[str, Any]:
    return {
        "commit": commit,
        "network": network,
        "precision": "float16",
        "batch": batch,
        "engines": ["minidnn", "torch"],
        "ms": {"minidnn": 1.0, "torch": 2.0},
        "compile_seconds": {},
        "errors": {"minidnn": 0.0},
        "failed": failed,
    }


def named(cells: list[Cell]) -> list[tuple[str, str, int]]:
    return [(c.content["network"], c.content["precision"], c.content["batch"]) for c in cells]


def test_stages_come_in_their_order(tmp_path: Path) -> None:
    asked = options(tmp_path / "none")
    found = named(cuda_zoo.missing(cuda_zoo.cells(asked), asked))
    stages = [("float16", 128), ("float16", 1), ("tf32", 128), ("tf32", 1)]
    assert found == [(name, *stage) for stage in stages for name in ("alexnet", "vgg11")]


def test_networks_beyond_the_classics_are_a_stage_too(tmp_path: Path) -> None:
    given = {"precisions": ["float16", "tf32"], "batches": [32], "networks": ["alexnet"]}
    asked = options(tmp_path / "none", beyond=True, **given)
    found = cuda_zoo.cells(asked)
    beyond = len(BEYOND)
    assert found[:2] == [("alexnet", "float16", 32), (BEYOND[0], "float16", 1)]
    assert len(found) == 2 + 4 * beyond and found[-1] == ("alexnet", "tf32", 32)


def test_stages_that_are_asked_for(tmp_path: Path) -> None:
    stages = [cuda_zoo.Stage.of(text) for text in ("tf32:32", "beyond:float16:1")]
    asked = options(tmp_path / "none", stages=stages)
    found = cuda_zoo.cells(asked)
    assert found[:3] == [
        ("alexnet", "tf32", 32),
        ("vgg11", "tf32", 32),
        (BEYOND[0], "float16", 1),
    ]
    assert len(found) == 2 + len(BEYOND)


def test_networks_of_a_family_do_not_follow_each_other() -> None:
    found = cuda_zoo.mixed(["vgg11", "vgg11_bn", "vgg13", "resnet18", "resnet34", "alexnet"])
    assert found == ["vgg11", "resnet18", "alexnet", "vgg11_bn", "resnet34", "vgg13"]


def test_engines_are_left_out_of_a_precision(tmp_path: Path) -> None:
    asked = options(tmp_path / "none", leave_out=["torch:tf32"], networks=["alexnet"])
    found = cuda_zoo.missing(cuda_zoo.cells(asked), asked)
    engines = {cell.content["precision"]: cell.content["engines"] for cell in found}
    assert engines == {"float16": ["minidnn", "torch"], "tf32": ["minidnn"]}
    asked.leave_out = ["torch"]
    assert cuda_zoo.engines("float16", asked) == cuda_zoo.engines("tf32", asked) == ["minidnn"]


@pytest.mark.parametrize("text", ["troch", "torch:float64", "torch:", ":tf32"])
def test_engines_that_there_are_not_are_not_left_out(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match=f"{text}.*torch-channels-last.*tf32"):
        cuda_zoo.left_out(text)


def test_finished_cells_are_skipped_and_failed_ones_come_last(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    cuda_zoo.report(result("abc", "alexnet", 128), results)
    cuda_zoo.report(result("abc", "vgg11", 128, worker="died"), results)
    cuda_zoo.report(result("old", "alexnet", 1), results)
    with results.open("a") as file:
        file.write('{"commit": "ab')
    asked = options(results, precisions=["float16"])
    found = named(cuda_zoo.missing(cuda_zoo.cells(asked), asked))
    one, all_ = ("alexnet", "float16", 1), ("vgg11", "float16", 1)
    assert found == [one, all_, ("vgg11", "float16", 128)]
    asked = options(results, precisions=["float16"], any_commit=True)
    found = named(cuda_zoo.missing(cuda_zoo.cells(asked), asked))
    assert found == [all_, ("vgg11", "float16", 128)]


def test_a_line_that_was_not_written_to_its_end_spoils_no_other(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    results.write_text('{"commit": "ab')
    cuda_zoo.report(result("abc", "alexnet", 128), results)
    assert [one["network"] for one in cuda_zoo.read(results)] == ["alexnet"]
    assert json.loads(results.read_text().splitlines()[1])["batch"] == 128


def test_gpus_are_numbered_among_the_visible_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert cuda_zoo.visible(1) == "1"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert cuda_zoo.visible(1) == "5"


def test_cores_are_kept_for_measuring_where_there_are_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = options(Path("none"), gpus=[0, 1], workers=6, rounds=15, tune="quick", regions=None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(32)))
    one, other = (cuda_zoo.setting(asked, i, i) for i in range(2))
    assert one.command[-3:] == ("--cores", "0", "1")
    assert other.command[-3:] == ("--cores", "2", "3")
    assert one.cores == set(range(4, 32))
    assert one.environment["TORCHINDUCTOR_COMPILE_THREADS"] == "2"
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert cuda_zoo.setting(asked, 0, 0).command[-1] == "--cores"
