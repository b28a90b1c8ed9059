"""Tables of cells that were measured on a GPU."""

from __future__ import annotations

from typing import Any

from benchmarks.cuda_zoo_report import ratio, report


def cell(network: str, own: float | None, *peers: float, batch: int = 128) -> dict[str, Any]:
    names = ("eager", "compile")
    times = dict(zip(names, peers, strict=False)) | ({} if own is None else {"minidnn": own})
    failed = {} if own is not None else {"minidnn": "CuDNNError: no"}
    return {
        "commit": "abc",
        "network": network,
        "precision": "float16",
        "batch": batch,
        "ms": times,
        "failed": failed,
    }


def test_the_fastest_peer_counts() -> None:
    assert ratio(cell("resnet18", 2.0, 5.0, 3.0)) == 1.5
    assert ratio(cell("resnet18", None, 5.0)) is None
    assert ratio(cell("resnet18", 1.0)) is None


def test_failures_and_cells_under_one_are_shown() -> None:
    text = report([cell("alexnet", 1.0, 4.0), cell("vgg16", 2.0, 1.0), cell("vgg19", None, 1.0)])
    assert "| float16 | 128 | 3 | 1.41 | 0.50 (vgg16) | 1 | vgg19: minidnn |" in text
    assert "| vgg19 | float16 | 128 | 1.000 | failed | - |" in text


def test_the_last_measurement_of_a_cell_counts() -> None:
    text = report([cell("alexnet", 1.0, 4.0), cell("alexnet", 2.0, 4.0)])
    assert "| float16 | 128 | 1 | 2.00 |" in text and "4.00 |\n" not in text.split("\n\n")[0]
