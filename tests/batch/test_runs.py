"""A run without Ray: what is in its folder after whatever may happen to it."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tracemalloc
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from minidnn.batch import BatchError, Predictor
from minidnn.batch.driver import Run, Summary
from minidnn.batch.files import FilePart, parts_of, write_list
from minidnn.batch.manifest import Entry, FolderLock, Manifest, Worker
from minidnn.batch.predictor import PicturePrediction
from minidnn.errors import GraphError
from minidnn.pictures import Preparation

COUNT, DAMAGED = 50, 7


class Told(Predictor):
    """Says a file's number as its score; files whose name has "bad" cannot be read."""

    def __init__(self) -> None:
        super().__init__(None, Preparation(1, 1), top=None)

    def predict(self, files: Sequence[str]) -> Iterator[PicturePrediction]:
        for file in files:
            if "bad" in file:
                yield PicturePrediction(file, None, f"picture {file} cannot be read: it is bad")
            else:
                yield PicturePrediction(file, {"scores": [float(Path(file).stem)]})


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(COUNT):
        name = f"{number:03d}.bad.png" if number % 8 == 3 else f"{number:03d}.png"
        (folder / name).touch()
    assert len(list(folder.glob("*bad*"))) == DAMAGED - 1 + (COUNT % 8 > 3)
    return folder


def one_by_one(worker: Worker, parts: list[FilePart]) -> Iterator[Entry]:
    yield from map(worker, parts)


@pytest.fixture
def run(pictures: Path, tmp_path: Path) -> Callable[..., Summary]:
    """Runs, and checks what is in the folder against what is in that of the pictures."""

    def call(execute: Any = one_by_one, **more: Any) -> Summary:
        given: dict[str, Any] = {
            "predictor": Told(),
            "pattern": f"{pictures}/**",
            "folder": tmp_path / "out",
            "model": {"model": "told"},
            "format": "jsonl",
            "part": 6,
        }
        told: list[str] = []
        summary = Run(**{**given, **more})(execute, told.append)
        call.told = told  # type: ignore[attr-defined]
        return summary

    return call


def check(pictures: Path, output: Path) -> None:
    names = [str(each) for each in pictures.iterdir()]
    rows = [
        json.loads(line)
        for part in sorted(output.glob("part-*.jsonl"))
        for line in part.read_text().splitlines()
    ]
    assert Counter(row["file"] for row in rows) == Counter(n for n in names if "bad" not in n)
    assert all(row["scores"] == [float(Path(row["file"]).stem)] for row in rows)
    bad = [json.loads(line) for line in (output / "bad.jsonl").read_text().splitlines()]
    assert Counter(each["file"] for each in bad) == Counter(n for n in names if "bad" in n)
    assert all(each["error"].endswith("cannot be read: it is bad") for each in bad)
    left = [each.name for each in output.iterdir() if each.name[0] == "."]
    assert left == [".lock"]


def test_every_picture_is_there_once(
    run: Callable[..., Summary], pictures: Path, tmp_path: Path
) -> None:
    bad = len(list(pictures.glob("*bad*")))
    (pictures / "notes.txt").touch()
    found = run()
    assert (found.files, found.good, found.bad, found.computed) == (COUNT, COUNT - bad, bad, COUNT)
    assert run.told == ["50 files, 1 other files are left alone"]  # type: ignore[attr-defined]
    (pictures / "notes.txt").unlink()
    check(pictures, tmp_path / "out")
    again = run()
    assert (again.good, again.bad, again.computed) == (found.good, bad, 0)
    assert run.told == ["9 of 9 parts are there; going on"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_formats_say_the_same(
    run: Callable[..., Summary], pictures: Path, tmp_path: Path, format: str
) -> None:
    if format == "parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
    run(format=format)
    if format == "jsonl":
        return check(pictures, tmp_path / "out")
    rows = [
        row
        for part in sorted((tmp_path / "out").glob("*.parquet"))
        for row in parquet.read_table(part).to_pylist()
    ]
    good = sorted(str(each) for each in pictures.iterdir() if "bad" not in each.name)
    assert [row["file"] for row in rows] == good
    assert [row["scores"] for row in rows] == [[float(Path(name).stem)] for name in good]


def test_a_part_of_bad_files_alone_is_there(run: Callable[..., Summary], tmp_path: Path) -> None:
    pytest.importorskip("pyarrow.parquet")
    run(part=1, format="parquet")
    assert len(list((tmp_path / "out").glob("part-*.parquet"))) == COUNT


def lines_run(act: Callable[[], object], end_at: int) -> int:
    """Counts the lines of minidnn.batch that ``act`` runs; at one of them the process ends, with
    whatever files are half written."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if f"{os.sep}minidnn{os.sep}batch{os.sep}" not in frame.f_code.co_filename:
            return None
        if event == "line":
            count += 1
            if count == end_at:
                os._exit(9)
        return trace

    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(None)
    return count


def in_a_process_that_ends(act: Callable[[], object], end_at: int) -> int:
    """Its exit status: 9 if it ended at that line, 0 if it came to its own end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of others' are not used
        child = os.fork()
    if not child:
        with suppress(BaseException):
            lines_run(act, end_at)
            os._exit(0)
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.full)])
def test_a_run_may_be_killed_at_any_line(
    run: Callable[..., Summary], pictures: Path, tmp_path: Path, seed: int
) -> None:
    """Twice, and the third one ends well: its folder has everything once."""
    random = np.random.default_rng(seed)
    total = lines_run(lambda: run(part=17, folder=tmp_path / "whole"), 0)
    points = range(1, total) if seed else random.integers(1, total, 15)
    kills = 0
    for place, first in enumerate(points):
        output = tmp_path / f"out{place}"
        for end_at in (int(first), int(random.integers(1, total))):
            status = in_a_process_that_ends(partial(run, part=17, folder=output), end_at)
            assert status in (0, 9)
            kills += status == 9
        run(part=17, folder=output)
        check(pictures, output)
    assert kills > len(points)


