"""Kinds of arguments, and groups of them that several commands have."""

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
    """A whole number of at least 1."""
    return _whole(text, 1)


def count_from_0(text: str) -> int:
    """A whole number of at least 0."""
    return _whole(text, 0)


def _whole(text: str, least: int) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 18 or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
    return int(text)


def positive(text: str) -> float:
    """A finite number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def shape(text: str) -> tuple[int, ...]:
    """Sizes like 1x3x224x224."""
    return tuple(count(size) for size in text.split("x"))


def size(text: str) -> tuple[int, int]:
    """Rows and columns: 224 or 192x256."""
    match = re.fullmatch(r"(\d{1,5})(?:x(\d{1,5}))?", text, re.ASCII)
    rows, columns = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not rows or not columns:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; valid are 224 and 192x256")
    return rows, columns


def batch_or_range(text: str) -> int | Dim:
    """Images, like 8, or the range of their number, like 1:64, as a named size."""
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
    """The positional argument NET and what belongs to its size; with ``ranges`` the batch may be a
    range."""
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
    """``--tune``."""
    parser.add_argument(
        "--tune",
        action="store_true",
        help="measure what is fastest where that is not known, and remember it (a minute or two)",
    )


def tune_of(options: argparse.Namespace) -> dict[str, Any]:
    """What ``--tune`` adds to the arguments of ``minidnn.compile``."""
    return {"tune": True} if options.tune else {}


def add_device(
    parser: argparse.ArgumentParser,
    device: str = "the best that works here",
    precision: str = "the network's own, if the device has it, else float32",
    chooses: bool = False,
) -> None:
    """``--device`` and ``--precision``, with what their defaults are.

    ``chooses``: whether the precision may be "auto", and there is ``--tolerance``.
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
    """``--tolerance`` of ``--precision auto``."""
    parser.add_argument(
        "--tolerance",
        type=positive,
        help="with --precision auto: the relative error of outputs on random inputs that is "
        "allowed (0.01)",
    )


def precision_of(options: argparse.Namespace) -> dict[str, Any]:
    """What ``--precision`` and ``--tolerance`` are for ``minidnn.compile``."""
    return {"precision": options.precision, "tolerance": options.tolerance}


def add_strategy(parser: argparse.ArgumentParser) -> None:
    """``--strategy``."""
    parser.add_argument(
        "--strategy",
        default="model",
        help="how stacks are collapsed: model (by predicted time); one, five, unrestricted (the "
        "paper's); contractions (only into convolutions and linear layers); layers (not at all); "
        "cudnn (not at all: by cuDNN's function for each layer)",
    )
