"""The set-up script, the Makefile and setup.cfg agree, and refuse what cannot work."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest


@pytest.fixture
def script(root: Path, tmp_path: Path) -> Path:
    """A copy of the set-up script that cannot touch this checkout's .venv."""
    (tmp_path / "tools").mkdir()
    return Path(shutil.copy(root / "tools" / "setup_venv.sh", tmp_path / "tools"))


def run(script: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(script), *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_torch_version_is_the_same_everywhere(root: Path) -> None:
    script = (root / "tools" / "setup_venv.sh").read_text(encoding="utf-8")
    config = (root / "setup.cfg").read_text(encoding="utf-8")
    (of_script,) = re.findall(r"^TORCH=(\S+)", script, flags=re.MULTILINE)
    (of_config,) = re.findall(r"torch ==(\S+)", config)
    assert of_script == of_config


def test_unknown_extra_is_refused(script: Path) -> None:
    done = run(script, "nonsense")
    assert done.returncode == 2
    assert "usage:" in done.stderr
    assert not (script.parent.parent / ".venv").exists()


@pytest.mark.parametrize("body", ["exit 1", "exit 127", 'echo "Python 2.7"; exit 1'])
def test_unsuitable_python_is_named(script: Path, tmp_path: Path, body: str) -> None:
    old = tmp_path / "oldpython"
    old.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    old.chmod(0o755)
    done = run(script, "demo", PYTHON=str(old))
    assert done.returncode == 1
    assert f"needs Python 3.11 or newer with the venv module; PYTHON={old} is not" in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_ci_runs_make_test(root: Path) -> None:
    ci = root / ".ci" / "run"
    assert os.access(ci, os.X_OK)
    assert "make test" in ci.read_text(encoding="utf-8")


FAKE_PYTHON = """\
#!/bin/sh
echo "$*" >> calls
case "$*" in *--install-ispc*) echo report; echo "no ISPC: do this" >&2; exit {status} ;; esac
"""


@pytest.mark.parametrize("target", ["demo", "test", "test-full"])
@pytest.mark.parametrize(("status", "warned"), [(0, False), (1, False), (2, True)])
def test_ispc_is_seen_to_first(
    root: Path, tmp_path: Path, target: str, status: int, warned: bool
) -> None:
    """Whether or not it can be installed, what was asked for runs; only then is it said."""
    shutil.copy(root / "Makefile", tmp_path)
    (tmp_path / "tools").mkdir()
    for name in ("setup.cfg", "pyproject.toml", "tools/setup_venv.sh"):
        (tmp_path / name).touch()
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(FAKE_PYTHON.format(status=status), encoding="utf-8")
    python.chmod(0o755)
    for stamp in (".demo", ".test"):
        (tmp_path / ".venv" / stamp).touch()
    done = subprocess.run(
        ["make", target], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    calls = (tmp_path / "calls").read_text(encoding="utf-8").splitlines()
    install = calls.index("-m minidnn doctor --install-ispc")
    runs = [
        i
        for i, call in enumerate(calls)
        if call.startswith("demo/") or ("-m pytest" in call and "--collect-only" not in call)
    ]
    assert len(runs) == (2 if target == "demo" else 1) and install < min(runs)
    assert ("continuing without ISPC" in done.stderr) == warned
    assert "no ISPC: do this" in done.stderr


def test_torchvision_networks_import_beside_a_cpu_build_of_torch() -> None:
    from tests.oracles.torchvision_models import models

    assert models.resnet18(weights=None).fc.out_features == 1000
