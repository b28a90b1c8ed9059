"""How pictures are prepared: what options say, else what a file says, else what is usual."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from minidnn.cli.arguments import count
from minidnn.errors import MiniDNNError

if TYPE_CHECKING:
    from minidnn.preparation import Preparation

NONE = "none"


def add_preparation(parser: argparse._ActionsContainer) -> None:
    """``--labels``, ``--resize``, ``--mean`` and ``--std``."""
    add = parser.add_argument
    add(
        "--labels",
        help="names of the classes: a file with one in each line, or JSON; imagenet; none (what "
        "the file or the published weights say)",
    )
    add("--resize", type=count, help="pixels of the shorter side (what the weights want)")
    for name, what in (("--mean", "subtracted from"), ("--std", "dividing")):
        add(
            name,
            type=numbers,
            metavar="NUMBERS",
            help=f"{what} channels from 0 to 1, such as 0.5 or 0.5,0.4,0.3 (what the weights want)",
        )


def add_crop(parser: argparse._ActionsContainer) -> None:
    """``--size`` of commands that read pictures."""
    parser.add_argument(
        "--size", type=count, help="rows and columns of the centre (what the weights want)"
    )


def numbers(text: str) -> tuple[float, ...]:
    """Finite numbers with commas between them."""
    try:
        found = tuple(map(float, text.split(",")))
    except ValueError:
        found = (math.nan,)
    if not all(map(math.isfinite, found)):
        raise argparse.ArgumentTypeError(
            f"{text!r} are no numbers; valid are 0.5 and 0.485,0.456,0.406"
        )
    return found


def file_says(source: str) -> Preparation | None:
    """What a text that names a network or its weights says, if it means a file."""
    from minidnn.prepared_files import load_preparation

    return load_preparation(source) if os.path.isfile(source) else None


def size_of(
    known: Preparation | None, shapes: Iterable[Sequence[Any]], asked: tuple[int, int] | None
) -> tuple[int, int] | None:
    """Rows and columns for what a file leaves open in the shapes of its inputs: those asked for,
    else those that its pictures are prepared for."""
    if asked is not None or known is None:
        return asked
    is_open = any(
        len(shape) == 4 and not all(isinstance(size, int) for size in shape[2:]) for shape in shapes
    )
    return (known.crop, known.crop) if is_open else None


def prepared(
    options: argparse.Namespace, base: Preparation, outputs: int, usual: str | None = None
) -> Preparation:
    """A preparation for a network of so many outputs, where options do not say otherwise.

    ``usual``: what ``--labels`` is where neither an option nor the preparation says it.
    MiniDNNError if something does not fit.
    """
    from minidnn.cli.labels import load_labels

    changes: dict[str, Any] = {}
    if (resize := options.resize) is not None:
        if base.crop > resize:
            raise MiniDNNError(
                f"--resize {resize} is less than the {base.crop} pixels that are cut out"
            )
        changes["resize"] = resize
    for name in ("mean", "std"):
        if (given := getattr(options, name)) is not None:
            changes[name] = given * (base.channels if len(given) == 1 else 1)
    labels = options.labels or (usual if base.classes is None else None)
    if labels is not None:
        changes["classes"] = None if labels == NONE else tuple(load_labels(labels, outputs))
    found = replace(base, **changes)
    if found.classes is not None and len(found.classes) != outputs:
        raise MiniDNNError(
            f"the file names {len(found.classes)} classes, and its network has {outputs} outputs; "
            f"--labels {NONE} leaves the names out"
        )
    return found


def told(options: argparse.Namespace, found: Preparation) -> str:
    """What is said of a preparation that a file brought."""
    names = ("size", "resize", "mean", "std", "labels")
    changed = [f"--{name}" for name in names if getattr(options, name, None) is not None]
    but = f", but for {', '.join(changed)}" if changed else ""
    return f"prepared as the file says{but}: {found}"


def fitted(known: Preparation | None, shapes: Sequence[tuple[Any, ...]]) -> Preparation | None:
    """A preparation for the size of a network's input; None if it takes no square pictures with so
    many channels."""
    if known is None or len(shapes) != 1 or len(shapes[0]) != 4:
        return None
    _, channels, rows, columns = shapes[0]
    if type(rows) is not int and type(columns) is not int:
        return known  # the size is open
    if channels != known.channels or rows != columns:
        return None
    return known if rows == known.crop else known.resized(rows)


def published(name: str, source: str, own_size: int, channels: int) -> Preparation:
    """What is usual for a network of the zoo: as for its published weights, of which ``source``
    may name some.

    Weights that nobody published are most likely prepared for like those that somebody did.
    """
    from minidnn.cli.weights import DEFAULT, known_of
    from minidnn.preparation import Preparation

    known = known_of(name, source) or known_of(name, DEFAULT)
    if known is None:
        return Preparation(own_size, own_size, channels)
    return Preparation(known.resize, known.crop, channels, interpolation=known.interpolation)


def of_zoo(name: str, source: str | None = None) -> Preparation | None:
    """How pictures are prepared for published weights, with the names of the classes; None for
    random ones.

    Args:
        name: of the network, or of its weights, as ``resnet18.DEFAULT`` and
            ``ResNet18_Weights.DEFAULT`` are.
        source: what ``--weights`` means, if that was given.
    """
    from minidnn.cli.labels import IMAGENET, read_labels
    from minidnn.cli.weights import DEFAULT, RANDOM, known_of, source_of
    from minidnn.models import get_model, list_models
    from minidnn.weights import find_known

    head, _, version = name.partition(".")
    if head in list_models():
        source = source or source_of(head, version or RANDOM)
        known = known_of(head, source)
    else:
        known = find_known(name) if "_Weights" in name else None
        head, source = (known.network if known else head), name
    if known is None and source != DEFAULT:
        return None
    channels, own_size, _ = get_model(head).input_shape
    found = published(head, source, own_size, channels)
    return replace(found, classes=tuple(read_labels(IMAGENET))) if known else found
