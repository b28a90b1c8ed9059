"""Files of results: by commit and machine, merged, written in one step."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

import minidnn
from minidnn.bench.networks import Case
from minidnn.bench.results import FORMAT, Results, commit
from minidnn.errors import MiniDNNError
from minidnn.measure import write_figures

ROOT = Path(minidnn.__file__).parent.parent
CASE = Case("resnet18", 16, 224, 192, threads=2)


def results(commit: str, machine: str, **engines: str) -> Results:
    made = Results({})
    records = made.records(commit, machine, CASE)
    records |= {name: {"measured": when, "seconds": {}} for name, when in engines.items()}
    return made


def test_a_case_is_named_by_all_that_it_is() -> None:
    assert CASE.name == "resnet18, batch 16, 224x192, float32, 2 threads"
    assert (
        Case("alexnet", 1, 8, 8, isa="avx2").name
        == "alexnet, batch 1, 8x8, float32, 1 thread, avx2"
    )
    assert Case("alexnet", 1, 8, 8, tune=True).name.endswith(", 1 thread, tuned")


def test_written_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    assert Results.read(path).runs == {}
    made = results("c1", "m1", minidnn="2026-01-01")
    made.write(path)
    assert Results.read(path) == made
    document = json.loads(path.read_text())
    assert document["format"] == FORMAT
    entry = document["runs"]["c1"]["m1"][CASE.name]
    assert (entry["network"], entry["batch"], entry["rows"]) == ("resnet18", 16, 224)
    assert [p.name for p in tmp_path.iterdir()] == ["results.json"]


def test_merged_by_commit_machine_and_case() -> None:
    made = results("c1", "m1", minidnn="2026-01-01", a="2026-01-03")
    made.merge(results("c1", "m2", minidnn="2026-01-01"))
    made.merge(results("c2", "m1", minidnn="2026-01-01"))
    made.merge(results("c1", "m1", minidnn="2026-01-02", a="2026-01-02", b="2026-01-02"))
    assert [(c, m) for c, m, *_ in made.cases()] == [("c1", "m1"), ("c1", "m2"), ("c2", "m1")]
    records = made.records("c1", "m1", CASE)
    found = {name: record["measured"][-2:] for name, record in records.items()}
    assert found == {"minidnn": "02", "a": "03", "b": "02"}  # the later of each


def test_what_is_merged_has_no_times_of_rounds() -> None:
    other = results("c", "m", minidnn="2026-01-01")
    other.records("c", "m", CASE)["minidnn"] |= {"rounds": [0.1, 0.2], "begun": "2026-01-01"}
    made = Results({})
    made.merge(other)
    record = {"measured": "2026-01-01", "seconds": {}}
    assert made.records("c", "m", CASE)["minidnn"] == record


def test_figures_are_written_with_six_digits_a_record_a_line(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    write_figures(path, {"machine": "m" * 400, "part": {"a": 1.23456789, "b": [0.5, 2]}})
    text = path.read_text().replace("m" * 400, "m")
    assert text == '{\n"machine": "m",\n"part": {"a":1.23457,"b":[0.5,2]}\n}\n'
    lines = path.with_suffix(".jsonl")
    write_figures(lines, [{"ms": 1 / 3}, {"ms": None}])
    assert lines.read_text() == '{"ms":0.333333}\n{"ms":null}\n'


def test_results_that_are_kept_are_small() -> None:
    """Medians, intervals, machine, versions and commit are kept, no samples."""
    files = list((ROOT / "benchmarks" / "results").iterdir())
    assert sum(path.stat().st_size for path in files) <= 1 << 20
    assert not [path.name for path in files if '"rounds":[' in path.read_text()]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "other"}', "\udcff"])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(MiniDNNError, match=r"other\.json (cannot be read as|has no) results"):
        Results.read(path)


@pytest.mark.parametrize(("rest", "found"), [("", "NoneType"), (', "runs": [1]', "list")])
def test_results_without_runs_are_refused(tmp_path: Path, rest: str, found: str) -> None:
    path = tmp_path / "half.json"
    path.write_text(f'{{"format": "{FORMAT}"{rest}}}')
    with pytest.raises(MiniDNNError, match=rf"half\.json is damaged: its 'runs' are {found}, no"):
        Results.read(path)


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(MiniDNNError, match=r"missing/r\.json cannot be written: No such file"):
        Results({}).write(tmp_path / "missing" / "r.json")


def test_changes_are_part_of_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> str:
        names = ["-c", "user.name=x", "-c", "user.email=x@x"]
        command = ["git", *names, *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    file = tmp_path / "minidnn" / "__init__.py"
    file.parent.mkdir()
    (tmp_path / "models").mkdir()
    file.write_text("")
    monkeypatch.setattr(minidnn, "__file__", str(file))
    assert commit() == f"version {minidnn.__version__}"  # no repository
    git("init", "-q")
    assert commit() == f"version {minidnn.__version__}"  # somebody else's repository
    git("add", ".")
    git("commit", "-qm", "x")
    clean = commit()
    assert clean == git("rev-parse", "--short=12", "HEAD")
    found = []
    for text in ("1", "2"):
        file.write_text(text)
        found.append(commit())
    assert len({clean, *found}) == 3 and all(name.startswith(f"{clean}+") for name in found)
