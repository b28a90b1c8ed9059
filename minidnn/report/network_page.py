"""A compiled network as one HTML page: regions in time, roofline, fusion, memory, comparison."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..pages.charts import Bar, Chart, Dot, Scale, bars, chart_figure, figure, strip
from ..pages.page import code, details, guide, heading, lead, page, paragraph, table
from .advice import (
    CAUSES,
    advice,
    by_cause,
    by_kind,
    by_layer,
    kind_of_region,
    label_of,
    seconds_of,
)

Document = Mapping[str, Any]
_LONGEST = 15
_GROUPS = 8


def network_page(document: Document, beside: Document | None = None) -> str:
    """The page of what ``minidnn report --json`` prints; ``beside``: another one, measured before,
    whose regions are compared by their names."""
    title = f"{document['network']} on {document['device']} in {document['precision']}"
    return page(title, _parts(document, beside))


def _parts(document: Document, beside: Document | None) -> Iterator[str]:
    regions = [region for region in document["regions"] if seconds_of(region) > 0]
    total = sum(map(seconds_of, regions))
    kind = "measured" if any("seconds" in region for region in regions) else "predicted"
    yield guide("How to read this page", _reading(document, regions, total, kind))
    # Reasons say "kernel" of a window of weights, too, which the glossary does not mean.
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
    """A bar for each of the largest, and one for all others."""
    items = list(found.items())
    if len(items) > _GROUPS:
        rest = sum(seconds for _, seconds in items[_GROUPS - 1 :])
        items = [*items[: _GROUPS - 1], (f"{len(items) - _GROUPS + 1} others", rest)]
    return [
        Bar(name, seconds, f"{100 * seconds / total:.0f} %, {1e3 * seconds:.3g} ms")
        for name, seconds in items
    ]


def _roofline(regions: Sequence[Any]) -> str:
    """What regions reach, and what the machine's rates would allow them."""
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
    return chart_figure(Chart("Memory over time", see, {"in use": dots}, *axes, joined=True))


def _regions(document: Document) -> str:
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
