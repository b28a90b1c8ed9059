"""minidnn as one of the engines that are measured."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np

import minidnn as md
from minidnn.bench.peers import load_inputs
from minidnn.bench.worker import Engine


def minidnn(
    network: str, options: Mapping[str, Any], inputs: str, threads: int, **settings: Any
) -> Engine:
    """The layer that ``network``, ``"package.module:function"``, makes of options, compiled for
    the CPU with ``settings`` as further arguments of :func:`minidnn.compile`."""
    module_name, _, function = network.partition(":")
    layer = getattr(importlib.import_module(module_name), function)(**options)
    arrays = load_inputs(inputs)
    shapes = [array.shape for array in arrays]
    compiled = md.compile(
        layer, shapes[0] if len(shapes) == 1 else shapes, device="cpu", threads=threads, **settings
    )
    out = compiled(*arrays)
    several = isinstance(out, tuple)

    def run() -> Any:
        return compiled(*arrays, out=out)

    about = {
        "version": md.__version__,
        "kernels": len(compiled.plan.graph.nodes),
        "precision": "f32",
    }
    return Engine(run, lambda result: list(result) if several else [np.asarray(result)], about)
