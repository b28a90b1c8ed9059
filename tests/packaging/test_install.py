"""minidnn works from a wheel, from an editable install and from the plain tree.

One virtual environment without pip is made; the wheel (built from the sdist, so that this is
tested too) and then an editable build are unpacked into it, which is all that installing a pure
Python package does.  This interpreter lends it NumPy, and nothing else.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import numpy
import pytest

import minidnn

COPIED = ("minidnn", "models", "setup.cfg", "pyproject.toml", "README.md", "LICENSE")

# What every kind of installation must be able to do, from any folder.
REPORT = """
import importlib.metadata, importlib.resources, json
import minidnn, minidnn.models, minidnn.models.digits
from minidnn import models
from minidnn.models.digits import digits
assert models is minidnn.models and models.digits is digits, models.digits
net = models.get_model("digits")
weights = importlib.resources.files("minidnn.models") / "digits.safetensors"
typed = importlib.resources.files("minidnn") / "py.typed"
try:
    version = importlib.metadata.version("minidnn")
except importlib.metadata.PackageNotFoundError:
    version = None
print(json.dumps({
    "minidnn": minidnn.__file__, "models": models.__file__, "version": version,
    "parameters": len(net.state_dict()), "weights": weights.is_file(), "typed": typed.is_file(),
}))
"""


def build(hook: str, source: Path, target: Path) -> Path:
    """Call one hook of the build backend, as pip would, and return what it made."""
    target.mkdir(exist_ok=True)
    code = f"import setuptools.build_meta as b; print(b.{hook}({str(target)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=source, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return target / done.stdout.splitlines()[-1]


class Environment:
    """A virtual environment into which one build at a time is unpacked."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=False, symlinks=True)
        self.python = folder / "bin" / "python"
        self.elsewhere = folder / "elsewhere"
        self.elsewhere.mkdir()
        (self.site,) = folder.glob("lib/python*/site-packages")
        for path in Path(numpy.__file__).parent.parent.glob("numpy*"):
            (self.site / path.name).symlink_to(path)

    def unpack(self, wheel: Path) -> None:
        for path in self.site.glob("*minidnn*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(self.site)

    def run(self, *arguments: str, cwd: Path | None = None) -> str:
        done = subprocess.run(
            [str(self.python), "-W", "error", *arguments],
            cwd=cwd or self.elsewhere,
            env={"PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def source(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is packaged, so that building leaves nothing in this checkout."""
    folder = tmp_path_factory.mktemp("source")
    for name in COPIED:
        if (root / name).is_dir():
            shutil.copytree(
                root / name, folder / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(root / name, folder)
    return folder


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("environment"))


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    with tarfile.open(build("build_sdist", source, folder)) as archive:
        # Python 3.11.0 to 3.11.3 have no filters.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(folder / "sdist")
    (unpacked,) = (folder / "sdist").iterdir()
    return build("build_wheel", unpacked, folder)


def files_below(folder: Path) -> list[str]:
    """Return the packaged kinds of files below a folder, relative to it, sorted."""
    suffixes = {
        ".py",
        ".typed",
        ".safetensors",
        ".cu",
        ".cuh",
        ".c",
        ".h",
        ".ispc",
        ".isph",
        ".json",
    }
    files = (path for path in folder.rglob("*") if path.suffix in suffixes)
    return sorted(str(path.relative_to(folder)) for path in files)


@pytest.mark.early
def test_wheel_holds_the_tree_and_nothing_else(source: Path, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
    expected = [f"minidnn/{name}" for name in files_below(source / "minidnn")]
    expected += [f"minidnn/models/{name}" for name in files_below(source / "models")]
    assert sorted(names) == sorted(expected)


def test_wheel(environment: Environment, wheel: Path) -> None:
    environment.unpack(wheel)
    found = json.loads(environment.run("-c", REPORT))
    assert Path(found["minidnn"]) == environment.site / "minidnn" / "__init__.py"
    assert Path(found["models"]) == environment.site / "minidnn" / "models" / "__init__.py"
    assert found["version"] == minidnn.__version__
    check(found)


def test_editable_install(environment: Environment, source: Path, tmp_path: Path) -> None:
    environment.unpack(build("build_editable", source, tmp_path / "editable"))
    found = json.loads(environment.run("-c", REPORT))
    assert Path(found["minidnn"]) == source / "minidnn" / "__init__.py"
    assert Path(found["models"]) == source / "models" / "__init__.py"
    assert found["version"] == minidnn.__version__
    check(found)


def test_tree(environment: Environment, root: Path) -> None:
    for path in environment.site.glob("*minidnn*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    found = json.loads(environment.run("-c", REPORT, cwd=root))
    assert Path(found["minidnn"]) == root / "minidnn" / "__init__.py"
    assert Path(found["models"]) == root / "models" / "__init__.py"
    check(found)


def check(found: dict[str, object]) -> None:
    assert found["parameters"] == 50
    assert found["weights"] is True
    assert found["typed"] is True
