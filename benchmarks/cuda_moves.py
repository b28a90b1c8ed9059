"""Moves between NCHW and NHWC on one GPU, beside the copy of as many bytes.

    python -m benchmarks.cuda_moves results.json

Each kernel is timed in turn with the copy, in CUDA graphs; the share is the copy's time by the
kernel's.  Shapes are those at the ends of classifiers in the zoo, and those in front of and behind
the layer that ``benchmarks.optimize`` puts into networks.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import cupy

from minidnn.backends.cuda.copy import print_copy
from minidnn.backends.cuda.functions import load_launches
from minidnn.backends.cuda.machine import machine_of
from minidnn.backends.cuda.tensor import tensor_of
from minidnn.cudnn import machine
from minidnn.cudnn.graph import arrays
from minidnn.cudnn.graph.spec import TensorSpec
from minidnn.cudnn.graph.timing import Contestant, race
from minidnn.graph.layout import CHANNELS_LAST, PLANAR, Layout
from minidnn.graph.types import TensorType
from minidnn.measure import write_figures

SHAPES = (
    *((128, 256, 6, 6), (128, 512, 7, 7), (1, 512, 7, 7)),  # AlexNet, VGGs
    *((batch, 512, 28, 28) for batch in (1, 32, 128)),  # resnet50
    *((batch, 128, 28, 28) for batch in (1, 32, 128)),  # resnet18
    *((32, 256, 27, 27), (32, 256, 28, 28), (32, 256, 14, 14)),  # squeezenet1_1, vgg16, densenet121
    (32, 58, 28, 28),  # ShuffleNet
)


def measure(shape: tuple[int, ...], precision: str, source: Layout, to: Layout) -> dict[str, Any]:
    """Milliseconds of the move and of the copy."""
    value = TensorType(shape, precision)
    launch = print_copy(shape[0], tensor_of(value, source), tensor_of(value, to))
    (kernel,) = load_launches([launch], machine_of(0).arch)
    spec = TensorSpec((value.size,), (1,), precision)
    x, y = (arrays.random_like(spec, seed=0) for _ in range(2))

    def copy() -> None:
        cupy.cuda.runtime.memcpyAsync(
            int(y.ptr), int(x.ptr), value.bytes, 3, cupy.cuda.get_current_stream().ptr
        )

    contestants = [Contestant(copy), Contestant(kernel.bind([int(x.ptr), int(y.ptr)]))]
    other, own = race(contestants, margin=100.0, rounds=9)
    if own is None or other is None:
        raise SystemExit(f"{shape} in {precision} could not be timed")
    return {
        "ms": own,
        "copy ms": other,
        "share": other / own,
        "registers": kernel.resources.registers,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("results", type=Path)
    options = parser.parse_args()
    found: dict[str, Any] = {"device": machine.device_name(0), "cupy": cupy.__version__}
    print("| value | precision | to | us | copy us | share |\n|---|---|---|---|---|---|")
    for shape in SHAPES:
        for precision in ("float16", "float32"):
            for source, to in ((PLANAR, CHANNELS_LAST), (CHANNELS_LAST, PLANAR)):
                name = "NCHW" if to is PLANAR else "NHWC"
                text = "x".join(map(str, shape))
                one = found[f"{text}, {precision}, {name}"] = measure(shape, precision, source, to)
                times = f"{1e3 * one['ms']:.1f} | {1e3 * one['copy ms']:.1f}"
                print(
                    f"| {text} | {precision} | {name} | {times} | {one['share']:.2f} |", flush=True
                )
    write_figures(options.results, found)


if __name__ == "__main__":
    main()
