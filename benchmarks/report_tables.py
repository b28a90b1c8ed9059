"""Tables of figures that no benchmark prints as Markdown itself, and parts of files."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.cuda_zoo_report import Cell, last_cells, ratio
from benchmarks.figures import markdown
from benchmarks.report import RESULTS, figures
from minidnn.bench.engines import NAMES, OWN
from minidnn.bench.results import failed, interval, to_svg

Record = Mapping[str, Any]


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


# Networks on a CPU


def on(name: str, first: str = "") -> Any:
    """The cases of ``minidnn bench`` on the machine whose name contains this: the last measurement
    of each case beside each set of peers."""

    def select(document: Record) -> list[dict[str, Any]]:
        cases = [
            {**entry, "commit": commit, "machine": machine, "case": case}
            for commit, machines in document["runs"].items()
            for machine, entries in machines.items()
            for case, entry in entries.items()
            if name in machine
        ]
        last = {(case["case"], _peers(case)): case for case in sorted(cases, key=_measured)}
        order = sorted(last.values(), key=_place)
        return [case for case in order if not any(_better(other, case) for other in order)]

    return select


USUAL = (224, 299)


def _place(case: Record) -> tuple[Any, ...]:
    return (_isa(case), case["rows"] not in USUAL, case["batch"], case["network"], _peers(case))


def _measured(case: Record) -> str:
    return str(case["engines"][OWN]["measured"])


def _isa(case: Record) -> str:
    return case["isa"] or ""


def _peers(case: Record) -> tuple[str, ...]:
    return tuple(sorted(set(case["engines"]) - {OWN}))


def _better(other: Record, case: Record) -> bool:
    """Whether the same case was measured later beside the same peers and more."""
    same = other["case"] == case["case"] and set(_peers(other)) > set(_peers(case))
    return same and _measured(other) > _measured(case)


def best(case: Record) -> tuple[float, str]:
    """The least ratio, and whose it is."""
    peers = {n: e for n, e in case["engines"].items() if n != OWN and not failed(e)}
    return min((float(e["ratio"]["value"]), n) for n, e in peers.items())


def networks(cases: Sequence[Record]) -> str:
    names = [n for n in NAMES if n != OWN and any(n in case["engines"] for case in cases)]
    titles = ["network", "batch", "size", "ISA", f"{OWN}, ms", "least ratio", *names, "commit"]
    rows, costs = [], []
    for case in cases:
        size = f"{case['rows']}x{case['columns']}"
        begin = [case["network"], case["batch"], size, _isa(case) or "best"]
        found = {n: e for n, e in case["engines"].items() if not failed(e)}
        ratios = [interval(found[n]["ratio"], 1, 2) if n in found else "" for n in names]
        least = "{:.2f} {}".format(*best(case))
        own = interval(found[OWN]["seconds"], 1e3, 2)
        rows.append([*begin, own, least, *ratios, case["commit"][:7]])
        costs.append([*begin, *(_costs(found.get(n)) for n in (OWN, *names))])
    more = markdown([*titles[:4], OWN, *names], costs)
    note = (
        "Resident memory in MB, seconds from the imported library to the end of the first run, and "
        "the largest deviation from PyTorch by the largest output:"
    )
    return "\n\n".join([means(cases), markdown(titles, rows), note, more])


def means(cases: Sequence[Record]) -> str:
    """Geometric means of the least ratios, of the usual image sizes by batch."""
    groups: dict[tuple[str, Any], list[float]] = {}
    for case in cases:
        if case["rows"] in USUAL:
            groups.setdefault((_isa(case) or "best", case["batch"]), []).append(best(case)[0])
    rows = [
        [isa, batch, len(found), f"{geometric_mean(found):.2f}", f"{min(found):.2f}"]
        for (isa, batch), found in groups.items()
    ]
    return markdown(["ISA", "batch", "cells", "geometric mean", "least"], rows)


def _costs(engine: Record | None) -> str:
    if engine is None:
        return ""
    memory, seconds = engine["memory_bytes"] / 1e6, engine["compile_seconds"]
    return f"{memory:.0f} MB, {seconds:.2f} s, {engine['deviation']:.0e}"


def networks_plot(cases: Sequence[Record]) -> str:
    shown = [
        (f"{case['network']}, batch {case['batch']}", case["engines"])
        for case in cases
        if case["rows"] in USUAL and not _isa(case)
    ]
    return to_svg(shown, "Networks beside other engines, float32, 2 threads")


# Networks on a GPU


def cells_plot(cells: Sequence[Cell]) -> str:
    """The ratios of one stage, beside each of PyTorch's modes."""
    shown = []
    for cell in sorted(last_cells(cells), key=lambda c: str(c["network"])):
        if (cell["precision"], cell["batch"]) == ("float16", 128):
            own = cell["ms"][OWN]
            ratios = {
                n: dict.fromkeys(("value", "low", "high"), ms / own)
                for n, ms in cell["ms"].items()
                if n != OWN
            }
            shown.append((cell["network"], {n: {"ratio": r} for n, r in ratios.items()}))
    return to_svg(shown, "Networks beside PyTorch, NVIDIA H200, float16, batch 128")


