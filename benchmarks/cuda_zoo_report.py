"""Tables of what ``cuda_zoo.py`` measured: every cell, what failed, what is missing.

    python -m benchmarks.cuda_zoo_report results.jsonl [--commit COMMIT]
    python -m benchmarks.cuda_zoo_report fusion.jsonl --fusion

A row's ratio is the time of the fastest peer by minidnn's, its errors the largest deviations from
PyTorch's float32, by the largest value.  The last cell of a name counts, of the
commit asked for, else of any.

``--fusion`` is about cells with the engines minidnn-layers and minidnn-contractions: the gain of
the whole network (t0 / t1 - 1, and the share of time saved), and of its optimisable layers, that
is, of all regions without a convolution or linear layer (with ``--regions``; kernels one by one,
so their sum is more than the whole).  What contractions take over leaves these regions; what it
costs there is seen beside them.

``--regions 10`` shows the slowest regions of each cell, as far as they are kept, beside their
floors, by bytes at the rate of copies and by operations at that of large products.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cuda_zoo import read, shown
from benchmarks.figures import markdown
from minidnn.bench.engines import OWN

Cell = dict[str, Any]
FAMILIES = ("alexnet", "vgg", "resnet", "squeezenet", "densenet", "inception")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--commit")
    parser.add_argument("--fusion", action="store_true")
    parser.add_argument("--regions", type=int, default=0, help="so many slowest of each cell")
    options = parser.parse_args()
    cells = [cell for path in options.results for cell in read(path)]
    found = [cell for cell in cells if options.commit in (None, cell["commit"])]
    if options.regions:
        print(slowest(found, options.regions))
    else:
        print(fusion(found) if options.fusion else report(found))


def report(cells: Iterable[Cell]) -> str:
    """Markdown: a summary of stages, then a row for each cell."""
    last = last_cells(cells)
    stages: dict[tuple[str, int], list[Cell]] = {}
    for cell in last:
        stages.setdefault((cell["precision"], cell["batch"]), []).append(cell)
    every = [cell for found in stages.values() for cell in found]
    whole = [[*stage, *summary(found)] for stage, found in stages.items()]
    of_families = [
        [family, *stage, *summary(some)]
        for family in FAMILIES
        for stage, found in stages.items()
        if (some := [cell for cell in found if str(cell["network"]).startswith(family)])
    ]
    engines = list(dict.fromkeys(e for c in every for e in c["ms"]))
    titles = ["network", "precision", "batch", *engines, "ratio", "error", "peers' error", "commit"]
    rows = []
    for found in stages.values():
        for cell in sorted(found, key=lambda c: str(c["network"])):
            times = [_ms(cell, engine) for engine in engines]
            names = [cell["network"], cell["precision"], cell["batch"]]
            rows.append([*names, *times, _ratio_text(cell), *_errors(cell), cell["commit"][:7]])
    stage = ["precision", "batch", "cells", "geometric mean", "least", "under 1", "failed"]
    tables = [
        markdown(stage, [*whole, ["all", "", *summary(every)]]),
        markdown(["family", *stage], of_families),
        markdown(titles, rows),
    ]
    return "\n\n".join(tables)


def last_cells(cells: Iterable[Cell]) -> list[Cell]:
    """The last measurement of each cell."""
    return list({(c["precision"], c["batch"], c["network"]): c for c in cells}.values())


def ratio(cell: Cell) -> float | None:
    """How many times as long the fastest peer takes; None where either is missing."""
    peers = [ms for engine, ms in cell["ms"].items() if not engine.startswith(OWN)]
    return min(peers) / cell["ms"][OWN] if OWN in cell["ms"] and peers else None


def summary(cells: Sequence[Cell]) -> list[object]:
    """Columns about some cells: how many, geometric mean, least, those under 1, what failed."""
    found = [(r, str(c["network"])) for c in cells if (r := ratio(c)) is not None]
    if not found:
        return [len(cells), "-", "-", "-", _failures(cells)]
    mean = math.exp(sum(math.log(r) for r, _ in found) / len(found))
    least, name = min(found)
    under = sum(r < 1 for r, _ in found)
    return [len(cells), f"{mean:.2f}", f"{least:.2f} ({name})", under, _failures(cells)]


def _failures(cells: Sequence[Cell]) -> str:
    failed = [f"{c['network']}: {engine}" for c in cells for engine in c["failed"]]
    return ", ".join(failed) or "none"


def _ms(cell: Cell, engine: str) -> str:
    if engine in cell["failed"]:
        return "failed"
    return f"{cell['ms'][engine]:.3f}" if engine in cell["ms"] else "-"


def _ratio_text(cell: Cell) -> str:
    found = ratio(cell)
    return "-" if found is None else f"{found:.2f}"


def _errors(cell: Cell) -> tuple[str, str]:
    """minidnn's largest deviation from float32 and the largest of the peers', of cells that say
    it."""
    errors = cell["errors"]
    peers = [error for engine, error in errors.items() if not engine.startswith(OWN)]
    own = shown(errors[OWN]) if OWN in errors else "-"
    worst = None if None in peers else max(peers, default=0.0)
    return own, shown(worst) if peers else "-"


def fusion(cells: Iterable[Cell]) -> str:
    """Markdown: what fusion alone gains, a row for each cell."""
    before, between = f"{OWN}-layers", f"{OWN}-contractions"
    titles = ["network", "precision", "batch", "layers, ms", "contractions, ms", "depth-first, ms"]
    titles += ["total gain", "time saved", "gain over contractions"]
    titles += ["optimisable before, ms", "after, ms", "gain", "contracting before, ms", "after, ms"]
    rows = []
    for cell in last_cells(cells):
        ms = cell["ms"]
        names = [cell["network"], cell["precision"], cell["batch"]]
        if not {before, between, OWN} <= set(ms):
            rows.append([*names, _failures([cell]), *[""] * (len(titles) - 4)])
            continue
        whole, apart, own = ms[before], ms[between], ms[OWN]
        texts = [f"{whole:.3f}", f"{apart:.3f}", f"{own:.3f}", f"{whole / own - 1:.1%}"]
        texts += [f"{1 - own / whole:.1%}", f"{apart / own - 1:.1%}"]
        if {before, OWN} <= set(cell.get("regions", {})):
            (first, first_rest), (last, last_rest) = (_parts(cell, e) for e in (before, OWN))
            gain = f"{first / last - 1:.0%}" if last else "all"
            texts += [f"{first:.3f}", f"{last:.3f}", gain, f"{first_rest:.3f}", f"{last_rest:.3f}"]
        else:
            texts += ["-"] * 5
        rows.append([*names, *texts])
    return markdown(titles, rows)


def _parts(cell: Cell, engine: str) -> tuple[float, float]:
    """Milliseconds of regions without a convolution or linear layer, and of the others."""
    regions = cell["regions"][engine]
    return regions["other_ms"], regions["contracting_ms"]


def slowest(cells: Iterable[Cell], most: int, reasons: Mapping[str, str] | None = None) -> str:
    """Markdown: the slowest regions of each cell, beside their floors, and the reason for those in
    whose description a key of ``reasons`` stands."""
    lines: list[str] = []
    for cell in cells:
        if (regions := cell.get("regions", {}).get(OWN)) is None:
            continue
        whole = 1e3 * (regions["contracting_ms"] + regions["other_ms"])
        title = f"{cell['network']}, {cell['precision']}, batch {cell['batch']}: "
        title += f"{regions['count']} regions, {whole:.0f} us one by one"
        titles = ["region", "output", "us", "share", "by bytes", "by operations", "reached", "how"]
        titles += ["why"] if reasons else []
        rows = []
        for region in regions["slowest"][:most]:
            floors = (region["bytes_us"], region["operations_us"])
            texts = [region["name"], "x".join(map(str, region["shape"])), f"{region['us']:.1f}"]
            texts += [f"{region['us'] / whole:.1%}", *(f"{floor:.1f}" for floor in floors)]
            texts += [f"{max(floors) / region['us']:.0%}", region["what"].replace("|", "/")]
            if reasons:
                found = (why for what, why in reasons.items() if what in region["what"])
                texts.append(next(found, ""))
            rows.append(texts)
        lines += [title, "", markdown(titles, rows), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
