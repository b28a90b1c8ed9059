"""Files of cells beside OpenVINO and ONNX Runtime, and their tables."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import onnx_networks
from benchmarks.onnx_networks_report import cells, of


def row(network: str, batch: int, ratio: float, **more: Any) -> dict[str, Any]:
    given = {"precision": "int8", "network": network, "batch": batch, "minidnn": 2.0}
    return given | {"ratios": {"openvino": ratio}, "error": 0.1} | more


def test_a_cell_is_as_it_was_measured_last() -> None:
    """Also in a file of which a part was measured, and by another peer before."""
    rows = [row("b", 16, 3.0), row("a", 1, 0.5), row("b", 16, 2.0), row("a", 1, 9.0)]
    rows[1]["precision"] = "bfloat16"
    rows.append(row("c", 1, 1.0, ratios={"openvino": 0.5, "onnxruntime": 4.0}))
    found = of("int8")(rows)
    assert [(r["network"], r["batch"]) for r in found] == [("a", 1), ("c", 1), ("b", 16)]
    lines = cells(found).splitlines()
    assert "| all | OpenVINO | 3 | 2.08 | 0.50 |" in lines
    assert "| all | ONNX Runtime | 1 | 4.00 | 4.00 |" in lines
    assert "| b | 16 | 2 | 2.00 |  | 1.0e-01 |" in lines
    assert "a" not in [r["network"] for r in of("int8")(rows[:2])]


def test_arguments_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        onnx_networks.main(["--precisions", "float16"])
    assert "choose from 'float32', 'bfloat16', 'int8'" in capsys.readouterr().err
