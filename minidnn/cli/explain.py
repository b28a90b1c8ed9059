"""``minidnn explain``: shows how a network is fused, and the predicted cost of its regions."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from minidnn.cli.arguments import (
    add_device,
    add_network,
    add_strategy,
    add_tune,
    count_from_0,
    precision_of,
    tune_of,
)
from minidnn.errors import MiniDNNError

if TYPE_CHECKING:
    from minidnn.executable import Executable
    from minidnn.graph.ir import Graph, Node
    from minidnn.passes.infrastructure import Pass
    from minidnn.report.explain import Profile
    from minidnn.runtime.plan import Plan

HELP = "show how a network is fused, and what that should cost"
DESCRIPTION = """\
Compiles a network and prints its regions (what each kernel computes), the stacks that were found,
and every rewrite that the passes made. Times are predictions of the cost model, or with --measure
those of this machine, on random inputs."""
_SHOWN = 4
"""Parts of a label that are shown; the others are only counted."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_network(parser)
    add_device(parser, chooses=True)
    add_strategy(parser)
    add_tune(parser)
    parser.add_argument("--fuel", type=count_from_0, help="rewrites that passes may make (all)")
    parser.add_argument(
        "--passes", action="store_true", help="print the graph before and after each pass"
    )
    parser.add_argument(
        "--svg",
        metavar="FILE",
        help="draw the fused graph, for a browser; with --measure, coloured by time",
    )
    parser.add_argument(
        "--measure", action="store_true", help="time every region, beside the machine's roofline"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    import minidnn
    from minidnn.cli.networks import graph_of
    from minidnn.report.explain import explain

    graph = graph_of(options)
    trail = Trail()
    executable = minidnn.compile(
        graph,
        device=options.device,
        **precision_of(options),
        strategy=options.strategy,
        fuel=options.fuel,
        observe=trail.observe,
        **tune_of(options),
    )
    profile = executable.profile(*executable.random_inputs()) if options.measure else None
    if options.svg is not None:
        _draw(executable.graph, options.svg, profile)
    if options.json:
        document = document_of(executable, trail, options.passes)
        if profile is not None:
            add_times(document, profile)
        print(json.dumps(document, indent=1, allow_nan=False))
        return 0
    if options.passes:
        print(_passes(trail))
        print(_annotations(executable.plan))
    measured = None if profile is None else str(profile)
    chosen = executable.automatic_precision
    print(explain(executable.plan, executable.device, executable.precision, measured, chosen))
    print()
    print(_stacks(trail.stacks))
    rewrites = executable.plan.rewrites
    print(f"\n{len(rewrites)} rewrites")
    for rewrite in rewrites:
        print(f"  {rewrite}")
    return 0


def _draw(graph: Graph, path: str, profile: Profile | None) -> None:
    from minidnn.graph.picture import to_svg

    regions = () if profile is None else profile.regions
    text = to_svg(graph, times={region.name: region.seconds for region in regions})
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise MiniDNNError(f"--svg {path} cannot be written: {error.strerror}") from error


def _passes(trail: Trail) -> str:
    """The graph before the first pass and after each pass."""
    parts = []
    for i, (name, before, after) in enumerate(trail.steps):
        if i == 0:
            parts.append(f"== before {name} ==\n{before}\n")
        text = "(the same graph)" if str(before) == str(after) else after
        parts.append(f"== after {name} ==\n{text}\n")
    return "\n".join(parts)


def _annotations(plan: Plan) -> str:
    """The layouts and the views of the values of the last graph, and its batch tiling."""
    annotations = plan.annotations
    lines = ["== annotations =="]
    lines += [f"layout %{value.name}: {layout}" for value, layout in annotations.layouts.items()]
    lines += [
        f"place %{value.name} in %{view.buffer.name} from channel {view.channel}"
        for value, view in annotations.placements.items()
    ]
    for group in annotations.groups:
        lines.append(f"image after image: {', '.join(node.name for node in group)}")
    return "\n".join(lines) + "\n"


def _stacks(stacks: list[list[Node]]) -> str:
    lines = [f"{len(stacks)} stack{'s' * (len(stacks) != 1)} left after absorption"]
    for number, nodes in enumerate(stacks, 1):
        names = ", ".join(f"{node.name} ({node.op.name})" for node in nodes)
        lines.append(f"  {number}. {names}")
    return "\n".join(lines)


@dataclass
class Trail:
    """A record of the passes, written while they run.

    Attributes:
        steps: name of each pass, and the graphs before and after it.
        stacks: the stacks that absorption left.
    """

    steps: list[tuple[str, Graph, Graph]] = field(default_factory=list)
    stacks: list[list[Node]] = field(default_factory=list)

    def observe(self, step: Pass, before: Graph, after: Graph) -> None:
        from minidnn.fusion.stacks import find_stacks

        self.steps.append((step.name, before, after))
        if step.name == "depth_first":
            self.stacks = find_stacks(before)


def document_of(executable: Executable, trail: Trail, passes: bool) -> dict[str, Any]:
    """The JSON document: regions, memory, stacks, rewrites and notes; with ``passes`` all
    graphs."""
    from minidnn.memory import lifetimes
    from minidnn.report.explain import kind_of, predicted_seconds, weight_bytes, work

    plan = executable.plan
    annotations = plan.annotations
    regions = []
    for node, label in zip(plan.graph.nodes, labels(plan.graph.nodes), strict=True):
        kind = kind_of(plan, node)
        free = kind in ("view", "in place")
        operations, moved = (0, 0) if free else work(node)
        body = getattr(node.op, "body", None)
        regions.append(
            {
                "name": node.name,
                "label": label,
                "kind": kind,
                "outputs": [str(value.type) for value in node.outputs],
                "layers": node.source.split(", "),
                "operators": [n.op.name for n in (body.nodes if body is not None else (node,))],
                "operations": operations,
                "bytes": moved,
                "weight_bytes": 0 if free else weight_bytes(node),
                "predicted_seconds": 0.0 if free else predicted_seconds(plan, node),
            }
        )
    storage = lifetimes(plan.graph, annotations)
    document = {
        "graph": plan.graph.name,
        "inputs": [str(value.type) for value in plan.graph.inputs],
        "device": executable.device,
        "precision": executable.precision,
        "priced_for": plan.target.device.name,
        "regions": regions,
        "arena": {"bytes": plan.arena.bytes, "lower_bound": plan.arena.lower_bound},
        "memory": [
            sum(one.bytes for one in storage if one.first <= at <= one.last)
            for at in range(len(plan.graph.nodes))
        ],
        "batch_tiling": [[node.name for node in group] for group in annotations.groups],
        "notes": plan.notes,
        "stacks": [[node.name for node in nodes] for nodes in trail.stacks],
        "rewrites": [
            {"number": r.number, "pass": r.pass_name, "description": r.description}
            for r in plan.rewrites
        ],
    }
    if executable.automatic_precision is not None:
        document["automatic_precision"] = str(executable.automatic_precision).splitlines()
    if passes:
        document["passes"] = [
            {"name": name, "before": str(before), "after": str(after)}
            for name, before, after in trail.steps
        ]
        document["layouts"] = {
            value.name: str(layout) for value, layout in annotations.layouts.items()
        }
        document["placements"] = {
            value.name: {"buffer": view.buffer.name, "channel": view.channel}
            for value, view in annotations.placements.items()
        }
    return document


def add_times(document: dict[str, Any], profile: Profile) -> None:
    """Adds measured times to each region that has a kernel."""
    times = {region.name: region for region in profile.regions}
    descriptions = dict(zip(times, profile.descriptions, strict=True))
    for region in document["regions"]:
        if region["name"] in times:
            measured = times[region["name"]]
            region["seconds"] = measured.seconds
            region["roofline"] = measured.roofline
            region["executed"] = measured.executed
            region["arithmetic_seconds"] = measured.arithmetic_seconds
            region["memory_seconds"] = measured.memory_seconds
            region["causes"] = measured.causes
            region["description"] = descriptions[region["name"]]
    document["refusals"] = {name: dict(reasons) for name, reasons in profile.refusals.items()}


def labels(nodes: Iterable[Node]) -> list[str]:
    """A label for each node of an optimized graph, all different.

    A label is the path of the first layer, then the layers that are fused to it:
    ``layer1.0.conv1 + relu``.  If the last part of a path is a number, or empty, the operator is
    added: ``features.0 (Conv2d) + ReLU``.  The second use of the same layer has the suffix ``#2``.
    A node that only changes the layout of a value is named after the value.
    """
    from minidnn.graph.operators.movement import Reorder
    from minidnn.report.explain import inner_nodes

    counts: Counter[str] = Counter()
    label_of: dict[Node, str] = {}
    for node in nodes:
        if isinstance(node.op, Reorder):  # it is no layer of the user: named after its operand
            value = node.inputs[0]
            moved = value.name if value.producer is None else label_of[value.producer]
            label = f"{moved}, moved to {node.op.layout}"
        else:
            label = _label([(inner.source, inner.op.name) for inner in inner_nodes(node)])
        counts[label] += 1
        label_of[node] = label if counts[label] == 1 else f"{label} #{counts[label]}"
    return list(label_of.values())


def _label(parts: Sequence[tuple[str, str]]) -> str:
    (first, operator), *rest = dict.fromkeys(parts)
    name = first.rpartition(".")[2]
    head = f"{first} ({operator})".lstrip() if not name or name.isdigit() else first
    shown = [head, *(_fused(path, operator, first) for path, operator in rest)]
    more = len(shown) - _SHOWN
    return " + ".join(shown[:_SHOWN]) + (f" + {more} more" if more > 0 else "")


def _fused(path: str, operator: str, first: str) -> str:
    """The name of a fused layer in a label: relative if it is in the block of the first layer."""
    block, _, name = path.rpartition(".")
    if not path or f"{first}.".startswith(f"{path}."):
        return operator  # of the block itself, such as the addition of a residual block
    if block != first.rpartition(".")[0]:
        return path
    return operator if name.isdigit() else name
