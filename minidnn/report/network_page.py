"""The HTML report of a compiled network: times of regions, roofline, memory, fusion, comparison.

It begins with three sentences: where the time goes, what bounds it, and which fusions or algorithms
were refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..pages.charts import Bar, Chart, Dot, Scale, bars, chart_figure, figure, strip
from ..pages.page import code, details, guide, heading, lead, page, paragraph, table

_NARROWER = {"float64": 0, "float32": 1, "tf32": 2, "bfloat16": 3, "float16": 3}
"""The rank of precisions by speed; all but tf32 also move fewer bytes than those before."""

_SHORT = 5e-5
"""The seconds below which waking threads, or filling a GPU, is much of a kernel's time."""


def advice(document: Mapping[str, Any]) -> list[str]:
    """Returns the three sentences for a report.

    Args:
        document: the output of ``minidnn report --json``; without measurements the bound is not
            known.

    Returns:
        Where the time goes; what bounds it, and what would help; the most frequent refusal.
    """
    regions = [region for region in document["regions"] if seconds_of(region) > 0]
    if not regions:
        return ["No kernel takes any time: the network only looks at its inputs in another way."]
    return [_where(regions), _bound(document, regions), _refused(document, regions)]


def _where(regions: Sequence[Any]) -> str:
    """The sentence about where the time goes."""
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
    """The sentence about the largest cause of the time, and what would help."""
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
    """Names the algorithm of a region, if its device says which; else ""."""
    _, mark, found = str(region.get("description", "")).rpartition("[")
    return f" (algorithm: {found.removesuffix(']')})" if mark else ""


def _help(document: Mapping[str, Any], cause: str, worst: Mapping[str, Any]) -> str:
    """Suggests what would help against a cause: options that this compilation did not use."""
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
    """Suggests the faster precisions of the device."""
    now = document["precision"]
    rank = _NARROWER.get(now, max(_NARROWER.values()))
    faster = [
        name
        for name in document["precisions"]
        if _NARROWER.get(name, 0) > rank and not (cause == "memory" and name == "tf32")
    ]
    if faster:
        return [f"--precision {' or '.join(faster)}"]
    return ["int8, by md.quantize"] if document["device"] == "cpu" and now == "float32" else []


def _refused(document: Mapping[str, Any], regions: Sequence[Any]) -> str:
    """The sentence about the most frequent refusal."""
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


# The time of a network by layer, by kind of region, and by cause.
#
# A region is here an object of the JSON that ``explain --json`` and ``report --json`` print.


CAUSES = ("memory", "arithmetic", "launch", "unexplained")
"""The parts into which :attr:`minidnn.report.explain.RegionTime.causes` splits a time."""
_ENOUGH = 4
"""The fewest groups of layers that are informative; with fewer, paths are split deeper."""
_KINDS = {
    "contraction": "contraction",
    "step": "depth first",
    "copy": "copy",
}

Region = Mapping[str, Any]


def seconds_of(region: Region) -> float:
    """The measured seconds of a region; predicted ones if it was not measured."""
    return float(region.get("seconds", region["predicted_seconds"]))


def label_of(region: Region) -> str:
    """The label of a region, by its layers; its name in reports of versions without labels."""
    return str(region.get("label", region["name"]))


def kind_of_region(region: Region) -> str:
    """The kind of a region, without its number of steps or copies."""
    kind = str(region["kind"])
    return next((told for part, told in _KINDS.items() if part in kind), kind)


def by_kind(regions: Sequence[Region]) -> dict[str, float]:
    """The seconds of each kind of region, the largest first."""
    return _sums(regions, [kind_of_region(region) for region in regions])


def by_layer(regions: Sequence[Region]) -> dict[str, float]:
    """The seconds of the parts of a network, the largest first.  Parts are prefixes of layers'
    paths, of as many names as it takes to have four parts."""
    paths = [region["layers"][0].split(".") for region in regions]
    for depth in range(1, max(map(len, paths), default=1) + 1):
        groups = _sums(regions, [".".join(path[:depth]) for path in paths])
        if len(groups) >= _ENOUGH:
            break
    return groups


