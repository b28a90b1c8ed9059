"""A report and a study whose pages are the same on all machines."""

from __future__ import annotations

from typing import Any

import minidnn as md
from minidnn import lab, models
from minidnn.cli.explain import Trail, add_times, document_of
from minidnn.report.explain import Profile, RegionTime, describe, inner_nodes, kind_of, work


def measured_report() -> dict[str, Any]:
    """What ``minidnn report resnet18 --json`` prints.  Each region takes twice its floor on a
    machine of 100 GFLOP/s and 10 GB/s, and ten microseconds."""
    trail = Trail()
    exe = md.compile(models.resnet18(), (1, 3, 224, 224), device="reference", observe=trail.observe)
    times, told = [], []
    for node in exe.graph.nodes:
        kind = kind_of(exe.plan, node)
        if kind in ("view", "in place"):
            continue
        operations, moved = work(node)
        floors = (operations / 1e11, moved / 1e10)
        layers = tuple(inner.source for inner in inner_nodes(node))
        seconds = 2 * max(floors) + 1e-5
        times.append(
            RegionTime(
                *(node.name, kind, layers, operations, moved, seconds, max(floors), operations),
                *(*floors, 3e-6),
            )
        )
        told.append(f"{describe(node)} [direct]")
    document = document_of(exe, trail, False)
    add_times(document, Profile(tuple(times), tuple(told), 9, {"F(2x2, 3x3)": {"stride 2": 3}}))
    return document | {
        "network": "resnet18",
        "batch": 1,
        "strategy": "model",
        "tuned": False,
        "precisions": ["float32"],
    }


def one_shape(name: str) -> str:
    """The page of a recorded study with its first shape alone: all others look like it."""
    study = lab.load_study(lab.recorded_studies()[name])
    study["shapes"] = study["shapes"][:1]
    study["cells"] = [cell for cell in study["cells"] if cell["shape"] == 0]
    return lab.study_page(study, lab.ladder_of(name))
