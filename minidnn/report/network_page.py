"""A compiled network as one HTML page: regions in time, roofline, fusion, memory, comparison."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from ..pages.charts import Bar, Dot, Scale, bars, color, figure, points
from ..pages.page import code, details, page, paragraph, table

Document = Mapping[str, Any]


def network_page(document: Document, beside: Document | None = None) -> str:
    """The page of what ``minidnn report --json`` prints; ``beside``: another one, measured before,
    whose regions are compared by their names."""
    title = f"{document['graph']} on {document['device']} in {document['precision']}"
    return page(title, _parts(document, beside))


def seconds_of(region: Mapping[str, Any]) -> float:
    """Measured, or predicted where nothing was."""
    return float(region.get("seconds", region["predicted_seconds"]))


def _parts(document: Document, beside: Document | None) -> Iterator[str]:
    regions = [region for region in document["regions"] if seconds_of(region) > 0]
    total = sum(map(seconds_of, regions))
    kind = "measured" if any("seconds" in region for region in regions) else "predicted"
    arena = document["arena"]
    yield paragraph(
        f"{len(regions)} kernels, {1e3 * total:.4g} ms {kind}; {arena['bytes'] / 1e6:.2f} MB "
        f"between input and output, of which {arena['lower_bound'] / 1e6:.2f} MB are in use at "
        f"once. Choices were priced for {document['priced_for']}."
    )
    yield "<h2>Regions in time</h2>"
    yield _strip(regions, total)
    longest = sorted(regions, key=seconds_of, reverse=True)[:20]
    told = [
        Bar(one["name"], 1e6 * seconds_of(one), f"{1e6 * seconds_of(one):,.1f} us, {one['kind']}")
        for one in longest
    ]
    yield paragraph("Those that take longest:", "soft")
    yield bars(told)
    if beside is not None:
        yield "<h2>Beside the other report</h2>"
        yield from _comparison(document, beside)
    yield "<h2>Roofline and memory</h2>"
    drawn = [one for one in (_roofline(regions), _memory(document)) if one]
    yield '<div class="charts">' + "\n".join(drawn) + "</div>"
    yield "<h2>What was fused</h2>"
    yield _regions(document)
    yield "<h2>Why not more</h2>"
    yield from _reasons(document)
    rewrites = [
        f"#{one['number']} {one['pass']}: {one['description']}" for one in document["rewrites"]
    ]
    yield details(f"{len(rewrites)} rewrites", [code("\n".join(rewrites))])


def _strip(regions: list[Any], total: float) -> str:
    """All regions one after the other, each as wide as it takes."""
    kinds = list(dict.fromkeys(region["kind"] for region in regions))
    shades = {kind: color(number, len(kinds)) for number, kind in enumerate(kinds)}
    text, at = ['<svg viewBox="0 0 1000 60" role="img" aria-label="regions in time">'], 0.0
    for region in regions:
        width = 1000 * seconds_of(region) / total
        told = f"{region['name']}, {region['kind']}: {1e6 * seconds_of(region):.1f} us"
        text.append(
            f'<rect x="{at:.2f}" y="0" width="{max(0.3, width - 0.4):.2f}" height="40" '
            f'fill="{shades[region["kind"]]}"><title>{escape(told)}</title></rect>'
        )
        at += width
    for number, kind in enumerate(kinds):
        x = 4 + 150 * number
        text.append(f'<circle cx="{x}" cy="52" r="4" fill="{shades[kind]}"/>')
        text.append(f'<text x="{x + 8}" y="56">{escape(kind)}</text>')
    return "\n".join([*text, "</svg>"])


def _roofline(regions: list[Any]) -> str:
    """What regions reach, and what the machine's rates would allow them."""
    series: dict[str, list[Dot]] = {}
    for region in regions:
        if not region["operations"] or not region["bytes"]:
            continue
        at, seconds = region["operations"] / region["bytes"], seconds_of(region)
        reached = region["operations"] / seconds / 1e9
        told = f"{region['name']}: {reached:.4g} GFLOP/s"
        series.setdefault(region["kind"], []).append(Dot(at, reached, told))
        if share := region.get("roofline"):
            allowed = Dot(at, reached / share, f"{region['name']}: {100 * share:.0f} % reached")
            series.setdefault("roofline", []).append(allowed)
    if not series:
        return ""
    axes = (Scale("FLOP a byte", log=True), Scale("GFLOP/s", log=True))
    return figure("Roofline", points(series, *axes))


def _memory(document: Document) -> str:
    used = document.get("memory")
    if not used:
        return ""
    dots = [Dot(at, size / 1e6, f"{at}") for at, size in enumerate(used)]
    axes = (Scale("node"), Scale("MB in use between input and output"))
    return figure("Memory over time", points({"in use": dots}, *axes, joined=True))


def _regions(document: Document) -> str:
    rows = []
    for region in document["regions"]:
        measured = region.get("seconds")
        rows.append(
            [
                region["name"],
                region["kind"],
                f"{region['operations'] / 1e6:.2f}",
                f"{region['bytes'] / 1e6:.2f}",
                f"{1e6 * measured:.1f}" if measured is not None else "-",
                f"{1e6 * region['predicted_seconds']:.1f}",
                f"{100 * region['roofline']:.0f}%" if "roofline" in region else "-",
                region.get("description") or " + ".join(region["operators"]),
            ]
        )
    head = ["region", "kind", "Mop", "MB", "us", "predicted us", "roofline", "computes, by"]
    return table(head, rows, ("computes, by",))


def _reasons(document: Document) -> Iterator[str]:
    notes = [f"{name}: {note}" for name, note in document["notes"].items()]
    notes += [
        f"not by {name}: {reason} ({count} regions)"
        for name, reasons in document.get("refusals", {}).items()
        for reason, count in reasons.items()
    ]
    if not notes:
        yield paragraph("Nothing was refused: all that may be fused is.")
    yield from map(paragraph, notes)
    if document["stacks"]:
        stacks = [", ".join(stack) for stack in document["stacks"]]
        yield details(f"{len(stacks)} stacks left after absorption", [code("\n".join(stacks))])


def _comparison(document: Document, beside: Document) -> Iterator[str]:
    now = {one["name"]: seconds_of(one) for one in document["regions"] if seconds_of(one) > 0}
    then = {one["name"]: seconds_of(one) for one in beside["regions"] if seconds_of(one) > 0}
    whole, before = sum(now.values()), sum(then.values())
    yield paragraph(
        f"{beside['graph']} on {beside['device']} in {beside['precision']}: {1e3 * before:.4g} ms; "
        f"now {1e3 * whole:.4g} ms, {before / whole:.2f} times as fast. Memory between input and "
        f"output: {beside['arena']['bytes'] / 1e6:.2f} MB, now "
        f"{document['arena']['bytes'] / 1e6:.2f} MB."
    )
    rows = [
        [name, f"{1e6 * then[name]:.1f}", f"{1e6 * now[name]:.1f}", f"{then[name] / now[name]:.2f}"]
        for name in sorted(now.keys() & then.keys(), key=lambda name: now[name] - then[name])
    ]
    for kind, names in (("gone", then.keys() - now.keys()), ("new", now.keys() - then.keys())):
        for name in sorted(names):
            value = f"{1e6 * (then | now)[name]:.1f}"
            told = [value, "-"] if kind == "gone" else ["-", value]
            rows.append([name, *told, kind])
    yield table(["region", "before, us", "now, us", "times as fast"], rows)
