"""The command line that every file of the zoo has: summary, run, bench.

    python -m minidnn.models.resnet summary resnet50
    python -m minidnn.models.resnet run resnet18 --weights DEFAULT --image cat.jpg --device cpu
    python -m minidnn.models.resnet bench --batch 16

Random weights are calibrated on random images first, so that times and outputs are those of
values of ordinary size.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import minidnn as md
from minidnn.errors import MiniDNNError
from minidnn.layers.calibration import calibrate_on_noise
from minidnn.pictures import Preparation, read_picture
from minidnn.weights import KNOWN_WEIGHTS

from . import get_model


def main(*names: str, arguments: Sequence[str] | None = None) -> None:
    """Runs the command line for the networks of these names, the first being the default one.

    Ends the process with status 1 and one line if something of minidnn's fails, with 2 for wrong
    arguments.
    """
    run(_parser(names), arguments)


def run(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> None:
    """Runs the command that the arguments choose, and turns what fails into one line."""
    options = parser.parse_args(arguments)
    try:
        options.command(options)
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()  # who read it has seen enough
        parser.exit(1)
    except MiniDNNError as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    except OSError as error:
        _drop_output()
        parser.exit(1, f"{parser.prog}: {error.strerror or error}\n")


def _drop_output() -> None:
    """Drops what is left of the output if it cannot be written: Python tries again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser(names: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m minidnn.models.{Path(sys.argv[0]).stem}",
        description=f"Networks: {', '.join(names)}.",
    )
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
        sub.add_argument("--classes", type=_count, help="outputs (the network's own)")
        if command is _summary:
            continue
        sub.add_argument("--weights", help="a path or torchvision's name (random weights)")
        sub.add_argument(
            "--seed", type=_count_from_0, default=0, help="of random weights and inputs (0)"
        )
        sub.add_argument("--device", help="reference, cpu or cuda (the best there is)")
        if command is _run:
            sub.add_argument("--image", type=Path, help="a picture (random numbers)")
            sub.add_argument("--top", type=_count, default=5, help="outputs to print (5)")
        else:
            sub.add_argument("--repeat", type=_count, default=10, help="timed runs (10)")
            sub.add_argument("--warmup", type=_count_from_0, default=2, help="runs before (2)")
    return parser


def _count(text: str, least: int = 1) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least {least}")
    return int(text)


def _count_from_0(text: str) -> int:
    return _count(text, 0)


def _shape(network: Any, options: argparse.Namespace) -> tuple[int, ...]:
    channels, *sizes = network.input_shape
    return (options.batch, channels, *((options.size or size) for size in sizes))


def _summary(options: argparse.Namespace) -> None:
    network = get_model(options.network, **_classes(options))
    print(network.summary(_shape(network, options)))


def _classes(options: argparse.Namespace) -> dict[str, int]:
    return {} if options.classes is None else {"num_classes": options.classes}


def _network(options: argparse.Namespace) -> Any:
    """The network with the weights asked for; random ones calibrated on random numbers."""
    network = get_model(
        options.network, weights=options.weights, seed=options.seed, **_classes(options)
    )
    if options.weights is None:
        calibrate_on_noise(network, options.seed)
    return network


def _random(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def _compile(network: Any, shape: tuple[int, ...], options: argparse.Namespace) -> Any:
    return md.compile(network, shape, device=options.device)


def _run(options: argparse.Namespace) -> None:
    network = _network(options)
    shape = _shape(network, options)
    if options.image is None:
        x = _random(shape, options.seed + 1)
    else:
        x = np.repeat(_picture(options, shape), options.batch, axis=0)
    y = np.asarray(_compile(network, shape, options)(x))
    for i, scores in enumerate(y):
        shares = np.exp(scores - scores.max())
        shares /= shares.sum()
        best = np.argsort(-scores, kind="stable")[: options.top]
        for rank, k in enumerate(best, 1):
            print(f"{i}  {rank}.  class {k:4d}  {100 * shares[k]:6.2f} %  output {scores[k]:.5g}")


def _picture(options: argparse.Namespace, shape: tuple[int, ...]) -> np.ndarray:
    """The picture as the weights want it; a file's, as the network's newest published ones do."""
    channels, size = shape[1:3]
    own = [known for known in KNOWN_WEIGHTS if known.network == options.network]
    named = [known for known in own if (options.weights or "").endswith(known.version)]
    resize, interpolation = size, "bilinear"
    for known in (named or own)[-1:]:
        # The margin that the crop takes off is in proportion, should another size be asked for.
        resize, interpolation = round(size * known.resize / known.crop), known.interpolation
    prepared = Preparation(resize, size, channels, interpolation=interpolation)
    return read_picture(options.image, prepared)


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