def test_a_worker_that_died_too_often_is_told(
    run: Callable[..., Summary], pictures: Path, tmp_path: Path
) -> None:
    """Its part is left out, and the next run tries it again."""

    def dying(worker: Worker, parts: list[FilePart]) -> Iterator[Entry]:
        for part in parts:
            if part.number == 2:  # Ray calls a part again until there is an answer
                (worker.folder / f".part-{2:08d}.attempts").write_text("." * 4)
            yield worker(part)

    found = run(dying)
    (failed,) = found.failed
    assert failed.startswith("part 2: its worker was killed 4 times; its 6 files go from ")
    assert found.good + found.bad == COUNT - 6
    assert run().failed == []
    check(pictures, tmp_path / "out")


def test_more_attempts_can_be_asked_for(run: Callable[..., Summary]) -> None:
    def dying(worker: Worker, parts: list[FilePart]) -> Iterator[Entry]:
        (worker.folder / f".part-{0:08d}.attempts").write_text("." * 4)
        yield from map(worker, parts)

    assert run(dying, retries=4).failed == []


def test_answers_that_come_twice_count_once(run: Callable[..., Summary], tmp_path: Path) -> None:
    def twice(worker: Worker, parts: list[FilePart]) -> Iterator[Entry]:
        for part in reversed(parts):
            yield worker(part)
            yield worker(part)

    found = run(twice)
    assert found.good + found.bad == found.computed == COUNT
    assert len(list(Manifest(tmp_path / "out").entries())) == 9


def cut(path: Path, by: int) -> None:
    path.write_bytes(path.read_bytes()[:-by])


@pytest.mark.parametrize("by", [1, 5, 30])
def test_a_cut_off_entry_is_computed_again(
    run: Callable[..., Summary], pictures: Path, tmp_path: Path, by: int
) -> None:
    run()
    cut(tmp_path / "out" / "manifest.jsonl", by)
    found = run()
    assert found.computed == 2  # of the last part
    assert "its last line was cut off" in run.told[0]  # type: ignore[attr-defined]
    check(pictures, tmp_path / "out")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("line", range(10))
def test_a_damaged_line_is_named(
    run: Callable[..., Summary], pictures: Path, tmp_path: Path, line: int
) -> None:
    run()
    path = tmp_path / "out" / "manifest.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    damaged = bytearray(lines[line])
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(b"".join([*lines[:line], bytes(damaged), *lines[line + 1 :]]))
    where = "in its header; valid is another" if line == 0 else f"in line {line + 1}; without that"
    before = {each: each.read_bytes() for each in path.parent.glob("part-*")}
    with pytest.raises(BatchError, match=f"manifest.jsonl is damaged {where}"):
        run()
    assert before == {each: each.read_bytes() for each in path.parent.glob("part-*")}
    if line:
        path.write_bytes(b"".join([*lines[:line], *lines[line + 1 :]]))
        run()
        check(pictures, path.parent)


def test_another_list_is_refused(run: Callable[..., Summary], tmp_path: Path) -> None:
    run()
    cut(tmp_path / "out" / "inputs.jsonl", 9)
    with pytest.raises(BatchError, match=r"inputs.jsonl is not the list that the run began with"):
        run()


@pytest.mark.parametrize("change", ["gone", "short"])
def test_a_part_that_is_gone_is_computed_again(
    run: Callable[..., Summary], pictures: Path, tmp_path: Path, change: str
) -> None:
    run()
    path = tmp_path / "out" / "part-00000003.jsonl"
    if change == "gone":
        path.unlink()
    else:
        cut(path, 4)
    found = run()
    assert (found.computed, found.good + found.bad) == (6, COUNT)
    assert "of" in run.told[0] and str(path) in run.told[0]  # type: ignore[attr-defined]
    check(pictures, tmp_path / "out")


