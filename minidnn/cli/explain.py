"""``minidnn explain``: how a network is fused, and what that is predicted to cost."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from minidnn.cli.arguments import (
    add_device,
    add_network,
    add_strategy,
    add_tune,
    count_from_0,
    precision_of,
    tune_of,
)
from minidnn.cli.explained import Trail, add_times, document_of
from minidnn.errors import MiniDNNError

if TYPE_CHECKING:
    from minidnn.graph.ir import Graph, Node
    from minidnn.report.profile import Profile
    from minidnn.runtime.plan import Plan

HELP = "show how a network is fused, and what that should cost"
DESCRIPTION = """\
Compiles a network and prints its regions (what each kernel computes), the stacks that were found,
and every rewrite that the passes made. Times are predictions of the cost model, or with --measure
those of this machine, on random inputs."""


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
    """Each graph once: what one pass leaves is what the next one gets."""
    parts = []
    for i, (name, before, after) in enumerate(trail.steps):
        if i == 0:
            parts.append(f"== before {name} ==\n{before}\n")
        text = "(the same graph)" if str(before) == str(after) else after
        parts.append(f"== after {name} ==\n{text}\n")
    return "\n".join(parts)


def _annotations(plan: Plan) -> str:
    """How the values of the last graph lie, and what is computed image after image."""
    found = plan.annotations
    lines = ["== annotations =="]
    lines += [f"layout %{value.name}: {layout}" for value, layout in found.layouts.items()]
    lines += [
        f"place %{value.name} in %{place.buffer.name} from channel {place.channel}"
        for value, place in found.placements.items()
    ]
    for group in found.groups:
        lines.append(f"image after image: {', '.join(node.name for node in group)}")
    return "\n".join(lines) + "\n"


def _stacks(stacks: list[list[Node]]) -> str:
    lines = [f"{len(stacks)} stack{'s' * (len(stacks) != 1)} left after absorption"]
    for number, nodes in enumerate(stacks, 1):
        names = ", ".join(f"{node.name} ({node.op.name})" for node in nodes)
        lines.append(f"  {number}. {names}")
    return "\n".join(lines)
