"""Run networks layer by layer and depth first over scikit-learn's two photographs.

    python demo/depth_first.py [--device cpu] [--blocks 16]

densenet121 at its own size, and the chain of the BrainSlug paper (section 5.1): blocks of
<MaxPool 3x3 stride 1 padding 1, BatchNorm, ReLU>, half of them with negative scales.  Prints times,
how well the two ways agree, and what was fused.  Weights are random; normalizations are
calibrated on the photographs, so that values neither vanish nor explode.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
from sklearn.datasets import load_sample_images

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this checkout's minidnn, installed or not

import minidnn as md  # noqa: E402
from minidnn import layers as L  # noqa: E402
from minidnn import models  # noqa: E402
from minidnn.executable import Executable  # noqa: E402
from minidnn.report.explain import kind_of  # noqa: E402

ROUNDS = 9
PIXELS = 4
"""The chain runs on blocks of PIXELS x PIXELS pixels as channels: 48 of them."""
MEAN = np.array([0.485, 0.456, 0.406], np.float32)
STD = np.array([0.229, 0.224, 0.225], np.float32)


def photographs() -> np.ndarray:
    """Return both photographs (2, 3, 424, 640), float32, normalized as for ImageNet."""
    images = np.stack(load_sample_images().images)[:, :424].astype(np.float32) / 255
    return np.ascontiguousarray(((images - MEAN) / STD).transpose(0, 3, 1, 2))


def crops(images: np.ndarray, size: int) -> np.ndarray:
    """Return the middle of each image."""
    top, left = (images.shape[2] - size) // 2, (images.shape[3] - size) // 2
    return np.ascontiguousarray(images[:, :, top : top + size, left : left + size])


def space_to_depth(images: np.ndarray) -> np.ndarray:
    """Return blocks of pixels as channels: (N, C * PIXELS ** 2, H / PIXELS, W / PIXELS)."""
    n, c, h, w = images.shape
    blocks = images.reshape(n, c, h // PIXELS, PIXELS, w // PIXELS, PIXELS)
    shape = (n, c * PIXELS**2, h // PIXELS, w // PIXELS)
    return np.ascontiguousarray(blocks.transpose(0, 1, 3, 5, 2, 4).reshape(shape))


def chain(blocks: int, channels: int) -> L.Layer:
    """Return the paper's chain."""
    layers: list[L.Layer] = []
    random = np.random.default_rng(0)
    for _ in range(blocks):
        norm = L.BatchNorm2d(channels)
        signs = random.permutation(np.arange(channels) % 2 * 2 - 1)
        norm.weight.assign((signs * random.uniform(0.8, 1.2, channels)).astype(np.float32))
        layers += [L.MaxPool2d(3, 1, 1), norm, L.ReLU()]
    return md.Sequential(*layers)


def fused(exe: Executable) -> str:
    """Say what a network became."""
    kinds: Counter[str] = Counter()
    for node in exe.graph.nodes:
        kind = kind_of(exe.plan, node)
        if kind == "contraction":
            kinds["contractions with what stands before and after them"] += 1
        elif kind.endswith(("step", "steps")):
            kinds[f"sequences of {kind}"] += 1
        elif kind == "in place":
            kinds["concatenations without a copy"] += 1
        elif kind != "view":
            kinds[kind] += 1
    return ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())


def compare(title: str, network: L.Layer, x: np.ndarray, device: str | None) -> None:
    """Compile and run both ways in turn, and print."""
    ways = {"layer by layer": "layers", "depth first": "model"}
    compiled: dict[str, Executable] = {}
    print(f"\n{title}\non {' x '.join(map(str, x.shape))} numbers of both photographs")
    seconds_to_compile = {}
    for way, strategy in ways.items():
        start = time.perf_counter()
        compiled[way] = md.compile(network, x.shape, device=device, strategy=strategy)
        seconds_to_compile[way] = time.perf_counter() - start
    results = {way: exe(x) for way, exe in compiled.items()}
    times: dict[str, list[float]] = {way: [] for way in ways}
    # NumPy takes seconds for what the CPU engine does in milliseconds.
    for _ in range(ROUNDS if compiled["depth first"].device != "reference" else 1):
        for way, exe in compiled.items():
            start = time.perf_counter()
            exe(x)
            times[way].append(time.perf_counter() - start)
    first = statistics.median(times["layer by layer"])
    for way, exe in compiled.items():
        median = statistics.median(times[way])
        kernels = sum(kind_of(exe.plan, n) not in ("view", "in place") for n in exe.graph.nodes)
        ratio = f", {first / median:.2f} times as fast" if way == "depth first" else ""
        print(
            f"  {way:<15}{kernels:4} kernels{median * 1e3:9.2f} ms{ratio} "
            f"(compiled in {seconds_to_compile[way]:.1f} s)"
        )
    one, other = results.values()
    if one.tobytes() == other.tobytes():
        print("  agreement: equal to the last bit")
    else:
        difference = np.abs(one - other).max() / np.abs(one).max()
        print(f"  agreement: they differ by {difference:.1e} of the largest number")
    print(f"  fused: {fused(compiled['depth first'])}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--device", help="cpu, cuda or reference; by default the best usable one")
    parser.add_argument("--blocks", type=int, default=16, help="blocks of the chain (16)")
    arguments = parser.parse_args()

    images = photographs()
    net = md.calibrate(models.densenet121(), crops(images, 160))
    title = "densenet121; its ImageNet weights are random here, so that its classes mean nothing"
    compare(title, net, crops(images, 224), arguments.device)

    pixels = space_to_depth(images)
    net = md.calibrate(chain(arguments.blocks, pixels.shape[1]), pixels)
    title = f"the chain of {arguments.blocks} x <MaxPool 3x3, BatchNorm, ReLU>"
    compare(title, net, pixels, arguments.device)


if __name__ == "__main__":
    main()
