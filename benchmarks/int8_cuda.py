"""Networks of the zoo in int8 beside our float16, on a GPU.

    python -m benchmarks.int8_cuda [--networks resnet50 vgg16_bn] [--batch 1 128] [--layers]

``md.quantize`` makes the graph, from random weights whose normalizations are calibrated on noise.
Both take turns in one process, on arrays of the GPU's.  A ratio is the time of float16 over that of
int8, the median over rounds: above 1 int8 is faster.  ``--layers`` tells the slowest regions of
int8, and what computes them.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import cupy
import numpy as np

import minidnn as md
from minidnn import models
from minidnn.bench.networks import noise
from minidnn.layers.calibration import calibrate_on_noise
from minidnn.measure import interleaved

NETWORKS = ("resnet18", "resnet50", "vgg16_bn", "densenet121", "squeezenet1_1")
BURST_SECONDS = 0.05


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS))
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 128])
    parser.add_argument("--dtype", choices=("uint8", "int8"), default="int8")
    parser.add_argument("--tune", default="quick")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--layers", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    lines = [measured(n, b, options) for n in options.networks for b in options.batch]
    print("\n| network | batch | int8, ms | float16, ms | ratio |\n|---|---|---|---|---|")
    for line in lines:
        times = f"{line['int8']:.3f} | {line['float16']:.3f} | {line['ratio']:.2f}"
        print(f"| {line['network']} | {line['batch']} | {times} |")
    mean = statistics.geometric_mean(line["ratio"] for line in lines)
    print(f"float16 over int8: geometric mean {mean:.2f}, {len(lines)} cells")
    if options.json is not None:
        options.json.write_text(json.dumps(lines, indent=1) + "\n")


def measured(name: str, batch: int, options: argparse.Namespace) -> dict[str, Any]:
    """One cell: milliseconds of both, and their ratio."""
    net = models.get_model(name)
    side = net.input_shape[1]
    calibrate_on_noise(net)
    shape = (batch, 3, side, side)
    x = noise(shape, 1)
    graph = md.quantize(
        net, x[: min(batch, 8)].repeat(-(-batch // 8), 0)[:batch], ranges="minmax",
        dtype=options.dtype, device="cuda", shape=shape,
    )  # fmt: skip
    given = cupy.asarray(x)
    half = md.compile(net, shape, device="cuda", precision="float16", tune=options.tune)
    whole = md.compile(graph, device="cuda", tune=options.tune)
    if options.layers:
        print(whole.profile(given))
    calls = {
        "int8": partial(whole, given),
        "float16": partial(half, given.astype(cupy.float16)),
    }
    y, near = (cupy.asnumpy(calls[each]()).astype(np.float64) for each in ("int8", "float16"))
    takes = {each: partial(milliseconds, call, _count(call)) for each, call in calls.items()}
    found = interleaved(takes, options.rounds)
    line = {
        "network": name,
        "batch": batch,
        **{each: statistics.median(times) for each, times in found.items()},
        "ratio": statistics.median(
            b / a for a, b in zip(found["int8"], found["float16"], strict=True)
        ),
        "deviation": float(np.linalg.norm(y - near) / np.linalg.norm(near)),
    }
    print(json.dumps(line), flush=True)
    return line


def milliseconds(call: Callable[[], Any], count: int) -> float:
    """Of one of so many calls that follow each other."""
    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    cupy.cuda.Device().synchronize()
    begin.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return float(cupy.cuda.get_elapsed_time(begin, end)) / count


def _count(call: Callable[[], Any]) -> int:
    """How many make a burst."""
    milliseconds(call, 1)
    return max(1, round(1e3 * BURST_SECONDS / milliseconds(call, 3)))


if __name__ == "__main__":
    main()
