"""What setup.cfg says about the tree is true, and files stay small."""

from __future__ import annotations

import configparser
from pathlib import Path

import pytest

LONGEST = 500


@pytest.fixture(scope="module")
def config(root: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(root / "setup.cfg", encoding="utf-8")
    return parser


def test_setup_cfg_lists_every_package(root: Path, config: configparser.ConfigParser) -> None:
    inits = (root / "minidnn").rglob("__init__.py")
    in_tree = {".".join(path.parent.relative_to(root).parts) for path in inits}
    assert config["options"]["packages"].split() == sorted({*in_tree, "minidnn.models"})


def test_no_folder_of_modules_lacks_its_init(root: Path) -> None:
    folders = {path.parent for top in ("minidnn", "models") for path in (root / top).rglob("*.py")}
    without = [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").is_file()]
    assert without == []


def test_no_file_is_too_long(root: Path) -> None:
    tops = ("minidnn", "models", "tests", "tools", "demo", "benchmarks")
    files = sorted(path for top in tops for path in (root / top).rglob("*.py"))
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    too_long = {str(path): length for path, length in lengths.items() if length > LONGEST}
    assert too_long == {}, f"over {LONGEST} lines"
    assert len(files) > 5


def test_pyproject_is_the_build_system_only(root: Path) -> None:
    lines = (root / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("[")] == ["[build-system]"]


def test_core_needs_numpy_only(config: configparser.ConfigParser) -> None:
    lines = config["options"]["install_requires"].split("\n")
    requirements = [line for line in lines if line.strip() and not line.startswith("#")]
    assert [line.split()[0] for line in requirements] == ["numpy"]
