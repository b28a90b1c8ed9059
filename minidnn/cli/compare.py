"""``minidnn compare``: which layer is the first that the original engine computes otherwise?"""

from __future__ import annotations

import argparse
import json
from typing import Any

from minidnn.cli.arguments import count, count_from_0, positive

HELP = "compare an ONNX model with ONNX Runtime, layer by layer"
DESCRIPTION = """\
Runs an ONNX model in ONNX Runtime, without rewrites, and in minidnn on random numbers, and reports
the first layer that differs by more than the tolerance, with figures.  A deviation is the largest
difference as a part of the layer's largest number.

To be seen, all layers are written, so that less is fused than usual; the results of the network as
it is usually compiled are compared, too.  PyTorch modules: minidnn.compare(module, inputs).

Exit code: 0 if nothing differs, 1 if something does, 2 for errors."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help="an ONNX file")
    add("--batch", type=count, help="of inputs whose first axis the model leaves open (1)")
    add("--size", type=count, help="rows and columns, where the model leaves them open")
    add("--device", help="reference, cpu or cuda (the best that works here)")
    add("--precision", help="one of the device's precisions (its first)")
    add("--tolerance", type=positive, default=1e-3, help="the largest deviation (0.001)")
    add("--seed", type=count_from_0, default=0, help="of the inputs (0)")
    add("--layers", action="store_true", help="print all layers")
    add("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    from minidnn.cli.networks import onnx_graph
    from minidnn.comparison import compare

    graph = onnx_graph(options.model, options.batch, options.size)
    found = compare(
        options.model,
        shape={value.name: value.shape for value in graph.inputs},
        tolerance=options.tolerance,
        seed=options.seed,
        device=options.device,
        precision=options.precision,
    )
    if options.json:
        print(json.dumps(_document(found), indent=1))
    else:
        if options.layers:
            print("\n".join(map(str, found.layers)))
        print(found)
    return 0 if found.equal else 1


def _document(found: Any) -> dict[str, Any]:
    def described(layer: Any) -> dict[str, Any]:
        # JSON has no infinity.
        figures = {name: repr(getattr(layer, name)) for name in ("deviation", "original", "ours")}
        return {
            "name": layer.name,
            "kind": layer.kind,
            "shape": list(layer.shape),
            "place": list(layer.place),
            **{name: float(text) if _finite(text) else text for name, text in figures.items()},
        }

    return {
        "engine": found.engine,
        "device": found.device,
        "tolerance": found.tolerance,
        "equal": found.equal,
        "first": None if found.first is None else described(found.first),
        "outputs": [described(layer) for layer in found.outputs],
        "layers": [described(layer) for layer in found.layers],
    }


def _finite(text: str) -> bool:
    return text.strip("-") not in ("inf", "nan")
