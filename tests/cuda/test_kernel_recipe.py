"""docs/how-to/add-a-contraction-kernel.md, carried out on a copy of the package."""

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
    r"^In `(?P<file>[^`]+)`, add `(?P<line>[^`]+)` to the\nimports, and to `(?P<name>\w+)`:\n\n"
    r"```python\n(?P<code>.*?)```",
    re.M | re.S,
)

USES = """
import sys
from dataclasses import replace
from pathlib import Path
import minidnn as md
from minidnn import layers as L
from minidnn.backends.cuda.contraction.algorithms import algorithms_for
from minidnn.backends.cuda.contraction.kernel_registry import refusals
from tests.cuda.cards import H200
from tests.cuda.lowered import problems_of
from tests.cuda.single import check_emulated

assert md.__file__.startswith(sys.argv[1]), md.__file__
net = L.Sequential(L.Conv2d(5, 7, (3, 2), (2, 1), (1, 0), dilation=(1, 2)), L.SiLU())
shape = (2, 5, 9, 8)
(problem,) = problems_of(net, shape, "float32")
forms = [form for form in algorithms_for(problem, H200) if form.core == "naive"]
print(*forms, "|", refusals(replace(problem, groups=2), H200)["naive"])
check_emulated((lambda: net, shape), "naive", [128, 256], Path(sys.argv[1]), wide=3)
"""


def follow(config: str, copy: Path) -> list[str]:
    """Does what the page says; returns the files that were touched."""
    (made,), (entry,) = FILE.finditer(config), ENTRY.finditer(config)
    file = f"{made['folder']}/{made['name']}"
    (copy / file).write_text(made["code"])
    registry = copy / entry["file"]
    text = registry.read_text()
    for where, line in (("from .problem", entry["line"] + "\n"), (f"{entry['name']}:", "")):
        assert text.count(where) == 1
        text = text.replace(where, line + where)
    start = re.search(rf"^{entry['name']}: .* = \(\n", text, re.M)
    assert start is not None
    registry.write_text(text[: start.end()] + entry["code"] + text[start.end() :])
    return [file, entry["file"]]


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Path:
    ignore = shutil.ignore_patterns("__pycache__", "*.so", "*.safetensors", "test_*")
    for name in ("minidnn", "tests/cuda"):
        shutil.copytree(root / name, tmp_path / name, ignore=ignore)
    for path in (root / "tests").glob("*.py"):
        shutil.copy(path, tmp_path / "tests")
    return tmp_path


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


def test_the_recipe(root: Path, copy: Path) -> None:
    touched = follow((root / "docs/how-to/add-a-contraction-kernel.md").read_text(), copy)
    assert len(touched) == 2
    ran = used(copy)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    algorithm, reason = ran.stdout.strip().split(" | ")
    assert algorithm == "naive with 2 stages"
    assert reason == "it has groups, or reads more than an image"

    # A wrong kernel is found.
    kernel = copy / touched[0]
    kernel.write_text(kernel.read_text().replace("* P_SY + i", "* P_SY - i"))
    assert "Mismatched elements" in used(copy).stderr
