"""The proof of GPU tests: what its digests see, and when it is refused."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from tests.gpu_proof.__main__ import keep
from tests.gpu_proof.record import Refused, merged, read, state
from tests.gpu_proof.slow import table
from tests.gpu_proof.sources import (
    digests,
    gpu_test_files,
    native_meaning,
    python_meaning,
    source_files,
)

SHARD = {
    "shard": [1, 2],
    "tests": {"all": 5, "digest": "d", "here": 3},
    "passed": 2,
    "skipped": {"needs two GPUs": 1},
    "files left out": {},
    "seconds": 2.0,
    "cards": ["H100"],
    "versions": {"CUDA": "13.0"},
    "sources": {"minidnn": "a", "minidnn/graph": "b"},
}
OTHER = SHARD | {"shard": [2, 2], "tests": {"all": 5, "digest": "d", "here": 2}, "passed": 1}

# A tree as small as one can be: a kernel, an engine, a helper, GPU tests and others.
TREE = {
    "minidnn/cuda/kernel.cu": '#define A "//"\n__global__ void f(float* y) { y[0] = 1; }  // one\n',
    "minidnn/cuda/run.py": '"""Runs."""\n\n\ndef run(x: int) -> int:\n    return x + 1\n',
    "minidnn/serving/server.py": "PORT = 1\n",
    "models/net.py": "WIDTH = 8\n",
    "tests/helping/numbers.py": "ONE = 1\n",
    "tests/helping/test_others.py": "def test_other():\n    pass\n",
    "tests/cuda/test_kernel.py": (
        "import pytest\nfrom tests.helping.numbers import ONE\n\n"
        "@pytest.mark.gpu\n@pytest.mark.parametrize('i', range(4))\ndef test_it(i):\n"
        "    if i == 3:\n        pytest.skip('needs two GPUs')\n\n\n"
        "@pytest.mark.gpu\n@pytest.mark.full\ndef test_long():\n    raise AssertionError\n\n\n"
        "def test_without():\n    raise AssertionError\n"
    ),
    "pytest.ini": "[pytest]\nmarkers =\n gpu\n full\n",
}


def planted(folder: Path) -> Path:
    for name, text in TREE.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return planted(tmp_path)


def changed(tree: Path, name: str, old: str, new: str) -> list[str]:
    """The folders whose digests a change of a file changes."""
    before, path = digests(tree), tree / name
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    after = digests(tree)
    return [area for area in before if before[area] != after[area]]


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("minidnn/cuda/kernel.cu", "= 1;", "= 2;"),
        ("minidnn/cuda/kernel.cu", '"//"', '"//1"'),
        ("minidnn/cuda/run.py", "x + 1", "x + 2"),
        ("minidnn/cuda/run.py", "x + 1", "x - 1"),
        ("models/net.py", "8", "9"),
        ("tests/helping/numbers.py", "1", "2"),
        ("tests/cuda/test_kernel.py", "range(4)", "range(5)"),
    ],
)
def test_a_digest_sees_what_decides(tree: Path, name: str, old: str, new: str) -> None:
    assert changed(tree, name, old, new) == [str(Path(name).parent)]


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("minidnn/cuda/kernel.cu", "// one", "/* two\n lines */"),
        ("minidnn/cuda/kernel.cu", "{ y", "{\n\n    y".replace("\n\n", " ")),
        ("minidnn/cuda/run.py", "Runs.", "Runs it."),
        ("minidnn/cuda/run.py", "return x + 1", '"""One more."""\n    return (x + 1)  # one'),
        ("minidnn/serving/server.py", "1", "2"),
        ("tests/helping/test_others.py", "pass", "raise AssertionError"),
    ],
)
def test_a_digest_does_not_see_what_decides_nothing(
    tree: Path, name: str, old: str, new: str
) -> None:
    assert changed(tree, name, old, new) == []


def test_new_and_removed_files_are_seen(tree: Path) -> None:
    before = digests(tree)
    (tree / "minidnn/cuda/more.cuh").write_text("int x;\n", encoding="utf-8")
    assert digests(tree) != before
    (tree / "minidnn/cuda/more.cuh").rename(tree / "minidnn/cuda/most.cuh")
    renamed = digests(tree)
    (tree / "minidnn/cuda/most.cuh").unlink()
    assert digests(tree) == before != renamed


def test_meanings_are_those_of_all_pythons() -> None:
    """Of versions that say in their trees what others do not: the text is written out here."""
    code = 'def f(x: int = 1) -> str:\n    """Says."""\n    return f"a{x:>{2}}" "b"\n'
    assert python_meaning(code) == (
        "Module(body=FunctionDef(name='f';args=arguments(args=arg(arg='x';annotation=Name(id='int';"
        "ctx=Load(););),;defaults=Constant(value=1;),;);body=Return(value=JoinedStr(values="
        "Constant(value='a';),FormattedValue(value=Name(id='x';ctx=Load(););conversion=-1;"
        "format_spec=JoinedStr(values=Constant(value='>';),FormattedValue(value=Constant(value=2;);"
        "conversion=-1;),;);),Constant(value='b';),;);),;returns=Name(id='str';ctx=Load(););),;)"
    )
    assert native_meaning("a /* b\n c */ d // e\n\n  f('\"');\n") == "a d\nf('\"');"


def test_whole_tree_is_digested(root: Path) -> None:
    areas = {file.parent.relative_to(root).as_posix() for file in source_files(root)}
    for area in ("minidnn/graph", "minidnn/backends/cuda", "minidnn/cudnn", "tests/cuda", "models"):
        assert area in areas
    assert not [area for area in areas if area.startswith("minidnn/serving")]
    texts = {name: (root / name).read_text("utf-8") for name in gpu_test_files()}
    assert "tests/cuda/test_gpu_cases.py" in texts
    # It has the mark in a text, for a tree of its own.
    assert "tests/packaging/test_schedule.py" not in texts


# Runs the tests of some trees, one after the other: starting Python takes longer than they do.
RUNS = """
import json, os, sys
import pytest
for tree, arguments in json.loads(sys.argv[1]):
    os.chdir(tree)
    print(flush=True)
    pytest.main(["-p", "tests.gpu_proof.plugin", "-m", "gpu", "--import-mode=importlib",
                 f"--proof-out={tree}/proof.json", *arguments])
    print("The end.", flush=True)
    for name in [name for name in sys.modules if name.startswith(("tests.cuda", "tests.helping"))]:
        del sys.modules[name]
