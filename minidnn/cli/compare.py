"""``minidnn compare``: finds the first layer that differs from the model's own engine."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from minidnn.cli.arguments import add_device, count, count_from_0, positive, shape, size
from minidnn.errors import GraphError, MiniDNNError

HELP = "compare an ONNX model or a PyTorch module with its own engine, layer by layer"
DESCRIPTION = """\
Runs an ONNX model in ONNX Runtime, without rewrites, or a PyTorch module in PyTorch, and in
minidnn on random numbers, and reports the first layer that differs by more than the tolerance,
with figures.  A deviation is the largest difference as a part of the layer's largest number.

MODEL is an ONNX file, or package.module:name, where that name of a Python module (looked for in
the working folder, too) is a PyTorch module or a function without arguments that makes one.  It
is set to evaluation mode, and needs --shape.

To be seen, all layers are written, so that less is fused than usual; the results of the network as
it is usually compiled are compared, too.

Exit code: 0 if nothing differs, 1 if something does, 2 for errors."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help="an ONNX file, or package.module:name")
    add("--batch", type=count, help="of inputs whose first axis an ONNX file leaves open (1)")
    add("--size", type=size, help="224 or 192x256, where an ONNX file leaves them open")
    add(
        "--shape",
        type=shape,
        nargs="+",
        help="one for each input of a PyTorch module, such as 1x3x224x224",
    )
    add_device(parser)
    add("--tolerance", type=positive, default=1e-3, help="the largest deviation (0.001)")
    add("--seed", type=count_from_0, default=0, help="of the inputs (0)")
    add("--layers", action="store_true", help="print all layers")
    add("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    from minidnn.comparison import compare

    model, inputs, shapes = _given(options)
    comparison = compare(
        model,
        inputs,
        shape=shapes,
        tolerance=options.tolerance,
        seed=options.seed,
        device=options.device,
        precision=options.precision,
    )
    if options.json:
        print(json.dumps(_document(comparison), indent=1))
    else:
        if options.layers:
            print("\n".join(map(str, comparison.layers)))
        print(comparison)
    return 0 if comparison.equal else 1


def _given(options: argparse.Namespace) -> tuple[Any, Any, Any]:
    """The model, its inputs, and their shapes; inputs or shapes are None."""
    path, colon, name = options.model.rpartition(":")
    if colon and name.isidentifier() and all(part.isidentifier() for part in path.split(".")):
        if options.shape is None or options.batch is not None or options.size is not None:
            raise GraphError("a PyTorch module needs --shape, and takes no --batch and no --size")
        module = _module(path, name)
        return module, _inputs(options.model, module, options.shape, options.seed), None
    from minidnn.cli.networks import is_onnx, onnx_graph

    if not is_onnx(options.model):
        raise GraphError(
            f"MODEL {options.model!r}; valid are an ONNX file (.onnx) and package.module:name"
        )
    if options.shape is not None:
        raise GraphError("--shape is for PyTorch modules; an ONNX file has --batch and --size")
    graph = onnx_graph(options.model, options.batch, options.size)
    return options.model, None, {value.name: value.shape for value in graph.inputs}


def _module(path: str, name: str) -> Any:
    """The PyTorch module that ``path:name`` names, or that a function of this name returns, in
    evaluation mode."""
    from minidnn.frontends.torch.frontend import evaluated, require_torch

    require_torch()
    from torch import nn

    from minidnn.frontends.torch.torchvision import make_importable

    make_importable()  # the user's module may import torchvision
    sys.path.insert(0, os.getcwd())
    try:
        attribute = getattr(import_module(path), name)
        module = (
            attribute
            if isinstance(attribute, nn.Module) or not callable(attribute)
            else attribute()
        )
    except Exception as error:  # whatever the user's own code raises
        raise MiniDNNError(f"{path}:{name} cannot be had: {error}") from error
    finally:
        sys.path.pop(0)
    if not isinstance(module, nn.Module):
        raise MiniDNNError(
            f"{path}:{name} is of type {type(module).__name__}; valid is a torch.nn.Module"
        )
    return evaluated(module)


def _inputs(named: str, module: Any, shapes: Sequence[tuple[int, ...]], seed: int) -> list[Any]:
    """Random inputs with which the module runs; if it does not, its error is reported as one of
    ``--shape``."""
    import numpy as np
    import torch

    random = np.random.default_rng(seed)
    arrays = [random.standard_normal(each, np.float32) for each in shapes]
    weights = [*module.parameters(), *module.buffers()]
    device = weights[0].device if weights else None
    try:
        with torch.no_grad():
            module(*(torch.tensor(array, device=device) for array in arrays))
    except Exception as error:  # whatever the user's own code raises
        sizes = " ".join("x".join(map(str, each)) for each in shapes)
        told = f"{type(error).__name__}: {error}"
        raise MiniDNNError(f"{named} fails on --shape {sizes}: {told}") from error
    return arrays


def _document(found: Any) -> dict[str, Any]:
    def described(layer: Any) -> dict[str, Any]:
        # JSON has no infinity.
        figures = {name: getattr(layer, name) for name in ("deviation", "original", "ours")}
        return {
            "name": layer.name,
            "kind": layer.kind,
            "shape": list(layer.shape),
            "place": list(layer.place),
            **{name: x if math.isfinite(x) else repr(x) for name, x in figures.items()},
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