def beside(cells: Sequence[Cell]) -> str:
    """Cells with two engines or three, as they are."""
    engines = list(dict.fromkeys(engine for cell in cells for engine in cell["ms"]))
    titles = ["network", "precision", "batch", *(f"{e}, ms" for e in engines), "ratio", "commit"]
    rows = [
        [
            *(cell["network"], cell["precision"], cell["batch"]),
            *(f"{cell['ms'][e]:.3f}" if e in cell["ms"] else "" for e in engines),
            *(f"{ratio(cell):.2f}", cell["commit"][:7]),
        ]
        for cell in sorted(cells, key=lambda c: (c["batch"], c["network"]))
    ]
    return markdown(titles, rows)


def overview(_: Any = None) -> str:
    """Geometric means of each peer's ratios, on a CPU and on a GPU."""
    found: dict[str, dict[str, list[float]]] = {}
    for case in on("AMD EPYC (26/")(figures("cpu_networks.json")):
        if case["rows"] in USUAL and not _isa(case):
            peers = found.setdefault(f"CPU, Zen 5, float32, batch {case['batch']}", {})
            for name in _peers(case):
                peers.setdefault(name, []).append(case["engines"][name]["ratio"]["value"])
    for cell in last_cells(figures("cuda_zoo_h200.jsonl")):
        if cell["precision"] == "float16":
            peers = found.setdefault(f"GPU, H200, float16, batch {cell['batch']}", {})
            for name, ms in cell["ms"].items():
                if name != OWN:
                    peers.setdefault(name, []).append(ms / cell["ms"][OWN])
    shown = {
        case: {
            name: {"ratio": dict.fromkeys(("value", "low", "high"), geometric_mean(ratios))}
            for name, ratios in peers.items()
        }
        for case, peers in found.items()
    }
    order = sorted(shown.items(), key=lambda one: (one[0][:3], int(one[0].split()[-1])))
    return to_svg(order, "The zoo beside other engines, geometric means")


# One layer, one kernel


def depthwise(rows: Sequence[Record]) -> str:
    titles = ["channels", "window", "stride", "map", "precision", "batch"]
    titles += ["ours, µs", "the strip", "cuDNN, µs", "floor, µs"]
    found = []
    for row in rows:
        own = {name: ms for name, ms in row["ms"].items() if not name.startswith("cuDNN")}
        theirs = [ms for name, ms in row["ms"].items() if name.startswith("cuDNN")]
        fastest = min(own, key=lambda name: float(own[name]))
        cells = [row["channels"], f"{row['kernel']}x{row['kernel']}", row["stride"]]
        cells += [f"{row['size']}x{row['size']}", row["precision"], row["batch"]]
        cells += [f"{1e3 * own[fastest]:.1f}", fastest.removeprefix("depthwise ")]
        cells += [f"{1e3 * min(theirs):.1f}" if theirs else "", f"{1e3 * row['floor']:.1f}"]
        found.append(cells)
    return markdown(titles, found)


def moves(document: Record) -> str:
    rows = [
        [*name.split(", "), f"{1e3 * one['ms']:.1f}", f"{1e3 * one['copy ms']:.1f}",
         f"{one['share']:.2f}", one["registers"]]
        for name, one in document.items() if isinstance(one, Mapping)
    ]  # fmt: skip
    titles = ["value", "precision", "to", "µs", "copy, µs", "share of the copy", "registers"]
    return markdown(titles, rows)


