"""Advice follows from a report's figures: each cause, and each thing that would help."""

from __future__ import annotations

from typing import Any

import pytest

from minidnn.report.explain import RegionTime
from minidnn.report.network_page import advice, by_cause, by_kind, by_layer


def region(name: str, seconds: float, **causes: float) -> dict[str, Any]:
    split = dict.fromkeys(("memory", "arithmetic", "launch", "unexplained"), 0.0) | causes
    return {
        "name": name.rpartition(".")[2],
        "label": name,
        "kind": "contraction" if "conv" in name else "2 steps",
        "layers": [name],
        "operations": 2_000_000,
        "executed": 1_000_000,
        "bytes": 4_000_000,
        "weight_bytes": 1_000_000,
        "predicted_seconds": seconds / 2,
        "seconds": seconds,
        "arithmetic_seconds": split["arithmetic"],
        "memory_seconds": split["memory"],
        "causes": split,
        "description": "Conv2d [direct]",
    }


def report(*regions: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "device": "cpu",
        "precision": "float32",
        "precisions": ["float32", "bfloat16"],
        "batch": 1,
        "strategy": "model",
        "tuned": False,
        "regions": list(regions),
        "notes": {},
        "refusals": {},
        **more,
    }


MEMORY = region("a.conv", 3e-3, memory=2e-3, unexplained=1e-3)
SUMS = region("b.conv", 3e-3, arithmetic=3e-3)


def test_where_the_time_is() -> None:
    others = [region("b.pool", 1e-3), region("c.pool", 1e-3), region("d.pool", 1e-3)]
    assert advice(report(MEMORY, *others))[0] == (
        "The slowest region is a.conv, with 3 ms of 6 ms (50 %); 3 of the 4 regions take 83 %."
    )
    others.append(region("a.pool", 2e-3))
    assert advice(report(MEMORY, *others))[0] == (
        "The slowest region is a.conv, with 3 ms of 8 ms (38 %); the slowest part is a, with 62 %; "
        "3 of the 5 regions take 75 %."
    )


@pytest.mark.parametrize(
    ("document", "told"),
    [
        (report(MEMORY), "Memory bounds 67 % of the time, most of all a.conv, which moves 4 MB"),
        (report(MEMORY), "what may help: --precision bfloat16."),
        (report(MEMORY | {"weight_bytes": 3_000_000}), "a batch larger than 1, for which its 3 MB"),
        (report(MEMORY, strategy="layers"), "--strategy model, which fuses more than layers"),
        (report(MEMORY, precisions=["float32", "tf32"], device="cuda"), "in float32 only a"),
        (report(MEMORY, precisions=["float32"]), "int8, by md.quantize"),
        (report(SUMS), "Arithmetic bounds 100 % of the time, most of all b.conv, which computes 1"),
        (report(SUMS, precisions=["tf32", "float32"], device="cuda"), "--precision tf32."),
        (
            report(region("c", 3e-6, launch=2e-6, unexplained=1e-6), batch=4),
            "Launches of 1 kernel take 67 % of the time; what may help: a batch larger than 4",
        ),
        (
            report(region("c", 3e-3, memory=1e-3, unexplained=2e-3)),
            "most of all 2 ms of c, whose floor is 1 ms and which took 3 ms (algorithm: direct); "
            "what may help: --tune, which tries other kernels.",
        ),
        (
            report(region("c", 3e-5, unexplained=3e-5)),
            "what may help: a batch larger than 1, which gives each kernel more to do; --tune",
        ),
        (report(region("c", 3e-3, unexplained=3e-3), tuned=True), "no choice is left but to"),
    ],
)
def test_what_bounds_it_and_what_would_help(document: dict[str, Any], told: str) -> None:
    assert told in advice(document)[1]


def test_what_was_not_measured_is_not_explained() -> None:
    plain = {key: value for key, value in SUMS.items() if key not in ("seconds", "causes")}
    told = advice(report(plain))[1]
    assert told.startswith("Nothing was measured, so what bounds b.conv is not known; it computes")
    assert by_cause([plain]) == {}


def test_what_was_refused() -> None:
    assert advice(report(SUMS))[2] == "Nothing was refused: 1 layer run as 1 kernel."
    refusals = {"F2": {"the kernel is 1x1": 2, "stride": 1}, "F4": {"the kernel is 1x1": 2}}
    found = report(SUMS, MEMORY, refusals=refusals, notes={"conv": "copied: it is an input"})
    assert advice(found)[2] == (
        "Refused most often: F2 and F4 for 2 of 2 regions, since the kernel is 1x1."
    )
    notes = {"conv": "copied: it is an input", "x": "copied: it is an input"}
    assert advice(report(SUMS, notes=notes))[2] == (
        "Refused most often: b.conv, as 1 more was copied: it is an input."
    )


def test_a_network_without_kernels() -> None:
    assert "No kernel takes any time" in advice(report(region("flatten", 0.0)))[0]


def test_shares() -> None:
    deep = [region(f"features.{name}", 1e-3) for name in ("0.conv", "0.pool", "1.conv", "1.pool")]
    assert by_layer(deep) == pytest.approx({one["label"]: 1e-3 for one in deep})
    wide = [region(f"{name}.conv", 1e-3) for name in "abcda"]
    assert by_layer(wide) == pytest.approx({"a": 2e-3, "b": 1e-3, "c": 1e-3, "d": 1e-3})
    assert by_kind(deep) == pytest.approx({"contraction": 2e-3, "depth first": 2e-3})
    assert by_cause([MEMORY, SUMS]) == pytest.approx(
        {"memory": 2e-3, "arithmetic": 3e-3, "launch": 0, "unexplained": 1e-3}
    )


@pytest.mark.parametrize(
    ("seconds", "arithmetic", "memory", "causes"),
    [
        (10, 2, 5, (5, 0, 1, 4)),
        (10, 5, 2, (0, 5, 1, 4)),
        (4, 9, 2, (0, 4, 0, 0)),
        (5.5, 5, 5, (5, 0, 0.5, 0)),
    ],
)
def test_causes_add_up(
    seconds: float, arithmetic: float, memory: float, causes: tuple[float, ...]
) -> None:
    one = RegionTime("a", "", ("a",), 1, 1, seconds, 1.0, 1, arithmetic, memory, 1.0)
    assert tuple(one.causes.values()) == causes and sum(causes) == seconds
    assert one.roofline == max(arithmetic, memory) / seconds
