"""docs/how-to/add-a-fused-kernel.md, carried out on a copy of the package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FILE = re.compile(
    r"^In `(?P<folder>[^`]+)`, write `(?P<name>[^`]+)`:\n\n```python\n(?P<code>.*?)```", re.M | re.S
)
ENTRY = re.compile(
    r"^In `(?P<file>[^`]+)`, add (?P<lines>(?:`[^`]+`(?: and )?)+) to the\s"
    r"imports, and to `(?P<name>\w+)`"
    r"(?:, after `(?P<after>\w+)`)?:\n\n```python\n(?P<code>.*?)```",
    re.M | re.S,
)

USES = """
import sys
import numpy as np
import minidnn as md
from minidnn.graph import operators as ops
from minidnn.graph.ir import Graph, Node, Value
from minidnn.graph.types import TensorType

assert md.__file__.startswith(sys.argv[1]), md.__file__
found = {}
for shape in ((3, 5, 37), (4, 1), (2, 16), (1000, 129)):
    x = Value(TensorType(shape), "x")
    square = Node(ops.Mul(), [x, x], "square")
    peak = Node(ops.Reduce("max", (len(shape) - 1,)), square.outputs, "peak")
    graph = Graph([x], peak.outputs, [square, peak])
    given = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    given.flat[:: 19] = np.nan
    given.flat[1] = -np.inf
    results = []
    for device in ("cpu", "reference"):
        exe = md.compile(graph, device=device)
        results.append(exe(given))
        found[device] = [node.op.name for node in exe.graph.nodes], dict(exe.plan.notes)
    np.testing.assert_array_equal(*results)
path = sys.argv[1] + "/fused.safetensors"
md.save_graph(md.compile(graph, device="cpu").graph, path)
assert [node.op.name for node in md.load_graph(path).nodes] == ["FusedPeak"]
print(found)
"""


def follow(page: str, copy: Path) -> list[str]:
    """Does what the page says; returns the files that were touched."""
    touched = []
    for made in FILE.finditer(page):
        touched.append(f"{made['folder']}/{made['name']}")
        (copy / touched[-1]).write_text(made["code"])
    for entry in ENTRY.finditer(page):
        touched.append(entry["file"])
        path = copy / entry["file"]
        text = path.read_text()
        first = re.search(r"^from \.?minidnn|^from \.", text, re.M)
        assert first is not None
        lines = [line.replace("\n", " ") for line in re.findall(r"`([^`]+)`", entry["lines"])]
        text = text[: first.start()] + "\n".join([*lines, ""]) + text[first.start() :]
        begin = re.search(rf"^{entry['name']}\b.* = [({{]\n", text, re.M)
        assert begin is not None
        place = begin.end()
        if entry["after"]:
            place = text.index(f"    {entry['after']},\n", place) + len(f"    {entry['after']},\n")
        path.write_text(text[:place] + entry["code"] + text[place:])
    return touched


def used(copy: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", USES, str(copy)],
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Path:
    ignore = shutil.ignore_patterns("__pycache__", "*.safetensors")
    shutil.copytree(root / "minidnn", tmp_path / "minidnn", ignore=ignore)
    return tmp_path


def test_the_recipe(root: Path, copy: Path) -> None:
    touched = follow((root / "docs/how-to/add-a-fused-kernel.md").read_text(), copy)
    assert len(touched) == len(set(touched)) == 4
    ran = used(copy)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "'cpu': (['FusedPeak']" in ran.stdout
    assert "its squares are stored: this device has no kernel for it" in ran.stdout

    # A wrong kernel is found.
    kernel = copy / "minidnn/backends/cpu/operators/peaks.py"
    kernel.write_text(kernel.read_text().replace("a != a || a >= b", "a >= b"))
    assert "Arrays are not equal" in used(copy).stderr
