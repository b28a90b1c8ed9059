"""Docstrings of public names say what their arguments are, and their examples run."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import minidnn as md
from minidnn import layers, models
from tools.api_page import MODULES, module_of, page, public_names

ROOT = Path(__file__).resolve().parents[2]
NAMES = {
    f"{module}.{name}": value
    for module in MODULES
    for name, value in public_names(module_of(module)).items()
}
#: What :func:`minidnn.compile` makes takes no arguments of a user's.
MADE = {"minidnn.executable.Executable"}
ELSEWHERE = re.compile(r"arguments\s+are\s+those\s+of")


def docstring(value: Any) -> str:
    return inspect.getdoc(value) or ""


@pytest.mark.parametrize("name", sorted(NAMES.keys() - MADE))
def test_arguments_are_described(name: str) -> None:
    text = docstring(NAMES[name])
    assert text.split("\n\n")[0].strip().endswith((".", "``", ":")), f"{name}: no summary"
    if ELSEWHERE.search(text) or issubclass(type(NAMES[name]), type(Exception)):
        return
    unnamed = ("self", "args", "kwargs", "operands")
    missing = [
        argument
        for argument in inspect.signature(NAMES[name]).parameters
        if argument not in unnamed and not re.search(rf"\b{argument}\b", text)
    ]
    assert missing == [], f"{name} does not say what these are"


def examples(text: str) -> str:
    lines = (line.strip() for line in text.splitlines())
    return "\n".join(line[4:] for line in lines if line.startswith((">>> ", "... ")))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What examples read."""
    path = tmp_path_factory.mktemp("files")
    md.save_onnx(network(), path / "model.onnx", (2, 3, 32, 32))
    md.save_graph(network(), path / "net.safetensors", (2, 3, 32, 32))
    return path


def network() -> md.Sequential:
    parts = (layers.Conv2d(3, 4, 3, padding=1), layers.BatchNorm2d(4), layers.ReLU())
    return md.Sequential(*parts, layers.Flatten(), layers.Linear(4 * 32 * 32, 10))


@pytest.mark.parametrize("name", sorted(n for n in NAMES if examples(docstring(NAMES[n]))))
def test_examples_run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    given: dict[str, Any] = {
        **{name: getattr(layers, name) for name in vars(layers) if name[0].isupper()},
        **{"md": md, "minidnn": md, "np": np, "torch": torch, "L": layers, "models": models},
        **{"net": network(), "x": np.zeros((2, 3, 32, 32), np.float32)},
        "batches": [(np.ones((2, 3, 32, 32), np.float32), np.array([3, 7]))],
        "module": torch.nn.Conv2d(3, 4, 3).eval(),
    }
    exec(compile(examples(docstring(NAMES[name])), name, "exec"), given)


def test_the_page_has_all() -> None:
    found = (ROOT / "docs/reference/python.md").read_text(encoding="utf-8")
    assert found == page() + "\n", "python -m tools.api_page > docs/reference/python.md"