def by_cause(regions: Sequence[Region]) -> dict[str, float]:
    """The seconds of each cause, over all regions; empty if nothing was measured."""
    split = [region["causes"] for region in regions if "causes" in region]
    return {cause: sum(one[cause] for one in split) for cause in CAUSES} if split else {}


def _sums(regions: Sequence[Region], names: Sequence[str]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for region, name in zip(regions, names, strict=True):
        sums[name] = sums.get(name, 0.0) + seconds_of(region)
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


Document = Mapping[str, Any]
_LONGEST = 15
_GROUPS = 8


def network_page(document: Document, beside: Document | None = None) -> str:
    """Returns the page for the output of ``minidnn report --json``.  ``beside``: an earlier report,
    whose regions are compared by name."""
    title = f"{document['network']} on {document['device']} in {document['precision']}"
    return page(title, _parts(document, beside))


def _parts(document: Document, beside: Document | None) -> Iterator[str]:
    """The parts of the page, in order."""
    regions = [region for region in document["regions"] if seconds_of(region) > 0]
    total = sum(map(seconds_of, regions))
    kind = "measured" if any("seconds" in region for region in regions) else "predicted"
    yield guide("How to read this page", _reading(document, regions, total, kind))
    # Refusals also use "kernel" for a window of weights, which the glossary does not explain.
    yield guide("In short", advice(document), explains=False)
    yield heading("Where the time goes")
    yield from _time(regions, total)
    if beside is not None:
        yield heading("Beside the other report")
        yield from _comparison(document, beside)
    yield heading("Against the roofline, and memory")
    drawn = [one for one in (_roofline(regions), _memory(document)) if one]
    yield '<div class="charts">' + "\n".join(drawn) + "</div>"
    yield heading("What was fused into each region")
    yield _regions(document)
    yield heading("Why not more was fused")
    yield from _reasons(document)
    rewrites = [
        f"#{one['number']} {one['pass']}: {one['description']}" for one in document["rewrites"]
    ]
    yield details(f"{len(rewrites)} rewrites", [code("\n".join(rewrites))])


def _reading(document: Document, regions: Sequence[Any], total: float, kind: str) -> list[str]:
    """The paragraphs that explain the page."""
    arena = document["arena"]
    example = max(regions, key=seconds_of, default=None)
    named = f", such as {label_of(example)}" if example is not None else ""
    return [
        f"This page shows how minidnn computes {document['network']} for inputs "
        f"{', '.join(document['inputs'])}: as {len(regions)} kernels in {1e3 * total:.4g} ms, "
        f"{kind}. A bar or a row is a region; it has the names of your layers{named}, and what "
        "stands behind a + is fused to the first one.",
        "Begin with what comes next, in short; then look for long bars, and in the roofline for "
        "points far below the line. Words with dots under them explain themselves when one points "
        "at them, and at the end of the page.",
        f"The arena takes {arena['bytes'] / 1e6:.2f} MB, of which {arena['lower_bound'] / 1e6:.2f} "
        f"MB are in use at once. Choices were priced for {document['priced_for']}.",
    ]


def _time(regions: Sequence[Any], total: float) -> Iterator[str]:
    """The figures of the part about times."""
    pieces = [
        (
            kind_of_region(one),
            seconds_of(one) / total,
            f"{label_of(one)}: {1e6 * seconds_of(one):,.1f} us",
        )
        for one in regions
    ]
    see = "From the first kernel to the last: wide pieces are where the time is."
    yield figure("All regions in their order", strip(pieces), see)
    groups = [
        ("By layer", by_layer(regions), "The parts of the network by the names of their layers."),
        (
            "By kind",
            by_kind(regions),
            "Whether contractions take the time, layers computed depth first, or a movement.",
        ),
    ]
    drawn = [figure(title, bars(_shares(found, total)), see) for title, found, see in groups]
    if causes := by_cause(regions):
        see = (
            "Memory and arithmetic are floors by this machine's measured rates, and launches what "
            "the cost model counts; unexplained is what a better kernel could gain."
        )
        colored = [
            replace(bar, parts=[bar.value * (bar.label == cause) for cause in CAUSES])
            for bar in _shares(causes, total)
        ]
        drawn.append(figure("By cause", bars(colored, parts=CAUSES), see))
    yield '<div class="charts">' + "\n".join(drawn) + "</div>"
    longest = sorted(regions, key=seconds_of, reverse=True)[:_LONGEST]
    split = CAUSES if causes else ()
    rows = [
        Bar(
            label_of(one),
            1e6 * seconds_of(one),
            f"{1e6 * seconds_of(one):,.1f} us",
            [1e6 * one["causes"][cause] for cause in split],
        )
        for one in longest
    ]
    see = (
        "The last colour is what neither memory, arithmetic nor the launch explains: where it is "
        "long, a kernel is far from its floor, or others used the machine."
        if split
        else "Predicted by the cost model, since nothing was measured."
    )
    yield figure(f"The {len(rows)} regions that take longest", bars(rows, parts=split), see)


def _shares(found: Mapping[str, float], total: float) -> list[Bar]:
    """A bar for each of the largest groups, and one for all others."""
    items = list(found.items())
    if len(items) > _GROUPS:
        rest = sum(seconds for _, seconds in items[_GROUPS - 1 :])
        items = [*items[: _GROUPS - 1], (f"{len(items) - _GROUPS + 1} others", rest)]
    return [
        Bar(name, seconds, f"{100 * seconds / total:.0f} %, {1e3 * seconds:.3g} ms")
        for name, seconds in items
    ]


def _roofline(regions: Sequence[Any]) -> str:
    """The chart of regions' rates of arithmetic under the machine's roofline."""
    series: dict[str, list[Dot]] = {}
    peaks, bandwidths, at_all = [], [], []
    for region in regions:
        executed = region.get("executed", region["operations"])
        if not executed or not region["bytes"]:
            continue
        at, reached = executed / region["bytes"], executed / seconds_of(region) / 1e9
        told = f"{label_of(region)}: {reached:.4g} GFLOP/s"
        if "roofline" in region:
            told += f", {100 * region['roofline']:.0f} % of its roofline"
            peaks.append(executed / region["arithmetic_seconds"] / 1e9)
            bandwidths.append(region["bytes"] / region["memory_seconds"] / 1e9)
        at_all.append(at)
        series.setdefault(kind_of_region(region), []).append(Dot(at, reached, told))
    if not series:
        return ""
    lines = {}
    if peaks:
        peak, ends = max(peaks), (min(at_all) / 1.5, max(at_all) * 1.5)
        for bandwidth in sorted(
            {float(f"{one:.2g}") for one in (min(bandwidths), max(bandwidths))}
        ):
            places = sorted({*ends, min(max(peak / bandwidth, ends[0]), ends[1])})
            line = [(at, min(peak, at * bandwidth)) for at in places]
            lines[f"roofline at {bandwidth:.0f} GB/s"] = line
    see = (
        "Points near a line cannot get much faster; points far below it can. On the slope memory "
        "limits a region, on the flat part arithmetic. A region may be above the line of the "
        "memory if a cache has its data."
        if lines
        else "Further right is more arithmetic for each byte; nothing was measured, so there is no "
        "roofline."
    )
    axes = (Scale("operations a byte", log=True), Scale("GFLOP/s", log=True))
    return chart_figure(Chart("Roofline", see, series, *axes, lines))


def _memory(document: Document) -> str:
    """The chart of the memory in use during each region, if it is known."""
    used = document.get("memory")
    if not used:
        return ""
    dots = [
        Dot(number, size / 1e6, f"during {label_of(region)}: {size / 1e6:.3g} MB")
        for number, (size, region) in enumerate(zip(used, document["regions"], strict=True))
    ]
    peak = document["regions"][max(range(len(used)), key=lambda number: used[number])]
    see = f"The arena is as large as its peak, which is during {label_of(peak)}."
    axes = (Scale("region, in order"), Scale("MB in use"))
    return chart_figure(Chart("Memory over time", see, {"in use": dots}, *axes, is_line=True))


def _regions(document: Document) -> str:
    """The table of all regions."""
    rows = []
    for region in document["regions"]:
        measured = region.get("seconds")
        rows.append(
            [
                label_of(region),
                region["kind"],
                f"{region['operations'] / 1e6:.2f}",
                f"{region['bytes'] / 1e6:.2f}",
                f"{1e6 * measured:.1f}" if measured is not None else "-",
                f"{1e6 * region['predicted_seconds']:.1f}",
                f"{100 * region['roofline']:.0f}%" if "roofline" in region else "-",
                region.get("description") or " + ".join(region["operators"]),
                region["name"],
            ]
        )
    head = ["region", "kind", "Mop", "MB", "us", "predicted us", "roofline", "computes, by", "name"]
    return table(head, rows, ("computes, by",))


def _reasons(document: Document) -> Iterator[str]:
    """The part about refusals, and the stacks left over."""
    yield lead(
        "A contraction absorbs what is around it; a stack that none absorbed is cut into kernels "
        f"by the strategy {document['strategy']}. Each rewrite is told below."
    )
    yield from map(paragraph, document.get("automatic_precision", ()))
    labels = {region["name"]: label_of(region) for region in document["regions"]}
    notes = [f"{labels.get(name, name)}: {note}" for name, note in document["notes"].items()]
    notes += [
        f"not by {name}: {reason} ({count} region{'s' * (count > 1)})"
        for name, reasons in document.get("refusals", {}).items()
        for reason, count in reasons.items()
    ]
    if not notes:
        yield paragraph("Nothing was refused: all that may be fused is.")
    if any(name.startswith("F(") for name in document.get("refusals", {})):
        yield paragraph(
            "F(2x2, 3x3) and F(4x4, 3x3) are Winograd's algorithms for convolutions, which "
            "multiply less than the direct one."
        )
    yield from map(paragraph, notes)
    if document["stacks"]:
        stacks = [", ".join(stack) for stack in document["stacks"]]
        yield details(f"{len(stacks)} stacks left after absorption", [code("\n".join(stacks))])


def _comparison(document: Document, beside: Document) -> Iterator[str]:
    """The part that compares the report with an earlier one."""
    now = {one["name"]: one for one in document["regions"] if seconds_of(one) > 0}
    then = {one["name"]: one for one in beside["regions"] if seconds_of(one) > 0}
    times = {name: 1e6 * seconds_of(one) for name, one in now.items()}
    before = {name: 1e6 * seconds_of(one) for name, one in then.items()}
    whole, whole_before = sum(times.values()), sum(before.values())
    yield paragraph(
        f"{beside['graph']} on {beside['device']} in {beside['precision']}: "
        f"{whole_before / 1e3:.4g} ms; now {whole / 1e3:.4g} ms, {whole_before / whole:.2f} times "
        f"as fast. Memory between input and output: {beside['arena']['bytes'] / 1e6:.2f} MB, now "
        f"{document['arena']['bytes'] / 1e6:.2f} MB."
    )
    rows = [
        [label_of(now[name]), f"{before[name]:.1f}", f"{times[name]:.1f}", f"{ratio:.2f}"]
        for name in sorted(now.keys() & then.keys(), key=lambda name: times[name] - before[name])
        for ratio in (before[name] / times[name],)
    ]
    for kind, names in (("gone", then.keys() - now.keys()), ("new", now.keys() - then.keys())):
        for name in sorted(names):
            value = f"{(before | times)[name]:.1f}"
            told = [value, "-"] if kind == "gone" else ["-", value]
            rows.append([label_of((then | now)[name]), *told, kind])
    yield table(["region", "before, us", "now, us", "times as fast"], rows)
