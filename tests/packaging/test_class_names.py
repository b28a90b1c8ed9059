"""One concept, one class name: two files that define classes of one name say why."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

#: A layer is called as the operator that it applies.
LAYERS = ("graph/operator", "layers/")

#: The binding is a library of its own, and calls things what cuDNN calls them; one folder of it
#: calls them what CuPy did.
BINDING, COMPATIBLE = "cudnn/", "cudnn/compat/"

#: What each engine has in a form of its own: the same concept, for another kind of device.
ENGINES = ("backends/cpu/", "backends/cuda/")
IN_EACH_ENGINE = {
    "Choice",
    "LoweringContext",
    "Machine",
    "PlaneView",
    "RegionKernel",
    "SequenceKernel",
    "StepPrinter",
    "Task",
    "Tensor",
    "Tile",
    "Tuning",
    "WindowPrinter",
}


def defined(package: Path) -> dict[str, list[str]]:
    """The files in which each class is defined; a name with an underscore is its file's own."""
    found = defaultdict(list)
    for path in sorted(package.rglob("*.py")):
        if path.relative_to(package).as_posix().startswith(COMPATIBLE):
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(path.relative_to(package).as_posix())
    return found


def is_explained(name: str, files: list[str]) -> bool:
    inside = [file for file in files if file.startswith(BINDING)]
    outside = [file for file in files if not file.startswith(BINDING)]
    if len(inside) > 1 or len(outside) > 2:
        return False
    if len(outside) < 2:
        return True
    pairs = (LAYERS, ENGINES) if name in IN_EACH_ENGINE else (LAYERS,)
    return any(
        all(file.startswith(folder) for file, folder in zip(sorted(outside), pair, strict=True))
        for pair in pairs
    )


def test_classes_of_one_name_have_a_stated_reason(root: Path) -> None:
    found = defined(root / "minidnn")
    unexplained = {
        name: files
        for name, files in found.items()
        if len(files) > 1 and not is_explained(name, files)
    }
    assert not unexplained, "one concept has one class name; rename all but one of these"


def test_every_reason_is_needed(root: Path) -> None:
    found = defined(root / "minidnn")
    assert {name for name in IN_EACH_ENGINE if len(found.get(name, ())) < 2} == set()
