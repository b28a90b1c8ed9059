"""Tables of cells that were measured on a GPU."""

from __future__ import annotations

from typing import Any

from benchmarks.cuda_zoo import summed
from benchmarks.cuda_zoo_report import fusion, ratio, report, slowest


def cell(network: str, own: float | None, *peers: float, batch: int = 128) -> dict[str, Any]:
    names = ("torch", "torch-compile")
    times = dict(zip(names, peers, strict=False)) | ({} if own is None else {"minidnn": own})
    failed = {} if own is not None else {"minidnn": "CuDNNError: no"}
    return {
        "commit": "abc",
        "network": network,
        "precision": "float16",
        "batch": batch,
        "ms": times,
        "errors": {},
        "failed": failed,
    }


def region(name: str, contracts: bool, us: float) -> dict[str, Any]:
    floors = {"bytes_us": us / 4, "operations_us": us / 2}
    return floors | {
        "name": name,
        "contracts": contracts,
        "us": us,
        "shape": [1, 2],
        "what": "conv",
    }


def test_the_fastest_peer_counts() -> None:
    assert ratio(cell("resnet18", 2.0, 5.0, 3.0)) == 1.5
    assert ratio(cell("resnet18", None, 5.0)) is None
    assert ratio(cell("resnet18", 1.0)) is None


def test_failures_and_cells_under_one_are_shown() -> None:
    text = report([cell("alexnet", 1.0, 4.0), cell("vgg16", 2.0, 1.0), cell("vgg19", None, 1.0)])
    assert "| float16 | 128 | 3 | 1.41 | 0.50 (vgg16) | 1 | vgg19: minidnn |" in text
    assert "| vgg19 | float16 | 128 | 1.000 | failed | - | - | - |" in text


def test_errors_are_those_to_float32() -> None:
    one = cell("alexnet", 1.0, 4.0) | {"errors": {"minidnn": 1e-3, "torch": 2e-3}}
    text = report([one, cell("vgg16", 1.0, 4.0)])
    assert "| 4.00 | 1.0e-03 | 2.0e-03 |" in text and "| 4.00 | - | - |" in text


def test_the_last_measurement_of_a_cell_counts() -> None:
    text = report([cell("alexnet", 1.0, 4.0), cell("alexnet", 2.0, 4.0)])
    assert "| float16 | 128 | 1 | 2.00 |" in text and "4.00 |\n" not in text.split("\n\n")[0]


def test_our_other_strategies_are_no_peers() -> None:
    one = cell("alexnet", 2.0, 6.0)
    one["ms"]["minidnn-layers"] = 3.0
    assert ratio(one) == 3.0


def test_families_have_rows_of_their_own() -> None:
    text = report([cell("vgg11", 1.0, 2.0), cell("vgg19_bn", 1.0, 8.0), cell("alexnet", 1.0, 1.0)])
    assert "| vgg | float16 | 128 | 2 | 4.00 | 2.00 (vgg11) | 0 | none |" in text


def test_what_fusion_gains() -> None:
    one = cell("vgg11", 2.0)
    one["ms"] |= {"minidnn-layers": 3.0, "minidnn-contractions": 2.5}
    conv, pool = region("c", True, 1500.0), region("p", False, 500.0)
    before = [conv, region("r", False, 1000.0), pool]
    one["regions"] = {"minidnn-layers": summed(before, 0), "minidnn": summed([conv, pool], 0)}
    row = "2.500 | 2.000 | 50.0% | 33.3% | 25.0% | 1.500 | 0.500 | 200% | 1.500 | 1.500 |"
    assert f"| vgg11 | float16 | 128 | 3.000 | {row}" in fusion([one])
    assert "vgg13 | float16 | 128 | vgg13: minidnn |" in fusion([cell("vgg13", None)])


def test_the_slowest_regions_stand_beside_their_floors() -> None:
    one = cell("vgg11", 2.0)
    found = [region(n, True, us) for n, us in zip("abc", (1, 8, 7), strict=True)]
    one["regions"] = {"minidnn": summed(found, 2)}
    text = slowest([one], 2)
    assert "vgg11, float16, batch 128: 3 regions, 16 us one by one" in text
    assert "| b | 1x2 | 8.0 | 50.0% | 2.0 | 4.0 | 50% | conv |\n| c |" in text
    assert "| a |" not in text