def convolutions(document: Record) -> str:
    titles = ["layer", "algorithm", "ISA", "batch", "ms", "share of the peak", "bound"]
    rows = [
        [row["layer"], row["algorithm"], row["isa"], row["batch"], f"{row['milliseconds']:.3f}",
         f"{row['share']:.2f} [{row['share_interval'][0]:.2f}, {row['share_interval'][1]:.2f}]",
         row["bound"]]
        for row in document["rows"]
    ]  # fmt: skip
    return markdown(titles, rows)


# What compiling and calling cost


def only(document: Record, part: str) -> dict[str, Any]:
    """One part of the costs, without commits that its table does not show."""
    found = document[part]
    shown = {CALL: found[CALL]} if part == "host" else found
    return {"machine": document["machine"], part: shown}


def seconds_of(part: str) -> Any:
    """A table of one part of a file that has seconds by case, and by engine where there are
    several."""

    def table(document: Record) -> str:
        records = document[part]
        names = list(next(iter(records.values())).get("engines", ["seconds"]))
        rows = []
        for case, record in records.items():
            found = record.get("engines", {"seconds": record})
            times = [interval(found[name]["seconds"], 1, 2) for name in names]
            rows.append([case, *times, record.get("commit", "")[:7]])
        return markdown(["case", *names, "commit"], rows)

    return table


def cuda_compile(document: Record) -> str:
    rows = []
    for name, one in document["compile"].items():
        if name.endswith("before"):
            continue
        warm = [f"{seconds:.2f}" for seconds in one["warm seconds"]]
        cold = f"{one['cold']['seconds']:.1f}"
        parts = {k: v for k, v in one["cold"].get("parts", {}).items() if k not in WHOLE}
        slow = sorted(parts, key=lambda part: -float(parts[part]))[:3]
        what = ", ".join(f"{part} {parts[part]:.1f}" for part in slow)
        rows.append([name, one["cores"], cold, ", ".join(warm), what, one["commit"][:7]])
    titles = ["case", "cores", "empty cache, s", "full cache, s", "longest parts, s", "commit"]
    return markdown(titles, rows)


WHOLE = ("program", "preparing", "choosing")
"""Parts that consist of others."""


def cuda_memory(document: Record) -> str:
    rows = [
        [name, *(f"{one[engine]['most MB']:.0f}" for engine in MEMORY), one["commit"][:7]]
        for name, one in document["memory"].items()
        if "commit" in one
    ]
    return markdown(["case", *(f"{engine}, MB" for engine in MEMORY), "commit"], rows)


MEMORY = ("minidnn", "minidnn, compiling", "eager", "eager-last")


CALL = "resnet50 float16 1, a405610"


def cuda_host(document: Record) -> str:
    one = document["host"][CALL]
    rows = [[name, f"{value:.1f}"] for name, value in one["microseconds"].items()]
    return markdown(["what", "µs"], rows)


def overhead(document: Record) -> str:
    rows = [
        [f"`{name}`", *(f"{one[key]:.1f}" for key in ("bare_us", "call_us", "overhead_us"))]
        for name, one in document["rows"].items()
    ]
    return markdown(["function", "bare call, µs", "call, µs", "difference, µs"], rows)


# Beside the paper


