"""Where the time of a network goes: by layer, by kind of region, by cause.

A region is here what ``explain --json`` and ``report --json`` print of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

CAUSES = ("memory", "arithmetic", "launch", "unexplained")
"""What :attr:`minidnn.report.profile.RegionTime.causes` splits a region's time into."""
_ENOUGH = 4
"""So many groups of layers tell something; with fewer, paths are followed deeper."""
_KINDS = {
    "contraction": "contraction",
    "step": "depth first",
    "copy": "copy",
}

Region = Mapping[str, Any]


def seconds_of(region: Region) -> float:
    """Measured, or predicted where nothing was."""
    return float(region.get("seconds", region["predicted_seconds"]))


def label_of(region: Region) -> str:
    """What people know a region by; its name, in reports of versions that had no labels."""
    return str(region.get("label", region["name"]))


def kind_of_region(region: Region) -> str:
    """Its kind, without how many steps or copies it has."""
    kind = str(region["kind"])
    return next((told for part, told in _KINDS.items() if part in kind), kind)


def by_kind(regions: Sequence[Region]) -> dict[str, float]:
    """Seconds of each kind of region, the largest first."""
    return _sums(regions, [kind_of_region(region) for region in regions])


def by_layer(regions: Sequence[Region]) -> dict[str, float]:
    """Seconds of the parts of a network, the largest first: of the first names of layers' paths, or
    of as many of their names as it takes to tell four parts apart."""
    paths = [region["layers"][0].split(".") for region in regions]
    for depth in range(1, max(map(len, paths), default=1) + 1):
        found = _sums(regions, [".".join(path[:depth]) for path in paths])
        if len(found) >= _ENOUGH:
            break
    return found


def by_cause(regions: Sequence[Region]) -> dict[str, float]:
    """Seconds of each cause; none where nothing was measured."""
    split = [region["causes"] for region in regions if "causes" in region]
    return {cause: sum(one[cause] for one in split) for cause in CAUSES} if split else {}


def _sums(regions: Sequence[Region], names: Sequence[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for region, name in zip(regions, names, strict=True):
        found[name] = found.get(name, 0.0) + seconds_of(region)
    return dict(sorted(found.items(), key=lambda item: -item[1]))
