"""The command line that every file of the zoo has: summary, run, bench.

    python -m minidnn.models.resnet summary resnet50
    python -m minidnn.models.resnet run resnet18 --weights DEFAULT --image cat.jpg --device cpu
    python -m minidnn.models.resnet bench --batch 16

Random weights are calibrated on random images first, so that times and outputs are those of
values of ordinary size.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import minidnn as md
from minidnn.errors import GraphError, MiniDNNError
from minidnn.layers.calibration import calibrate

from . import get_model

#: By which torchvision normalizes pictures, for each colour from 0 to 1.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


def main(*names: str, arguments: Sequence[str] | None = None) -> None:
    """Runs the command line for the networks of these names, the first being the default one.

    Ends the process with status 1 and one line if something of minidnn's fails, with 2 for wrong
    arguments.
    """
    parser = _parser(names)
    options = parser.parse_args(arguments)
    try:
        options.command(options)
    except MiniDNNError as error:
        parser.exit(1, f"{parser.prog}: {error}\n")


def _parser(names: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=f"Networks: {', '.join(names)}.")
    commands = parser.add_subparsers(required=True, metavar="{summary,run,bench}")
    for name, command, text in (
        ("summary", _summary, "print a table of the layers"),
        ("run", _run, "run an image, or random numbers, and print the highest outputs"),
        ("bench", _bench, "print the median time of a run"),
    ):
        sub = commands.add_parser(name, help=text, description=f"{text.capitalize()}.")
        sub.set_defaults(command=command)
        sub.add_argument("network", nargs="?", choices=names, default=names[0])
        sub.add_argument("--batch", type=_count, default=1, help="images per run (1)")
        sub.add_argument("--size", type=_count, help="rows and columns (the network's own)")
        sub.add_argument("--classes", type=_count, default=1000, help="outputs (1000)")
        if command is _summary:
            continue
        sub.add_argument("--weights", help="a path or torchvision's name (random weights)")
        sub.add_argument("--seed", type=int, default=0, help="of random weights and inputs (0)")
        sub.add_argument("--device", help="reference, cpu or cuda (the best there is)")
        if command is _run:
            sub.add_argument("--image", type=Path, help="a picture (random numbers)")
            sub.add_argument("--top", type=_count, default=5, help="outputs to print (5)")
        else:
            sub.add_argument("--repeat", type=_count, default=10, help="timed runs (10)")
            sub.add_argument("--warmup", type=_count, default=2, help="runs before (2)")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)


def _shape(network: Any, options: argparse.Namespace) -> tuple[int, ...]:
    channels, *sizes = network.input_shape
    return (options.batch, channels, *((options.size or size) for size in sizes))


def _summary(options: argparse.Namespace) -> None:
    network = get_model(options.network, num_classes=options.classes)
    print(network.summary(_shape(network, options)))


def _network(options: argparse.Namespace) -> Any:
    """The network with the weights asked for; random ones calibrated on random numbers."""
    network = get_model(
        options.network,
        weights=options.weights,
        num_classes=options.classes,
        seed=options.seed,
    )
    if options.weights is None:
        channels, *sizes = network.input_shape
        # Half the rows and columns: four times faster, and still thousands of values a channel.
        calibrate(network, _random((4, channels, *(size // 2 for size in sizes)), options.seed))
    return network


def _random(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def _compile(network: Any, shape: tuple[int, ...], options: argparse.Namespace) -> Any:
    compile: Any = md.compile
    return compile(network, shape, **({} if options.device is None else {"device": options.device}))


def _run(options: argparse.Namespace) -> None:
    network = _network(options)
    shape = _shape(network, options)
    if options.image is None:
        x = _random(shape, options.seed + 1)
    else:
        x = np.repeat(_image(options.image, shape[2:], options.network), options.batch, axis=0)
    y = np.asarray(_compile(network, shape, options)(x))
    for i, scores in enumerate(y):
        shares = np.exp(scores - scores.max())
        shares /= shares.sum()
        best = np.argsort(-scores, kind="stable")[: options.top]
        for rank, k in enumerate(best, 1):
            print(f"{i}  {rank}.  class {k:4d}  {100 * shares[k]:6.2f} %  output {scores[k]:.5g}")


def _image(path: Path, size: tuple[int, ...], name: str) -> np.ndarray:
    """A picture as torchvision's networks want it: (1, 3, rows, columns)."""
    try:
        from PIL import Image
    except ImportError:
        raise md.UnsupportedError(
            f"--image {path}: Pillow is not installed (pip install 'minidnn[images]')"
        ) from None
    from minidnn.weights import find_known

    known = find_known(name)
    ratio = known.resize / known.crop if known else 1.0
    rows, columns = size
    try:
        with Image.open(path) as file:
            picture = file.convert("RGB")
    except OSError as error:
        raise GraphError(f"--image {path}: {error}") from error
    scale = max(rows, columns) * ratio / min(picture.size)
    picture = picture.resize(
        (round(picture.width * scale), round(picture.height * scale)), Image.Resampling.BILINEAR
    )
    left, top = (picture.width - columns) // 2, (picture.height - rows) // 2
    pixels = np.asarray(picture.crop((left, top, left + columns, top + rows)), np.float32) / 255
    normalized = (pixels - np.array(MEAN, np.float32)) / np.array(STD, np.float32)
    return np.ascontiguousarray(normalized.transpose(2, 0, 1)[None])


def _bench(options: argparse.Namespace) -> None:
    network = _network(options)
    shape = _shape(network, options)
    begin = time.perf_counter()
    run = _compile(network, shape, options)
    compiled = time.perf_counter() - begin
    x = _random(shape, options.seed + 1)
    times = []
    for i in range(options.warmup + options.repeat):
        begin = time.perf_counter()
        run(x)
        times.append(time.perf_counter() - begin)
        if sys.stderr.isatty():
            print(f"\rrun {i + 1}", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print("\r", end="", file=sys.stderr)
    times = times[options.warmup :]
    median = statistics.median(times)
    print(
        f"{options.network}  {'x'.join(map(str, shape))}  median {1e3 * median:.3f} ms  "
        f"(best {1e3 * min(times):.3f}, worst {1e3 * max(times):.3f}, {len(times)} runs)  "
        f"{shape[0] / median:.1f} images/s  compiled in {compiled:.2f} s"
    )
