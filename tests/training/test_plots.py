"""Pictures of a run are valid SVG and show the numbers they were given."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from minidnn.errors import GraphError
from minidnn.training.plots import confusions, draw_confusions, draw_curves

SVG = "{http://www.w3.org/2000/svg}"


def texts(path: Path) -> list[str]:
    return [each.text or "" for each in ElementTree.parse(path).iter(f"{SVG}text")]


def places(path: Path) -> list[list[tuple[float, float]]]:
    """The points of each line."""
    lines = [e for e in ElementTree.parse(path).iter(f"{SVG}path") if e.get("stroke-linecap")]
    points = [re.findall(r"([\d.]+) ([\d.]+)", line.get("d", "")) for line in lines]
    return [[(float(x), float(y)) for x, y in line] for line in points]


def test_curves(tmp_path: Path) -> None:
    path = tmp_path / "a.svg"
    loss, accuracy = [2.0, 1.0, float("nan"), 0.5], [0.25]
    draw_curves(path, {"loss <1>": {"training": loss}, "accuracy": {"training": accuracy}})
    assert {"loss <1>", "accuracy", "training", "epoch", "0.5", "1", "2"} <= set(texts(path))
    line, point = places(path)
    assert len(line) == 3 and len(point) == 1
    (x1, y1), (x2, y2), (x4, y4) = line
    assert x4 - x1 == pytest.approx(3 * (x2 - x1), abs=0.2)
    assert (y4 - y1) / (y2 - y1) == pytest.approx(1.5, abs=0.01)  # it fell by 1, then by 0.5
    assert path.read_text().count("M") > 2


@pytest.mark.parametrize(
    "values", [[], [float("nan")], [0.0], [0.0, 0.0], [-3e-9, 5e-9], [1e30, -1e30], [0.3] * 5]
)
def test_curves_of_any_numbers(values: list[float], tmp_path: Path) -> None:
    path = tmp_path / "a.svg"
    draw_curves(path, {"loss": {"training": values}})
    (line,) = places(path)
    assert len(line) == np.isfinite(values).sum()
    assert all(0 <= x <= 420 and 0 <= y <= 300 for x, y in line)


def test_curves_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="panels have 0 lines; valid are 1 to 7 names"):
        draw_curves(tmp_path / "a.svg", {"loss": {}})


def test_confusions_are_those_of_a_loop() -> None:
    random = np.random.default_rng(0)
    target, predicted = random.integers(0, 4, (2, 50))
    expected = np.zeros((5, 5), np.int64)
    for a, b in zip(target, predicted, strict=True):
        expected[a, b] += 1
    np.testing.assert_array_equal(confusions(target, predicted, 5), expected)


@pytest.mark.parametrize("wrong", [-1, 3])
def test_confusions_of_what_is_no_class(wrong: int) -> None:
    with pytest.raises(GraphError, match=r"predicted goes from .*; valid are classes from 0 to 2"):
        confusions(np.array([0, 1]), np.array([1, wrong]), 3)


def test_a_matrix_shows_its_counts(tmp_path: Path) -> None:
    path = tmp_path / "a.svg"
    draw_confusions(path, np.array([[7, 1], [0, 2]]), ["cat & dog", "ant"])
    found = texts(path)
    assert found.count("cat & dog") == 2 and {"7", "1", "2", "true", "predicted"} <= set(found)
    assert "0" not in found and "10 samples, 90.0 % right" in found
    titles = [each.text for each in ElementTree.parse(path).iter(f"{SVG}title")]
    assert titles == ["cat & dog as cat & dog: 7", "cat & dog as ant: 1", "ant as ant: 2"]


@pytest.mark.parametrize("size", [1, 30, 200])
def test_matrices_of_many_classes(size: int, tmp_path: Path) -> None:
    path = tmp_path / "a.svg"
    draw_confusions(path, np.eye(size, dtype=int))
    named = sum(text.isdigit() for text in texts(path))
    assert named == {1: 3, 30: 60, 200: 0}[size]
    draw_confusions(path, np.zeros((size, size), int))
    assert "0 samples" in texts(path)


@pytest.mark.parametrize("counts", [np.ones((2, 3)), np.ones(4), np.ones((0, 0)), [[-1]], 3])
def test_what_is_no_matrix(counts: object, tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="valid are counts"):
        draw_confusions(tmp_path / "a.svg", np.array(counts))
    with pytest.raises(GraphError, match="classes has 1 names for 2 classes"):
        draw_confusions(tmp_path / "a.svg", np.ones((2, 2)), ["one"])