@pytest.mark.parametrize(
    ("more", "differing"),
    [
        ({"part": 7}, "part was 6 and is 7"),
        ({"format": "parquet"}, "format was 'jsonl' and is 'parquet'"),
        ({"model": {"model": "told", "top": 3}}, "top was None and is 3"),
        ({"model": {}}, "model was 'told' and is None"),
    ],
)
def test_a_folder_of_another_run_is_refused(
    run: Callable[..., Summary], more: dict[str, Any], differing: str
) -> None:
    if more.get("format") == "parquet":
        pytest.importorskip("pyarrow")
    run()
    with pytest.raises(BatchError, match=rf"--output .*/out is of another run: {differing}; valid"):
        run(**more)


def test_a_folder_of_another_run_that_came_to_nothing_is_begun_anew(
    run: Callable[..., Summary], pictures: Path, tmp_path: Path
) -> None:
    def refused(worker: Worker, parts: list[FilePart]) -> Iterator[Entry]:
        raise GraphError("no such device")
        yield

    def failed(worker: Worker, parts: list[FilePart]) -> Iterator[Entry]:
        yield from ({"part": part.number, "failed": "its worker was killed"} for part in parts)

    with pytest.raises(GraphError):
        run(refused, model={"model": "mistyped"})
    assert run(failed, part=9).failed
    (tmp_path / "out" / ".part.attempts").write_text("1")
    found = run()
    assert (found.computed, found.good + found.bad) == (COUNT, COUNT)
    check(pictures, tmp_path / "out")
    with pytest.raises(BatchError, match="is of another run: part was 6 and is 9; valid"):
        run(part=9)


def test_parts_of_another_run_are_kept(run: Callable[..., Summary], tmp_path: Path) -> None:
    """A part that was written, of which the manifest does not tell yet."""
    run(lambda worker, parts: iter(()))
    part = tmp_path / "out" / "part-00003.jsonl"
    part.write_text("{}")
    with pytest.raises(BatchError, match="is of another run: part was 6 and is 9; valid"):
        run(part=9)
    assert part.read_text() == "{}"


def test_a_folder_of_something_else_is_refused(
    run: Callable[..., Summary], pictures: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    with pytest.raises(BatchError, match=r"has thesis.tex and no manifest, so it is no folder of"):
        run()
    assert [each.name for each in (tmp_path / "out").glob("[!.]*")] == ["thesis.tex"]
    with pytest.raises(BatchError, match=r"thesis.tex: File exists; what is complete stays"):
        run(folder=tmp_path / "out" / "thesis.tex")


def test_one_process_writes_at_a_time(run: Callable[..., Summary], tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with (
        FolderLock(tmp_path / "out"),
        pytest.raises(BatchError, match=rf"out: process {os.getpid()} on .* writes there; valid"),
    ):
        run()
    run()


def test_nothing_to_do_is_an_error(run: Callable[..., Summary], tmp_path: Path) -> None:
    with pytest.raises(BatchError, match=r"--input .*\*\.tiff means no picture files"):
        run(pattern=f"{tmp_path}/pictures/*.tiff")
    with pytest.raises(GraphError, match="there is no such file or folder"):
        run(pattern=f"{tmp_path}/nowhere")
    run()  # the folder is as good as new


FULL_DISK = """
import resource, sys
from pathlib import Path
from minidnn.batch.driver import Run
from tests.batch.test_runs import Told, one_by_one

# A limit on the size of files fails as a full disk does: within a write.
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
run = Run(Told(), sys.argv[1] + "/**", Path(sys.argv[2]), {"model": "told"}, "jsonl", 6)
run(one_by_one, print)
"""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("limit", [300, 5000], ids=["a part", "the manifest"])
def test_a_full_disk_loses_nothing(
    run: Callable[..., Summary], pictures: Path, tmp_path: Path, limit: int, root: Path
) -> None:
    output = tmp_path / "out"
    with pytest.raises(BatchError):  # the list and a first part are there
        run(lambda worker, parts: iter([{"part": 0, "failed": "stop", "fatal": True}]))
    if limit == 5000:
        limit = (output / "manifest.jsonl").stat().st_size + 500
    command = [sys.executable, "-c", FULL_DISK, str(pictures), str(output), str(limit)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60)
    last = done.stderr.splitlines()[-1]
    assert "File too large; what is complete stays, and the same command goes on" in last
    name = "part-00000000.jsonl" if limit == 300 else "manifest.jsonl"
    assert f"{output}/{name}: " in last
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    run()
    check(pictures, output)


def test_what_a_worker_raises_is_told(run: Callable[..., Summary]) -> None:
    class Failing(Told):
        def predict(self, files: Sequence[str]) -> Iterator[PicturePrediction]:
            raise GraphError("labels has 2 names")

    with pytest.raises(BatchError, match="part 0: labels has 2 names; what is complete stays"):
        run(predictor=Failing())


def test_memory_does_not_grow_with_the_number_of_files(tmp_path: Path) -> None:
    """But for a few bytes for each part."""

    def names() -> Iterator[str]:
        return (f"/pictures/folder/{number:09d}.jpg" for number in range(50_000))

    tracemalloc.start()
    try:
        with (tmp_path / "list").open("wb") as file:
            write_list(names(), file)
        parts, _ = parts_of(tmp_path / "list", 1000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(parts) == 50
    assert peak < 200_000
