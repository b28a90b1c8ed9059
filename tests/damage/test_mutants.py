"""Damaged files of every format: no crash, no hang, no great allocation, always one of our errors.

What is done to files and with them is in :mod:`tests.damage.formats`; :mod:`tests.damage.child`
does it in processes that may crash.  A fault is shown again by

    python -W error -m tests.damage.child FORMAT SEED 1
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from minidnn import errors
from tests.damage.child import MOST_SECONDS, READ
from tests.damage.formats import FORMATS
from tests.devices import unavailable

OURS = {name for name, each in vars(errors).items() if isinstance(each, type)}
OURS |= {"BatchError", "OpenInputsError", "OpenSizesError", "PictureError", READ}
NAMES = [name for name in FORMATS if name != "faulty"]
FEW, MANY, CHILDREN = 60, 10_000, 5


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with whole files of each format in a folder of its name."""
    folder = tmp_path_factory.mktemp("samples")
    for name in NAMES:
        if name == "mdx" and unavailable("cpu") is not None:
            continue
        (folder / name).mkdir()
        FORMATS[name].make(folder / name)
    return folder


def look(root: Path, samples: Path, names: list[str], first: int, count: int) -> None:
    """Has a child look at mutants, and judges what it tells."""
    python = [sys.executable, "-X", "faulthandler", "-W", "error"]
    done = subprocess.run(
        [*python, "-m", "tests.damage.child", ",".join(names), str(first), str(count), samples],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120 + count * len(names) / 10,
        check=False,
    )
    lines: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for line in map(json.loads, done.stdout.splitlines()):
        lines[line["format"]].append(line)
    for name, found in lines.items():
        missing = f"{name}: the process ended with {done.returncode} at seed {first + len(found)}"
        assert len(found) == count, f"{missing}: {done.stderr[-4000:]}"
        for line in found:
            assert line["outcome"] in OURS, f"{name}, seed {line['seed']}: {line['outcome']}"
            assert line["seconds"] < MOST_SECONDS, f"{name}, seed {line['seed']}: {line['seconds']}"
        counts = Counter(line["outcome"] for line in found)
        least, most = FORMATS[name].accepted
        assert least * count <= counts[READ] <= most * count, f"{name}: {counts}"


def test_some_mutants_of_each_format(root: Path, samples: Path) -> None:
    look(root, samples, sorted(each.name for each in samples.iterdir()), 0, FEW)


@pytest.mark.full
@pytest.mark.parametrize("first", range(0, MANY, MANY // CHILDREN))
@pytest.mark.parametrize("name", NAMES)
def test_many_mutants(root: Path, samples: Path, name: str, first: int) -> None:
    if not (samples / name).exists():
        pytest.skip(unavailable("cpu") or "")
    look(root, samples, [name], first, MANY // CHILDREN)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("seed", "message"),
    [
        (1, "faulty, seed 1: Traceback.*KeyError: 'it is not there'"),
        (2, "faulty, seed 2: an allocation beyond the limit while it was read: .*MemoryError"),
        (3, "faulty: the process ended with -11 at seed 3: .*Segmentation fault"),
        pytest.param(4, "faulty, seed 4: .*TooLongError: over 5 s", marks=pytest.mark.full),
    ],
)
def test_faults_are_told_with_their_seeds(
    seed: int, message: str, root: Path, tmp_path: Path
) -> None:
    (tmp_path / "faulty").mkdir()
    with pytest.raises(AssertionError, match=f"(?s){message}"):
        look(root, tmp_path, ["faulty"], seed, 1)
