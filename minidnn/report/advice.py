"""Three sentences about a compiled network: where its time is, what bounds it, what was refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

_NARROWER = {"float64": 0, "float32": 1, "tf32": 2, "bfloat16": 3, "float16": 3}
"""Precisions by how fast they are; all but tf32 also move fewer bytes than those before."""

_SHORT = 5e-5
"""Seconds of a kernel so short that waking threads, or filling a GPU, is much of it."""


def advice(document: Mapping[str, Any]) -> list[str]:
    """The sentences, from what ``minidnn report --json`` prints.

    Args:
        document: the report; one that was not measured says less about what bounds it.

    Returns:
        Where the time is; what bounds it, and what would help; what was refused most often.
    """
    regions = [region for region in document["regions"] if seconds_of(region) > 0]
    if not regions:
        return ["No kernel takes any time: the network only looks at its inputs in another way."]
    return [_where(regions), _bound(document, regions), _refused(document, regions)]


def _where(regions: Sequence[Any]) -> str:
    whole = sum(map(seconds_of, regions))
    slowest = sorted(regions, key=seconds_of, reverse=True)
    part, seconds = next(iter(by_layer(regions).items()))
    first = slowest[0]
    told = (
        f"The slowest region is {label_of(first)}, with {_ms(seconds_of(first))} of {_ms(whole)} "
        f"({_percent(seconds_of(first) / whole)})"
    )
    if seconds > 1.01 * seconds_of(first):
        told += f"; the slowest part is {part}, with {_percent(seconds / whole)}"
    few = slowest[:3]
    if len(regions) > len(few):
        share = sum(map(seconds_of, few)) / whole
        told += f"; {len(few)} of the {len(regions)} regions take {_percent(share)}"
    return f"{told}."


def _bound(document: Mapping[str, Any], regions: Sequence[Any]) -> str:
    causes = by_cause(regions)
    if not causes:
        worst = max(regions, key=seconds_of)
        return (
            f"Nothing was measured, so what bounds {label_of(worst)} is not known; it computes "
            f"{worst['operations'] / 1e6:.4g} Mop on {worst['bytes'] / 1e6:.3g} MB, and the cost "
            f"model expects {_ms(worst['predicted_seconds'])}."
        )
    cause = max(causes, key=lambda name: causes[name])
    timed = [region for region in regions if "causes" in region]
    worst = max(timed, key=lambda region: float(region["causes"][cause]))
    share = _percent(causes[cause] / sum(causes.values()))
    lost, label = _ms(worst["causes"][cause]), label_of(worst)
    if cause == "memory":
        told = (
            f"Memory bounds {share} of the time, most of all {label}, which moves "
            f"{worst['bytes'] / 1e6:.3g} MB"
        )
    elif cause == "arithmetic":
        told = (
            f"Arithmetic bounds {share} of the time, most of all {label}, which computes "
            f"{worst['executed'] / 1e6:.4g} Mop"
        )
    elif cause == "launch":
        told = f"Launches of {_many(len(timed), 'kernel')} take {share} of the time"
    else:
        floor = max(worst["arithmetic_seconds"], worst["memory_seconds"])
        told = (
            f"Neither memory nor arithmetic explains {share} of the time, most of all {lost} of "
            f"{label}, whose floor is {_ms(floor)} and which took {_ms(seconds_of(worst))}"
            f"{_algorithm(worst)}"
        )
    return f"{told}; {_help(document, cause, worst)}"


def _algorithm(region: Mapping[str, Any]) -> str:
    """By which algorithm a region is computed, where its device says so."""
    _, mark, found = str(region.get("description", "")).rpartition("[")
    return f" (algorithm: {found.removesuffix(']')})" if mark else ""


def _help(document: Mapping[str, Any], cause: str, worst: Mapping[str, Any]) -> str:
    """What would help against a cause, of all that this compilation did not do."""
    batch = document["batch"]
    ways = []
    if cause in ("memory", "launch") and document["strategy"] not in ("model", "unrestricted"):
        ways.append(f"--strategy model, which fuses more than {document['strategy']}")
    if cause == "memory" and 2 * worst["weight_bytes"] > worst["bytes"]:
        weights = f"{worst['weight_bytes'] / 1e6:.3g} MB of weights"
        ways.append(f"a batch larger than {batch}, for which its {weights} are read once")
    elif cause == "launch" or (cause == "unexplained" and seconds_of(worst) < _SHORT):
        ways.append(f"a batch larger than {batch}, which gives each kernel more to do")
    if cause == "unexplained" and not document["tuned"]:
        ways.append("--tune, which tries other kernels")
    if cause in ("memory", "arithmetic"):
        ways += _narrower(document, cause)
    if not ways:
        if cause == "unexplained":
            return "no choice is left but to measure again when nothing else runs on the machine."
        return f"in {document['precision']} only a smaller layer would help."
    return f"what may help: {'; '.join(ways)}."


def _narrower(document: Mapping[str, Any], cause: str) -> list[str]:
    now = document["precision"]
    rank = _NARROWER.get(now, max(_NARROWER.values()))
    found = [
        name
        for name in document["precisions"]
        if _NARROWER.get(name, 0) > rank and not (cause == "memory" and name == "tf32")
    ]
    if found:
        return [f"--precision {' or '.join(found)}"]
    return ["int8, by md.quantize"] if document["device"] == "cpu" and now == "float32" else []


def _refused(document: Mapping[str, Any], regions: Sequence[Any]) -> str:
    reasons: dict[str, list[str]] = {}
    most: Counter[str] = Counter()
    for name, refused in document.get("refusals", {}).items():
        for reason, count in refused.items():
            most[reason] = max(most[reason], count)
            reasons.setdefault(reason, []).append(name)
    labels = {region["name"]: label_of(region) for region in document["regions"]}
    notes: Counter[str] = Counter(document["notes"].values())
    reason, count = most.most_common(1)[0] if most else ("", 0)
    note, times = notes.most_common(1)[0] if notes else ("", 0)
    if not count and not times:
        layers = sum(len(region["layers"]) for region in regions)
        return (
            f"Nothing was refused: {_many(layers, 'layer')} run as {_many(len(regions), 'kernel')}."
        )
    if times >= count:
        name = next(name for name, text in document["notes"].items() if text == note)
        like = f", as {times - 1} more" if times > 1 else ""
        return f"Refused most often: {labels.get(name, name)}{like} was {note}."
    return (
        f"Refused most often: {' and '.join(reasons[reason])} for {count} of {len(regions)} "
        f"regions, since {reason}."
    )


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


# Where the time of a network goes: by layer, by kind of region, by cause.
#
# A region is here what ``explain --json`` and ``report --json`` print of it.


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