def paper(name: str) -> list[dict[str, str]]:
    with (RESULTS / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def known(network: str) -> str:
    """The zoo's name of a network of the paper's."""
    plain = network.lower().replace("squeezenet 1.", "squeezenet1_").replace(" bn", "_bn")
    return plain.replace("inception v3", "inception_v3").replace("-", "")


def paper_one(calls: Sequence[Cell]) -> str:
    """Table 1: what the paper gains on a GPU, and what we do beside eager calls."""
    ours = {(c["network"], c["batch"]): 100 * ((ratio(c) or 0) - 1) for c in calls}
    batches = (1, 4, 16, 64, 256)
    titles = ["network"]
    titles += [f"{who}, batch {b}" for b in batches for who in ("paper", "ours")]
    rows = []
    for row in paper("brainslug_table1.csv"):
        network, cells = known(row["network"]), []
        for batch in batches:
            found = ours.get((network, batch))
            cells += [row[f"gpu_{batch}"], "" if found is None else f"{found:.0f}"]
        rows.append([network, *cells])
    return markdown(titles, rows)


def paper_one_cpu(document: Record) -> str:
    """Table 1 on a CPU, beside what fusion gains over our own layers."""
    ours = {
        (row["network"], row["batch"]): 100 * (row["ratio"]["layers"]["value"] - 1)
        for row in document["rows"]
    }
    titles = ["network", "paper, batch 1", "ours, batch 1", "paper, batch 16", "ours, batch 16"]
    rows = []
    for row in paper("brainslug_table1.csv"):
        network, cells = known(row["network"]), []
        for batch in (1, 16):
            found = ours.get((network, batch))
            cells += [row[f"cpu_{batch}"], "" if found is None else f"{found:.1f}"]
        rows.append([network, *cells])
    return markdown(titles, rows)


def paper_two(cells: Sequence[Cell]) -> str:
    """Table 2 on a GPU: the optimizable layers, and the whole network."""
    from minidnn.models import _stacks as stacks

    found = {c["network"]: c for c in cells if (c["precision"], c["batch"]) == ("float32", 128)}
    titles = ["network", "layers", "optimizable", "stacks", "our layers", "optimizable", "chains"]
    titles += ["stacks left", "paper: gain of optimizable", "share of time", "time saved"]
    titles += ["ours: gain of optimizable", "share of time", "time saved"]
    rows = []
    for row in paper("brainslug_table2.csv"):
        network = known(row["network"])
        count, cell = stacks.count(network), found[network]
        before, after = (cell["regions"][engine] for engine in (f"{OWN}-layers", OWN))
        share = before["other_ms"] / (before["other_ms"] + before["contracting_ms"])
        rows.append(
            [
                *(network, row["layers"], row["optimizable"], row["stacks"]),
                *(count.layers, count.optimizable, count.chains, count.stacks_left),
                *(row["opt_speedup_gpu"], row["share_of_time_gpu"], row["total_speedup_gpu"]),
                f"{100 * (before['other_ms'] / after['other_ms'] - 1):.0f}",
                *(
                    f"{100 * share:.1f}",
                    f"{100 * (1 - cell['ms'][OWN] / cell['ms'][f'{OWN}-layers']):.1f}",
                ),
            ]
        )
    return markdown(titles, rows)


def paper_two_cpu(document: Record) -> str:
    """Table 2 on a CPU, for networks of which each kernel was timed."""
    theirs = {known(row["network"]): row for row in paper("brainslug_table2.csv")}
    titles = ["network", "batch", "paper: gain of optimizable", "share of time", "time saved"]
    titles += ["ours: gain of optimizable", "share of time", "time saved"]
    rows = []
    for record in document["fusion bound"].values():
        row = theirs[record["network"]]
        whole, alone, fused, left = (float(t["value"]) for t in record["seconds"].values())
        rows.append(
            [
                *(record["network"], record["batch"]),
                *(row["opt_speedup_cpu"], row["share_of_time_cpu"], row["total_speedup_cpu"]),
                f"{100 * ((whole - alone) / (fused - left) - 1):.0f}",
                *(f"{100 * (1 - alone / whole):.1f}", f"{100 * (1 - fused / whole):.1f}"),
            ]
        )
    return markdown(titles, rows)


def with_families(table: Callable[[Any], str], *columns: int) -> Callable[[Any], str]:
    """The table, and what columns of it range over in each family of networks."""

    def both(figures: Any) -> str:
        text = table(figures)
        head, _, *rows = (
            [cell.strip() for cell in line.split("|")[1:-1]] for line in text.split("\n")
        )
        names = ["family", *(head[column] for column in columns)]
        found = []
        for family, name in FAMILIES.items():
            some = [row for row in rows if row[0].startswith(family)]
            spans = (sorted(float(row[column]) for row in some) for column in columns)
            found.append([name, *(_span(values[0], values[-1]) for values in spans)])
        return f"{text}\n\n{markdown(names, found)}"

    return both


FAMILIES = {
    "alexnet": "AlexNet",
    "vgg": "VGG",
    "resnet": "ResNet",
    "squeezenet": "SqueezeNet",
    "densenet": "DenseNet",
    "inception": "Inception v3",
}


def _span(least: float, most: float) -> str:
    return f"{least:.1f}" if least == most else f"{least:.1f} to {most:.1f}"


def reasons() -> dict[str, str]:
    found: dict[str, str] = figures("cuda_regions_why.json")
    return found
