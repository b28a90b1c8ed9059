"""Docstrings of public names have all their parts, and their examples run.

The parts are a summary, arguments, what is returned, what is raised, and an example.  Names whose
arguments are those of another one say so, and are as complete as that one is.
"""

from __future__ import annotations

import ast
import inspect
import re
import struct
import textwrap
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import minidnn as md
from minidnn import layers, models, scalar
from tools.api_page import MODULES, module_of, page, public_names

ROOT = Path(__file__).resolve().parents[2]
NAMES = {
    f"{module}.{name}": value
    for module in MODULES
    for name, value in public_names(module_of(module)).items()
}
ERRORS = {
    n for n, value in NAMES.items() if inspect.isclass(value) and issubclass(value, Exception)
}
#: What :func:`minidnn.compile` makes takes no arguments of a user's.
MADE = {"minidnn.dynamic.executable.DynamicExecutable", "minidnn.executable.Executable"}
ELSEWHERE = re.compile(r"arguments\s+are\s+those\s+of\s+:\w+:`([\w.]+)`")
#: These measure in several processes; in CI ``minidnn.lab.IspcStep`` measures by itself.
LONG = {"minidnn.lab.tune"}
#: What these need is not there when tests run: an extra, a GPU.
NOT_RUN = {
    "minidnn.callbacks.TensorBoard",
    "minidnn.lab.run",
}


def docstring(value: Any) -> str:
    return inspect.getdoc(value) or ""


def is_told_elsewhere(name: str) -> bool:
    found = ELSEWHERE.search(docstring(NAMES[name]))
    if found is None:
        return False
    other = found[1] if "." in found[1] else f"{name.rpartition('.')[0]}.{found[1]}"
    assert examples(docstring(NAMES[other])), f"{name} refers to {other}, which has no example"
    return True


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", sorted(NAMES.keys() - MADE))
def test_arguments_are_described(name: str) -> None:
    text = docstring(NAMES[name])
    assert text.split("\n\n")[0].strip().endswith((".", "``", ":")), f"{name}: no summary"
    if name in ERRORS or is_told_elsewhere(name):
        return
    unnamed = ("self", "args", "kwargs", "operands")
    missing = [
        argument
        for argument in inspect.signature(NAMES[name]).parameters
        if argument not in unnamed and not re.search(rf"\b{argument}\b", text)
    ]
    assert missing == [], f"{name} does not say what these are"


def returns_something(value: Any) -> bool:
    """Whether a function does; the summary of one that makes a scalar expression says which."""
    given = str(inspect.signature(value).return_annotation)
    return given not in ("None", "Expression")


def raised_by(value: Any) -> Iterator[str]:
    """What a function raises itself, or a class when it is made."""
    makers = [vars(value)[n] for n in ("__new__", "__init__", "__post_init__") if n in vars(value)]
    for function in makers if isinstance(value, type) else [value]:
        try:
            source = inspect.getsource(inspect.unwrap(getattr(function, "__func__", function)))
        except (OSError, TypeError):
            continue  # what dataclasses write
        for node in ast.walk(ast.parse(textwrap.dedent(source))):
            error = node.exc if isinstance(node, ast.Raise) else None
            if isinstance(error, ast.Call) and isinstance(error.func, ast.Name):
                yield error.func.id


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", sorted(NAMES))
def test_parts_are_there(name: str) -> None:
    value, text = NAMES[name], docstring(NAMES[name])
    if is_told_elsewhere(name):
        return
    assert examples(text) or "::\n\n    " in text, f"{name} has no example"
    if inspect.isfunction(value) and returns_something(value):
        assert "\nReturns:\n" in text, f"{name} does not say what it returns"
    for error in raised_by(value):
        section = text.partition("\nRaises:\n")[2]
        assert re.search(rf"^    {error}:", section, re.MULTILINE), f"{name} raises {error}"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", sorted(NAMES))
def test_indented_code_is_announced(name: str) -> None:
    """Without two colons before it, the site shows it as a quotation."""
    quoted = re.search(r"^\S.*[^:]:?\n\n {4}\S.*$", docstring(NAMES[name]), re.MULTILINE)
    assert quoted is None, f"{name}: {quoted and quoted[0]}"


def examples(text: str) -> str:
    lines = (line.strip() for line in text.splitlines())
    return "\n".join(line[4:] for line in lines if line.startswith((">>> ", "... ")))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What examples read."""
    from PIL import Image

    path = tmp_path_factory.mktemp("files")
    md.save_onnx(network(), path / "model.onnx", (2, 3, 32, 32))
    md.save_graph(network(), path / "net.safetensors", (2, 3, 32, 32))
    (path / "pictures" / "cat").mkdir(parents=True)
    Image.new("RGB", (32, 40)).save(path / "pictures" / "cat" / "0.png")
    (path / "fashion").mkdir()
    for kind, shape in (("images-idx3", (2, 28, 28)), ("labels-idx1", (2,))):
        head = struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape)
        (path / "fashion" / f"train-{kind}-ubyte").write_bytes(head + bytes(prod(shape)))
    (path / "cifar").mkdir()
    for name in ("train.bin", *(f"data_batch_{i}.bin" for i in range(1, 6))):
        (path / "cifar" / name).write_bytes(bytes(2 * (3074 if "train" in name else 3073)))
    return path


def network() -> md.Sequential:
    parts = (layers.Conv2d(3, 4, 3, padding=1), layers.BatchNorm2d(4), layers.ReLU())
    return md.Sequential(*parts, layers.Flatten(), layers.Linear(4 * 32 * 32, 10))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[pytest.mark.full] if n in LONG else [])
        for n in sorted(NAMES.keys() - NOT_RUN)
        if examples(docstring(NAMES[n]))
    ],
)
@pytest.mark.together(2)
def test_examples_run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    given: dict[str, Any] = {
        **{name: getattr(layers, name) for name in vars(layers) if name[0].isupper()},
        **{"md": md, "minidnn": md, "np": np, "torch": torch, "L": layers, "models": models},
        **{"net": network(), "x": np.zeros((2, 3, 32, 32), np.float32), "scalar": scalar},
        "batches": [(np.ones((2, 3, 32, 32), np.float32), np.array([3, 7]))],
        "module": torch.nn.Conv2d(3, 4, 3).eval(),
    }
    exec(compile(examples(docstring(NAMES[name])), name, "exec"), given)


def test_the_page_has_all() -> None:
    found = (ROOT / "docs/reference/python.md").read_text(encoding="utf-8")
    assert found == page() + "\n", "python -m tools.api_page > docs/reference/python.md"
