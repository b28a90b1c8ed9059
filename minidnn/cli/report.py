"""``minidnn report``: writes an HTML page about a compiled network: times, fusion and memory."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from minidnn.cli.arguments import (
    add_device,
    add_network,
    add_strategy,
    add_tune,
    precision_of,
    tune_of,
)
from minidnn.cli.explain import Trail, add_times, document_of
from minidnn.errors import UnsupportedError

HELP = "write what explain tells of a network as an HTML page"
DESCRIPTION = """\
Compiles a network, measures its regions on random inputs, and writes one page that needs no network
and no script: where the time goes by layer, kind and cause, what would help, the roofline, what was
fused and why not more, and memory over time.

    minidnn report resnet18 --device cpu --html resnet18.html --json > before.json
    minidnn report resnet18 --device cpu --html resnet18.html --beside before.json"""

_PARTS = ("graph", "device", "precision", "regions", "arena")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_network(parser)
    add_device(parser, chooses=True)
    add_strategy(parser)
    add_tune(parser)
    parser.add_argument("--html", metavar="FILE", required=True, help="the page")
    parser.add_argument(
        "--beside", metavar="FILE", help="compare with another report, as --json printed it"
    )
    parser.add_argument(
        "--no-measure", action="store_true", help="predictions only; nothing is run"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, too")


def run(options: argparse.Namespace) -> int:
    import minidnn
    from minidnn.backends.backend import get_backend, why_not_in
    from minidnn.cli.networks import graph_of
    from minidnn.pages.page import save_page
    from minidnn.report.network_page import network_page

    beside = None if options.beside is None else _other(options.beside)
    trail = Trail()
    executable = minidnn.compile(
        graph_of(options),
        device=options.device,
        **precision_of(options),
        strategy=options.strategy,
        observe=trail.observe,
        **tune_of(options),
    )
    backend = get_backend(executable.device)
    shapes = [value.shape for value in executable.graph.inputs if value.shape]
    document = document_of(executable, trail, False) | {
        "network": Path(options.network).name,
        "batch": shapes[0][0] if shapes else 1,
        "strategy": options.strategy,
        "tuned": options.tune,
        "precisions": [each for each in backend.precisions() if why_not_in(backend, each) is None],
    }
    if not options.no_measure:
        add_times(document, executable.profile(*executable.random_inputs()))
    save_page(options.html, network_page(document, beside))
    if options.json:
        print(json.dumps(document, indent=1, allow_nan=False))
    return 0


def _other(path: str) -> dict[str, Any]:
    try:
        report = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise UnsupportedError(f"--beside {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UnsupportedError(f"--beside {path} is no report: {error}") from error
    if not isinstance(report, dict) or not all(part in report for part in _PARTS):
        raise UnsupportedError(
            f"--beside {path} is no report; valid is what minidnn report --json prints"
        )
    return report
