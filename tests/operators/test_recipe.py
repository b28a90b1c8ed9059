"""docs/how-to/add-an-operator.md, carried out on a copy of the package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

#: "In `file`, add `"Name"` to `__all__` ... :" or "... to `CASES` ...", then a block of Python.
STEP = re.compile(
    r"^In `(?P<file>[^`]+\.py)`, add (?P<what>[^\n]+):\n\n```python\n(?P<code>.*?)```", re.M | re.S
)

PARTS = ("cases", "gradients", "layers", "oracles", "operators")

FUSES = """
import sys
import numpy as np
import minidnn as md
from minidnn import layers as L
from minidnn.graph.evaluate import evaluate
from minidnn.graph.registry import read_operator, write_operator
from minidnn.layers.build import to_graph

def regions(layer):
    net = L.Sequential(L.Tanh(), layer, L.MaxPool2d(3, 2, 1), L.Sigmoid())
    x = np.random.default_rng(0).standard_normal((2, 3, 9, 9)).astype(np.float32)
    exe = md.compile(net, x.shape, device="reference")
    np.testing.assert_array_equal(exe(x), evaluate(to_graph(net, x.shape), [x])[0])
    return [node.op.name for node in exe.graph.nodes]

assert md.__file__.startswith(sys.argv[1]), md.__file__
print(regions(L.Elliott()), regions(L.ReLU()))
operator = L.Elliott().op
assert read_operator(write_operator(operator, None), None) == operator
"""


def follow(recipe: str, copy: Path) -> list[str]:
    """Does what the page says; returns the files that were touched."""
    touched = []
    for step in STEP.finditer(recipe):
        path = copy / step["file"]
        text = path.read_text()
        name = re.match(r'`"(\w+)"` to `__all__` and the', step["what"])
        if name:
            text, changes = re.subn(
                r"^__all__ = \[(\n?)", rf'\g<0>"{name[1]}",\g<1>', text, flags=re.M
            )
            text += f"\n\n{step['code']}"
        elif step["what"] == "the rule":
            changes = text.count("import Backward, rule\n")
            text += f"\n\n{step['code']}"
        else:
            assert step["what"].startswith("to `CASES`"), step["what"]
            start = "CASES: tuple[Case, ...] = (\n"
            changes = text.count(start)
            text = text.replace(start, start + step["code"])
        assert changes == 1, f"{path} has not one place for {step['what']}"
        path.write_text(text)
        touched.append(step["file"])
    return touched


def recipes(root: Path) -> list[str]:
    """The page's two: of an element-wise operator, and of a window."""
    found = re.split(
        "^## A window$", (root / "docs/how-to/add-an-operator.md").read_text(), flags=re.M
    )
    assert len(found) == 2
    return found


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Path:
    there = tmp_path / "recipe"
    ignore = shutil.ignore_patterns("__pycache__", "*.so", "*.safetensors")
    for name in ("minidnn", *(f"tests/{part}" for part in PARTS)):
        shutil.copytree(root / name, there / name, ignore=ignore)
    for path in (root / "setup.cfg", root / "ruff.toml", *(root / "tests").glob("*.py")):
        shutil.copy(path, there / path.relative_to(root))
    return there


def python(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    for name in ("PYTEST_ADDOPTS", "MINIDNN_TEST_SAMPLE"):
        environment.pop(name, None)
    return subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_recipe(root: Path, copy: Path) -> None:
    tests = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/operators/test_cases.py",
             "tests/operators/test_compiled.py", "-k", "elliott or every")  # fmt: skip
    recipe, _ = recipes(root)
    touched = follow(recipe, copy)
    assert touched == [
        "minidnn/graph/operators/activations.py",
        "minidnn/layers/activations.py",
        "tests/cases/activations.py",
    ]

    ran = python(copy, *tests)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    # Three dtypes, memory layout, alone and among others; all operators and all layers covered.
    assert re.search(r"^8 passed", ran.stdout, re.M), ran.stdout

    ran = python(copy, "-c", FUSES, str(copy))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout == "['FusedSequence'] ['FusedSequence']\n", (
        "a new operator fuses like a built-in one"
    )

    # A wrong formula and a forgotten record are found.
    operators = copy / touched[0]
    operators.write_text(operators.read_text().replace("x / (1.0 + abs(x))", "x / (2.0 + abs(x))"))
    ran = python(copy, *tests)
    assert re.search(r"^FAILED .*test_reference\[elliott-float64\]", ran.stdout, re.M), ran.stdout
    cases = copy / touched[2]
    cases.write_text((root / touched[2]).read_text())
    ran = python(copy, *tests)
    assert "FAILED tests/operators/test_cases.py::test_every_layer_has_a_case" in ran.stdout
    assert "FAILED tests/operators/test_cases.py::test_every_operator_has_a_case" in ran.stdout


@pytest.mark.full
def test_the_recipe_of_a_window(root: Path, copy: Path) -> None:
    _, recipe = recipes(root)
    touched = follow(recipe, copy)
    assert touched == [
        "minidnn/graph/operators/pooling.py",
        "minidnn/layers/pooling.py",
        "tests/cases/pooling.py",
        "minidnn/gradients/rules/pooling.py",
    ]
    tests = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/operators/test_cases.py",
             "tests/operators/test_compiled.py", "tests/gradients/test_cases.py",
             "-k", "lp_pool or every")  # fmt: skip
    ran = python(copy, *tests)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    # Two dtypes, memory layout, alone and among others, the gradient; and that all are covered.
    assert re.search(r"^9 passed", ran.stdout, re.M), ran.stdout

    rules = copy / touched[3]
    rules.write_text(rules.read_text().replace("call.gradient / call.output", "call.gradient"))
    ran = python(copy, *tests[:5], "tests/gradients/test_cases.py", "-k", "lp_pool")
    assert re.search(r"^FAILED .*test_case\[lp_pool2d\]", ran.stdout, re.M), ran.stdout
