"""minidnn as one of the engines that are measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import minidnn as md
from minidnn.bench.peers import load_inputs, made_by
from minidnn.bench.worker import LoadedEngine
from minidnn.cache import forbid_builds


def minidnn(
    network: str, options: Mapping[str, Any], inputs: str, threads: int, **settings: Any
) -> LoadedEngine:
    """The layer that ``network``, ``"package.module:function"``, makes of options, compiled for
    the CPU with ``settings`` as further arguments of :func:`minidnn.compile`.

    The report says whether the cache had all of its kernels.
    """
    layer = made_by(network, options)
    arrays = load_inputs(inputs)
    shapes = [array.shape for array in arrays]
    shape = shapes[0] if len(shapes) == 1 else shapes
    settings |= {"device": "cpu", "threads": threads}
    try:
        with forbid_builds():
            compiled = md.compile(layer, shape, **settings)
        cache = "warm"
    except (md.CompileError, md.DeviceError):  # the cache may lack the runner of kernels, too
        compiled = md.compile(layer, shape, **settings)
        cache = "cold"
    del layer  # its weights, which the program has packed
    out = compiled(*arrays)
    several = isinstance(out, tuple)

    def run() -> Any:
        return compiled(*arrays, out=out)

    about = {
        "version": md.__version__,
        "kernels": len(compiled.plan.graph.nodes),
        "precision": {"bfloat16": "bf16", "int8": "int8"}.get(compiled.precision, "f32"),
        "cache": cache,
    }
    return LoadedEngine(
        run, lambda result: list(result) if several else [np.asarray(result)], about
    )
