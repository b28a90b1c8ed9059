"""The page of what ``onnx_networks.py`` measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.figures import markdown
from benchmarks.report import Page, Section
from benchmarks.report_tables import geometric_mean

Row = Mapping[str, Any]

_TITLES = {"openvino": "OpenVINO", "onnxruntime": "ONNX Runtime"}


def of(precision: str) -> Any:
    """The cells of a precision, each as it was measured last."""

    def select(rows: Sequence[Row]) -> list[Row]:
        found = {
            (row["batch"], row["network"]): row for row in rows if row["precision"] == precision
        }
        return [found[place] for place in sorted(found)]

    return select


def cells(rows: Sequence[Row]) -> str:
    """Milliseconds, ratios and errors, and the means of each batch and of all."""
    peers = list(dict.fromkeys(peer for row in rows for peer in row["ratios"]))
    both = any("error of openvino" in row for row in rows)
    titles = ["network", "batch", "minidnn, ms", *(_TITLES[peer] for peer in peers), "error"]
    titles += ["OpenVINO's error"] if both else []
    lines = []
    for row in rows:
        line = [row["network"], row["batch"], f"{row['minidnn']:.4g}"]
        line += [_ratio(row["ratios"].get(peer)) for peer in peers]
        line.append(f"{row['error']:.1e}")
        line += [f"{row['error of openvino']:.1e}"] if both else []
        lines.append(line)
    means = []
    for batch in dict.fromkeys(row["batch"] for row in rows):
        means += _means([row for row in rows if row["batch"] == batch], peers, batch)
    means += _means(rows, peers, "all")
    head = ["batch", "over", "cells", "geometric mean", "least"]
    return "\n\n".join([markdown(head, means), markdown(titles, lines)])


def _ratio(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


def _means(rows: Sequence[Row], peers: Sequence[str], batch: object) -> list[list[object]]:
    found = []
    for peer in peers:
        ratios = [row["ratios"][peer] for row in rows if peer in row["ratios"]]
        if not ratios:
            continue
        mean, least = geometric_mean(ratios), min(ratios)
        found.append([batch, _TITLES[peer], len(ratios), f"{mean:.2f}", f"{least:.2f}"])
    return found


def _section(precision: str, about: str) -> Section:
    return Section(
        precision,
        "onnx_networks_sapphire_rapids.jsonl",
        f"python -m benchmarks.onnx_networks --precisions {precision} --threads 2 --jsonl FILE",
        cells,
        about,
        part=of(precision),
    )


PAGE = Page(
    "cpu-onnx",
    "ONNX files on the CPU: float32, bfloat16 and int8",
    "Networks beside OpenVINO and ONNX Runtime in the same precision, with two threads, on a "
    "processor with AMX. A ratio is a peer's time by minidnn's: above 1 minidnn is faster.",
    (
        _section(
            "float32",
            "Networks of grouped and depthwise convolutions, 1x1 and channel attention. An error "
            "is what differs most from ONNX Runtime, by its largest number.",
        ),
        _section(
            "bfloat16",
            "An error is the root of the mean square of what differs from OpenVINO in float32, by "
            "that of its result.",
        ),
        _section(
            "int8",
            "All engines read one file with QDQ. An error is what differs most from ONNX Runtime, "
            "by its largest number.",
        ),
    ),
)
