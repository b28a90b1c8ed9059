"""Pictures of three classes in folders, and weights that minidnn train makes of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from minidnn.cli import main

#: How many rows and columns a stripe moves on for each; they are too fine for 8x8 pictures.
CLASSES = {"across": (1, 0), "down": (0, 1), "slanted": (1, 1)}
SIZE = 16
Run = Callable[..., tuple[str, str]]
REFERENCE = ("--device", "reference")
#: What commands say of files that were made for these pictures.
SAYS = "prepared as the file says: 16x16, grey, mean 0, deviation 1, 3 classes"


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stripes on grey, in a folder for each direction."""
    image = pytest.importorskip("PIL.Image")
    root = tmp_path_factory.mktemp("pictures")
    random = np.random.default_rng(0)
    rows, columns = np.mgrid[:24, :27]
    for name, (down, right) in CLASSES.items():
        (root / name).mkdir()
        for i in range(10):
            place = rows * down + columns * right + random.integers(6)
            pixels = random.integers(0, 60, rows.shape) + np.where(place % 6 < 3, 150, 40)
            image.fromarray(pixels.astype(np.uint8)).save(root / name / f"{i}.png")
    return root


@pytest.fixture(scope="session")
def trained(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The weights that training at another size than the network's own writes."""
    output = tmp_path_factory.mktemp("trained")
    given = ("--data", pictures, "--size", SIZE, "--epochs", 4, "--batch", 8, "--lr", 0.02)
    more = ("--augment", "none", "--output", output, "--device", "reference")
    assert main(["train", "digits", *map(str, (*given, *more))]) == 0
    return output / "weights.safetensors"


@pytest.fixture
def in_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop computes in the place of Ray."""
    monkeypatch.setattr("minidnn.batch.on_ray.started", nullcontext)
    monkeypatch.setattr(
        "minidnn.batch.on_ray.run_on_ray", lambda ray, resources, worker, parts: map(worker, parts)
    )


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command; gives what it printed, on both streams."""

    def command(*given: object, code: int = 0) -> tuple[str, str]:
        capsys.readouterr()
        assert main([str(each) for each in given]) == code
        printed = capsys.readouterr()
        return printed.out, printed.err

    return command


def right(document: str) -> float:
    """The share of pictures whose label is their folder's name."""
    pictures = json.loads(document)["pictures"]
    return float(
        np.mean([p["classes"][0].get("label") == Path(p["file"]).parent.name for p in pictures])
    )


def share_right(output: Path) -> float:
    """The same of what minidnn batch wrote for all pictures."""
    (part,) = output.glob("part-*.jsonl")
    rows = [json.loads(line) for line in part.read_text().splitlines()]
    assert len(rows) == 30
    return float(np.mean([Path(row["file"]).parent.name == row["labels"][0] for row in rows]))


@pytest.fixture
def classify(run: Run, pictures: Path) -> Callable[..., tuple[float, str]]:
    def command(*given: object) -> tuple[float, str]:
        folders = [pictures / name for name in CLASSES]
        out, err = run("classify", *folders, "--json", "--top", 1, *REFERENCE, *given)
        return right(out), err

    return command
