"""The benchmark of the chain: its networks are the same for all engines; its files and plots."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidnn as md
from benchmarks.chain_cases import CASES, VARIANTS, Case, with_minidnn, with_torch
from benchmarks.chain_report import plot, tables
from benchmarks.figures import Results
from benchmarks.line_plot import Panel, line_plot
from minidnn.measure import compared, median


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_chain_is_the_same_network_for_pytorch_and_minidnn(variant: str) -> None:
    import torch

    x = np.random.default_rng(0).standard_normal((2, 6, 13, 17)).astype(np.float32)
    net = with_minidnn(variant, 5, 6)
    y = md.compile(net, x.shape, device="reference")(x)
    expected = with_torch(variant, 5, 6)(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
    assert (expected == 0).any() and (expected > 0).any()


def test_half_of_the_factors_are_negative() -> None:
    state = with_minidnn("paper", 2, 64).state_dict()
    factors = [value for key, value in state.items() if key.endswith("weight")]
    assert len(factors) == 2
    assert all((value < 0).sum() == 32 for value in factors)


def test_cases_have_names_of_their_own() -> None:
    assert len({case.key for case in CASES}) == len(CASES)
    assert {case.blocks for case in CASES if case.key.startswith("paper")} == {1, 4, 16, 40}


def results(folder: Path) -> Results:
    case = Case("paper", 4, "56x56")
    found = Results(folder / "figures.json")
    times = {"minidnn": [0.1, 0.11, 0.12], "b": [0.3, 0.31, 0.3], "c": [9.0, 9.9, 9.9]}
    engines = {
        name: {"about": {"kernels": kernels}, "deviation": 1e-6}
        for name, kernels in (("minidnn", 1), ("b", 12), ("c", None))
    }
    record = {**case.describe(), "engines": engines, **compared(times, "minidnn")}
    found.add("compare", case.key, record)
    seconds = {"one": vars(median([0.2])), "model": vars(median([0.1]))}
    for blocks in (1, 8):
        case = Case("paper", blocks, "56x56")
        found.add("strategies", case.key, {**case.describe(), "seconds": seconds})
    return found


def test_tables_name_the_best_peer(tmp_path: Path) -> None:
    printed = tables(results(tmp_path)).splitlines()
    assert (
        "| paper | 4 | 16x128x56x56 | 110.00 [100.00, 120.00] | b | 300.00 [300.00, 310.00] "
        "| 2.82 [2.50, 3.00] | 1 / 12 |" in printed
    )
    assert "| paper | 4 | 16x128x56x56 | 2.8 [2.5, 3.0] | 90.0 [82.5, 90.0] | 1.0e-06 |" in printed


def test_figures_are_kept_with_the_machine(tmp_path: Path) -> None:
    results(tmp_path)
    path = tmp_path / "figures.json"
    again = Results(path)
    assert list(again.part("strategies")) == ["paper, 1 blocks, 56x56", "paper, 8 blocks, 56x56"]
    data: dict[str, Any] = json.loads(path.read_text())
    data["machine"] = "another"
    path.write_text(json.dumps(data))
    with pytest.raises(SystemExit, match=r"was measured on another; this is .*: name another file"):
        Results(path)
    assert Results(path, measures=False).machine == "another"


def test_the_plot_has_a_line_for_each_strategy(tmp_path: Path) -> None:
    text = plot(results(tmp_path))
    ET.fromstring(text)
    assert "one step" in text and "by predicted time" in text and "16x128x56x56" in text


def test_lines_keep_their_colours_and_their_order_of_magnitude() -> None:
    panels = [
        Panel("left <1>", {"a": [(0, 1.0), (40, 100.0)], "b": [(0, 2.0)]}),
        Panel("right", {"b": [(0, 5.0), (10, 7.0)]}),
    ]
    text = line_plot(panels, "x", "y")
    root = ET.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    lines = [p for p in root.iter(f"{space}path") if p.get("stroke-width") == "2"]
    colours = [line.get("stroke") for line in lines]
    # a and b on the left, b on the right, then the legend.
    assert colours == [colours[0], colours[1], colours[1], colours[0], colours[1]]
    titles = [t.text for t in root.iter(f"{space}text") if t.get("font-weight") == "bold"]
    assert titles == ["left <1>", "right"]
    assert {"1", "10", "100"} <= {t.text for t in root.iter(f"{space}text")}
    (path,) = (line.get("d") for line in lines[:1])
    assert path is not None
    (x0, y0), (x1, y1) = (map(float, point.split()) for point in path[1:].split("L"))
    assert x0 < x1 and y0 > y1
