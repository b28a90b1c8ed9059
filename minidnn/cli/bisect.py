"""``minidnn bisect``: finds the first rewrite of the passes that makes a result wrong."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from minidnn.cli.arguments import add_device, add_network, add_strategy, count_from_0, positive
from minidnn.errors import GraphError

if TYPE_CHECKING:
    from minidnn.backends.backend import Backend
    from minidnn.graph.ir import Graph
    from minidnn.passes.bisect import Arrays, Run, Trial
    from minidnn.passes.infrastructure import Context

HELP = "find the rewrite that makes a result wrong"
DESCRIPTION = """\
Runs a network before and after fusion on random numbers.  If the results differ by more than the
tolerance, the first of the passes' rewrites that makes them differ is searched for by halving.

Results are compared with those of the untouched graph in float64; a deviation is a part of the
output's largest value.  By default the fused graph is computed in float64, too, every sequence
patch by patch as its kernel plan says.  Random networks get normalizations with statistics of all
signs and sizes.

Exit code: 0 if nothing deviates, 1 if something does, 2 for errors."""

#: Default tolerances in precisions other than float64; COARSE is that of all others.
TOLERANCES = {"float32": 1e-3}
COARSE = 0.05


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_network(parser)
    add_device(parser, "reference", "float64 on reference, else the device's first")
    add_strategy(parser)
    parser.add_argument(
        "--tolerance",
        type=positive,
        help="the largest deviation that is right (in float64 what rounding weights explains, "
        "1e-3 in float32, 0.05 in others)",
    )
    parser.add_argument("--weights", help="a file or torchvision's name (random weights)")
    parser.add_argument("--seed", type=count_from_0, default=0, help="of weights and inputs (0)")


def run(options: argparse.Namespace) -> int:
    from minidnn.backends.backend import get_backend
    from minidnn.cli.networks import noise
    from minidnn.fusion.collapse import check_strategy
    from minidnn.fusion.target import check_target
    from minidnn.passes.bisect import bisect
    from minidnn.passes.infrastructure import Context

    name = options.device or "reference"
    backend = get_backend(name)
    valid = backend.precisions()
    default = "float64" if "float64" in valid else valid[0]
    precision = options.precision or default
    if precision not in valid:
        raise GraphError(
            f"--precision {precision} on device {name!r}; valid are {', '.join(valid)}"
        )
    tolerance = options.tolerance
    if tolerance is None and precision != "float64":
        tolerance = TOLERANCES.get(precision, COARSE)
    graph = _graph(options)
    inputs = [
        noise(value.shape, options.seed + 1 + i, value.dtype)
        for i, value in enumerate(graph.inputs)
    ]
    # The reference computes sequences patch by patch, as their kernel plans say.
    extras = {"interpret": True} if name == "reference" else {}
    strategy = check_strategy(options.strategy)
    context = Context(check_target(backend.target(precision, extras), name, strategy), strategy)
    bisection = bisect(
        graph,
        inputs,
        tolerance,
        context=context,
        run=_runner(backend, precision, extras),
        observe=_print_trial,
    )
    print(bisection)
    return 0 if bisection.right else 1


def _print_trial(trial: Trial) -> None:
    print(f"{trial.fuel:5d} rewrites: the result {trial}", flush=True)


def _graph(options: argparse.Namespace) -> Graph:
    """The graph, with weights that expose a wrong rewrite."""
    from minidnn.cli.networks import graph_of
    from minidnn.frontends.zoo import is_path
    from minidnn.layers.calibration import calibrate_on_noise
    from minidnn.models import get_model

    if is_path(options.network):
        if options.weights is not None:
            raise GraphError(
                f"--weights {options.weights}: the graph file {options.network!r} has weights"
            )
        return graph_of(options)
    if options.weights is None:
        network = get_model(options.network, seed=options.seed)
        _shake(network, options.seed)
        return graph_of(options, calibrate_on_noise(network, options.seed))
    return graph_of(options, get_model(options.network, weights=options.weights))


def _shake(network: Any, seed: int) -> None:
    """Gives normalizations random shifts and scales of both signs, which fresh ones do not have."""
    import numpy as np

    from minidnn.layers import BatchNorm2d

    random = np.random.default_rng(seed)
    for _, layer in network.named_layers():
        if isinstance(layer, BatchNorm2d):
            size = layer.weight.type.size
            signs = random.choice(np.array([-1, 1], np.float32), size)
            layer.weight.assign(signs * random.uniform(0.5, 1.5, size).astype(np.float32))
            layer.bias.assign(random.uniform(-0.5, 0.5, size).astype(np.float32))


def _runner(backend: Backend, precision: str, extras: Mapping[str, Any]) -> Run:
    """Makes the function that runs optimized graphs as ``minidnn.compile`` would: with a plan and
    its arena."""
    from minidnn.executable import Executable, results_of
    from minidnn.runtime.interface import interface_of
    from minidnn.runtime.plan import make_plan

    def run(graph: Graph, context: Context, inputs: Arrays) -> Arrays:
        plan = make_plan(graph, context)
        program = backend.compile(plan, precision, extras)
        interface = interface_of(plan.graph)
        return results_of(Executable(interface, program, backend.name, precision), inputs)

    return run
