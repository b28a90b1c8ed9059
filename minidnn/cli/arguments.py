"""Argument types for argparse, and groups of options that several commands share."""

from __future__ import annotations

import argparse
import math
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minidnn.dynamic.dim import Dim

NETWORK_HELP = (
    "a network of the zoo (resnet18 with random weights, resnet18.DEFAULT with published ones), an "
    "ONNX file or one of another installed front end, or one that save_graph wrote"
)


def count(text: str) -> int:
    """Parses an integer of at least 1."""
    return _whole(text, 1)


def count_from_0(text: str) -> int:
    """Parses an integer of at least 0."""
    return _whole(text, 0)


def _whole(text: str, least: int) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 18 or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of at least {least}")
    return int(text)


def positive(text: str) -> float:
    """Parses a finite number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def shape(text: str) -> tuple[int, ...]:
    """Parses a shape like 1x3x224x224."""
    return tuple(count(size) for size in text.split("x"))


def size(text: str) -> tuple[int, int]:
    """Parses rows and columns: 224 or 192x256."""
    match = re.fullmatch(r"(\d{1,5})(?:x(\d{1,5}))?", text, re.ASCII)
    rows, columns = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not rows or not columns:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; valid are 224 and 192x256")
    return rows, columns


def batch_or_range(text: str) -> int | Dim:
    """Parses a batch size, like 8, or a range of batch sizes, like 1:64, as a named size."""
    least, colon, most = text.partition(":")
    if not colon:
        return count(text)
    from minidnn.dynamic.dim import Dim
    from minidnn.errors import GraphError

    try:
        return Dim("batch", count(least), count(most))
    except GraphError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no range; valid is 1:64: {error}") from error


def add_network(parser: argparse.ArgumentParser, ranges: bool = False) -> None:
    """Adds the positional argument NET, ``--batch``, ``--size`` and ``--shape``; with ``ranges``
    the batch may be a range."""
    parser.add_argument("network", metavar="NET", help=NETWORK_HELP)
    parser.add_argument(
        "--batch",
        type=batch_or_range if ranges else count,
        help="images, or their range such as 1:64 (1, or what the file says)"
        if ranges
        else "images (1; a graph file has its own size)",
    )
    parser.add_argument("--size", type=size, help="224 or 192x256 (the network's own)")
    parser.add_argument(
        "--shape",
        type=shape,
        nargs="+",
        help="one for each input of a file of another front end, such as 1x3x224x224",
    )


def add_tune(parser: argparse._ActionsContainer) -> None:
    """Adds ``--tune``."""
    parser.add_argument(
        "--tune",
        action="store_true",
        help="measure what is fastest where that is not known, and remember it (a minute or two)",
    )


def tune_of(options: argparse.Namespace) -> dict[str, Any]:
    """The argument of ``minidnn.compile`` that ``--tune`` sets, if it was given."""
    return {"tune": True} if options.tune else {}


def add_device(
    parser: argparse.ArgumentParser,
    device: str = "the best that works here",
    precision: str = "the network's own, if the device has it, else float32",
    chooses: bool = False,
) -> None:
    """Adds ``--device`` and ``--precision``; ``device`` and ``precision`` describe their defaults.

    ``chooses``: whether the precision may be "auto", which adds ``--tolerance``.
    """
    auto = "; auto: the fastest within --tolerance" if chooses else ""
    parser.add_argument("--device", help=f"reference, cpu or cuda ({device})")
    parser.add_argument(
        "--precision",
        help="reference: float32, float64; cpu: float32, bfloat16; "
        f"cuda: float32, tf32, float16, bfloat16{auto} ({precision})",
    )
    if chooses:
        add_tolerance(parser)


def add_tolerance(parser: argparse.ArgumentParser) -> None:
    """Adds ``--tolerance``, for ``--precision auto``."""
    parser.add_argument(
        "--tolerance",
        type=positive,
        help="with --precision auto: the relative error of outputs on random inputs that is "
        "allowed (0.01)",
    )


def precision_of(options: argparse.Namespace) -> dict[str, Any]:
    """The arguments ``precision`` and ``tolerance`` of ``minidnn.compile``."""
    return {"precision": options.precision, "tolerance": options.tolerance}


def add_strategy(parser: argparse.ArgumentParser) -> None:
    """Adds ``--strategy``."""
    parser.add_argument(
        "--strategy",
        default="model",
        help="how stacks are collapsed: model (by predicted time); one, five, unrestricted (the "
        "paper's); contractions (only into convolutions and linear layers); layers (not at all); "
        "cudnn (not at all: by cuDNN's function for each layer)",
    )