"""


def run(root: Path, *runs: tuple[Path, Sequence[str]]) -> list[str]:
    """What is printed about the tests of trees with arguments."""
    told = json.dumps([(str(tree), arguments) for tree, arguments in runs])
    done = subprocess.run(
        [sys.executable, "-c", RUNS, told],
        env={**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    outputs = done.stdout.split("The end.")[:-1]
    assert len(outputs) == len(runs), done.stdout + done.stderr
    return outputs


def test_shards_of_a_green_run_are_the_proof(
    tmp_path: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("xdist")
    trees = [planted(tmp_path / f"{k}") for k in (1, 2)]
    told = f"--durations-out={tmp_path}/durations"
    run(root, *((t, [f"--shard={k}/2", f"-n{2 - k}", told]) for k, t in enumerate(trees, 1)))
    files, kept, tree = [tree / "proof.json" for tree in trees], tmp_path / "kept.json", trees[0]
    assert keep(files[:1], kept) == 1 and "each shard is wanted once" in capsys.readouterr().err
    assert keep(files, kept) == 0
    proof = read(kept)
    assert (proof["passed"], proof["skipped"]) == (3, {"needs two GPUs": 1})
    assert proof["tests"]["all"] == proof["tests"]["here"] == 4
    assert proof["sources"] == digests(tree)
    assert "3 passed and 1 skipped" in state(kept, tree)
    assert changed(tree, "minidnn/cuda/kernel.cu", "= 1;", "= 3;")
    assert state(kept, tree).endswith("changed since they ran: minidnn/cuda")
    seconds = table(tmp_path / "durations")
    assert seconds.startswith("4 tests, ") and "never ended" not in seconds
    assert re.search(r"^\| tests/cuda/test_kernel.py::test_it\[0\] \| \d\.\d \|$", seconds, re.M)


# What is changed in the tests, pytest's arguments, and why there is no proof.
REFUSED: list[tuple[str, str, list[str], str]] = [
    ("range(4)", "[0, 1 / 0]", [], "pytest ended with 2"),
    ("if i == 3", "assert i < 2\n    if i == 3", [], "2 tests failed, and pytest ended with 1"),
    ("range(4)", "range(4)", ["-k", "0"], "3 tests were deselected"),
    ("range(4)", "range(4)", ["tests/cuda/test_kernel.py::test_it"], "only some tests of files"),
    ("range(4)", "range(4)", ["tests/helping"], "pytest ended with 5"),
    ("i == 3", "True", [], "no test has passed"),
    ("    if i", "    open('models/net.py', 'w').close()\n    if i", [], "files were changed"),
    ("range(4)", "range(4)", ["tests/cuda"], "there were no tests of tests/helping/test_more.py"),
]


def test_no_proof_of_another_run(tmp_path: Path, root: Path) -> None:
    runs = []
    for i, (old, new, arguments, why) in enumerate(REFUSED):
        tree = planted(tmp_path / f"{i}")
        if "test_more" in why:
            more = "import pytest\n\n\n@pytest.mark.gpu\ndef test_more():\n    pass\n"
            (tree / "tests/helping/test_more.py").write_text(more, encoding="utf-8")
        path = tree / "tests/cuda/test_kernel.py"
        path.write_text(path.read_text("utf-8").replace(old, new), encoding="utf-8")
        # Of another run: it does not stay.
        (tree / "proof.json").write_text("{}", encoding="utf-8")
        runs.append((tree, arguments))
    for (tree, _), told, (_, _, _, why) in zip(runs, run(root, *runs), REFUSED, strict=True):
        assert "No proof of the GPU tests is written: " in told, told
        assert why in told and not (tree / "proof.json").exists(), told


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"shard": [1, 2]}, "there are 1/2, 1/2"),
        ({"shard": [2, 3]}, "there are 1/2, 2/3"),
        ({"passed": 2}, "3 tests passed or were skipped, and 2 were to run"),
        ({"tests": {"all": 5, "digest": "e", "here": 2}}, "collected different tests"),
        ({"tests": {"all": 5, "digest": "d", "here": 1}, "passed": 0}, "no test has passed"),
        ({"tests": {"all": 5, "digest": "d", "here": 1}, "skipped": {}}, "4 tests ran in all"),
        ({"sources": {"minidnn": "a", "minidnn/graph": "c"}}, "different sources: minidnn/graph"),
    ],
)
def test_shards_that_do_not_belong_together(change: dict[str, Any], why: str) -> None:
    assert merged([OTHER, SHARD])["passed"] == 3
    with pytest.raises(Refused, match=re.escape(why)):
        merged([deepcopy(SHARD), OTHER | change])


def test_no_record(tmp_path: Path) -> None:
    assert state(tmp_path / "none.json") == "GPU tests: no whole run of them is on record"


def test_tests_that_never_ended_are_told(tmp_path: Path) -> None:
    lines = [
        {"begins": "a.py::test_a", "at": 0.0},
        {"test": "a.py::test_a", "outcome": "failed", "setup": 1.0, "call": 2.0, "at": 3.0}
        | {"why": "E  1 != 2"},
        {"begins": "a.py::test_b", "at": 3.0},
    ]
    (tmp_path / "gw0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    told = table(tmp_path).splitlines()
    assert told[0] == "1 tests, 3 s in 3 s" and "| a.py | 1 | 3.0 | 3.0 |" in told
    assert told[-3:] == ["never ended: a.py::test_b", "failed: a.py::test_a", "    E  1 != 2"]
