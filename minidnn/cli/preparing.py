"""The weights of a network, the preparation of its pictures, and the names of its classes.

They come from options, else from files or published weights, else from defaults.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minidnn.cli.arguments import count
from minidnn.errors import DownloadError, MiniDNNError

if TYPE_CHECKING:
    import numpy as np

    from minidnn.preparation import Preparation
    from minidnn.weights import KnownWeights


#: Values of ``--weights`` besides files and names.
RANDOM, DEFAULT = "random", "DEFAULT"
WEIGHTS_HELP = (
    "a file (.safetensors, .pth); torchvision's name of published weights, fetched once; "
    "default: the network's published ones; random"
)


def source_of(network: str, weights: str) -> str:
    """The source that ``--weights`` means: RANDOM, DEFAULT, or an argument of ``load_weights``."""
    if weights.lower() in ("random", "default"):
        return RANDOM if weights.lower() == "random" else DEFAULT
    if weights.startswith("IMAGENET1K_"):
        return f"{network}.{weights}"
    return weights


def known_of(network: str, source: str) -> KnownWeights | None:
    """The published weights that a source names; None if it is a file, or RANDOM."""
    from minidnn.weights import KNOWN_WEIGHTS, find_known

    if source == RANDOM:
        return None
    if source == DEFAULT:
        versions = [known for known in KNOWN_WEIGHTS if known.network == network]
        return versions[-1] if versions else None
    known = find_known(source)
    if known is not None and known.network != network:
        raise MiniDNNError(
            f"--weights {source} are those of {known.network}, not of --network {network}"
        )
    return known


def load(
    network: Any,
    name: str,
    source: str,
    key: str | None,
    say: Callable[[str], None],
    prefix: str = "",
) -> Any:
    """Loads weights into the network, which is made anew if they have another number of classes."""
    from minidnn.layers.state import below
    from minidnn.models import get_model

    state = below(prefix, _weights(name, source, key, say))
    *_, (last, parameter) = network.named_parameters()
    options: dict[str, Any] = {}
    if last in state and state[last].shape != parameter.type.shape and state[last].ndim == 1:
        options["num_classes"] = len(state[last])
    if name == "inception_v3":  # as in torchvision, whenever weights are given
        options["transform_input"] = True
    if options:
        network = get_model(name, **options)
    network.load_state_dict(state)
    return network


def _weights(
    name: str, source: str, key: str | None, say: Callable[[str], None]
) -> Mapping[str, np.ndarray]:
    """Weights from a file, or published ones; a message says when these must be fetched."""
    from minidnn.weights import load_weights
    from minidnn.weights.download import is_fetched

    known = known_of(name, source)
    if known is not None and not is_fetched(known.url, known.hash_prefix):
        say(f"fetching the weights {known.name} ({known.megabytes:.0f} MiB) from {known.url}, once")
    try:
        return load_weights(name if source == DEFAULT else source, key=key)
    except DownloadError as error:
        raise DownloadError(
            f"{error.__cause__ or error}\n  --weights FILE takes weights that are on this machine,"
            " --weights random takes none; --network digits has weights that came with minidnn"
        ) from error


NONE = "none"
IMAGENET = "imagenet"
_LONGEST_FILE = 16 << 20


def add_weights(parser: argparse._ActionsContainer, default: str | None = None) -> None:
    """Adds ``--weights``, ``--key`` and ``--prefix``; without a default NET may have weights of its
    own."""
    add = parser.add_argument
    what = WEIGHTS_HELP if default else f"of a network of the zoo: {WEIGHTS_HELP} (that)"
    add("--weights", default=default, help=what)
    add("--key", help="the entry of a checkpoint that holds the weights (state_dict)")
    add("--prefix", default="", help="what the names of the weights begin with (module.)")


def add_preparation(parser: argparse._ActionsContainer) -> None:
    """Adds ``--labels``, ``--resize``, ``--mean`` and ``--std``."""
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
    """Adds ``--size``, for commands that read pictures."""
    parser.add_argument(
        "--size", type=count, help="rows and columns of the centre (what the weights want)"
    )


def numbers(text: str) -> tuple[float, ...]:
    """Parses finite numbers, separated by commas."""
    try:
        values = tuple(map(float, text.split(",")))
    except ValueError:
        values = (math.nan,)
    if not all(map(math.isfinite, values)):
        raise argparse.ArgumentTypeError(
            f"{text!r} are no numbers; valid are 0.5 and 0.485,0.456,0.406"
        )
    return values


def file_says(source: str) -> Preparation | None:
    """The preparation in a file of a network or of weights; None if there is none, or no file."""
    from minidnn.prepared_files import load_preparation

    return load_preparation(source) if os.path.isfile(source) else None


def size_of(
    known: Preparation | None, shapes: Iterable[Sequence[Any]], asked: tuple[int, int] | None
) -> tuple[int, int] | None:
    """Rows and columns that bind open sizes of inputs: ``asked``, else those of the preparation, if
    the file leaves any open."""
    if asked is not None or known is None:
        return asked
    is_open = any(
        len(shape) == 4 and not all(isinstance(size, int) for size in shape[2:]) for shape in shapes
    )
    return (known.crop, known.crop) if is_open else None


def prepared(
    options: argparse.Namespace, base: Preparation, outputs: int, usual: str | None = None
) -> Preparation:
    """The preparation ``base`` with the changes of options, for a network of ``outputs`` outputs.

    ``usual``: the value of ``--labels`` if neither an option nor the preparation names the classes.
    Raises MiniDNNError if an option does not fit.
    """

    changes: dict[str, Any] = {}
    if (resize := options.resize) is not None:
        if base.crop > resize:
            raise MiniDNNError(
                f"--resize {resize} is less than the {base.crop} pixels that are cut out"
            )
        changes["resize"] = resize
    for name in ("mean", "std"):
        if (values := getattr(options, name)) is not None:
            changes[name] = values * (base.channels if len(values) == 1 else 1)
    labels = options.labels or (usual if base.classes is None else None)
    if labels is not None:
        changes["classes"] = None if labels == NONE else tuple(load_labels(labels, outputs))
    result = replace(base, **changes)
    if result.classes is not None and len(result.classes) != outputs:
        raise MiniDNNError(
            f"the file names {len(result.classes)} classes, and its network has {outputs} outputs; "
            f"--labels {NONE} leaves the names out"
        )
    return result


def told(options: argparse.Namespace, found: Preparation) -> str:
    """The message about a preparation that came from a file."""
    names = ("size", "resize", "mean", "std", "labels")
    changed = [f"--{name}" for name in names if getattr(options, name, None) is not None]
    but = f", but for {', '.join(changed)}" if changed else ""
    return f"prepared as the file says{but}: {found}"


def fitted(known: Preparation | None, shapes: Sequence[tuple[Any, ...]]) -> Preparation | None:
    """The preparation for the size of a network's input; None if the network does not take square
    pictures with the same number of channels."""
    if known is None or len(shapes) != 1 or len(shapes[0]) != 4:
        return None
    _, channels, rows, columns = shapes[0]
    if type(rows) is not int and type(columns) is not int:
        return known  # the size is open
    if channels != known.channels or rows != columns:
        return None
    return known if rows == known.crop else known.resized(rows)


def published(name: str, source: str, own_size: int, channels: int) -> Preparation:
    """The preparation for the published weights of a network: those of ``source``, if it names
    some.

    It is also the default for other weights of the network.
    """
    from minidnn.preparation import Preparation

    known = known_of(name, source) or known_of(name, DEFAULT)
    if known is None:
        return Preparation(own_size, own_size, channels)
    return Preparation(known.resize, known.crop, channels, interpolation=known.interpolation)


def of_zoo(name: str, source: str | None = None) -> Preparation | None:
    """The preparation for published weights, with the names of the classes; None for random ones.

    Args:
        name: of the network, or of its weights: ``resnet18.DEFAULT``, ``ResNet18_Weights.DEFAULT``.
        source: the source that ``--weights`` means, if it was given.
    """
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
    preparation = published(head, source, own_size, channels)
    return replace(preparation, classes=tuple(read_labels(IMAGENET))) if known else preparation


def load_labels(source: str, count: int) -> list[str]:
    """The names of a network's classes, in the order of its outputs.

    Args:
        source: ``"imagenet"``, or a file: UTF-8 text with a name in each line, or JSON (by its
            extension): a list of names, or an object from numbers to names or to lists that end
            with a name (``{"0": ["n01440764", "tench"], ...}``).
        count: how many outputs the network has.

    Raises:
        MiniDNNError: the file cannot be read, or does not have ``count`` names.
    """
    names = read_labels(source)
    if len(names) != count:
        raise MiniDNNError(
            f"--labels {source} has {len(names)} names, but the network has {count} outputs"
        )
    return names


def read_labels(source: str) -> list[str]:
    """The names of classes from a source as of :func:`load_labels`, without a check of their
    number."""
    if source == IMAGENET:
        from minidnn.cli.imagenet import IMAGENET_LABELS

        return list(IMAGENET_LABELS)
    return _read(Path(source))


def _read(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            data = file.read(_LONGEST_FILE + 1)
        if len(data) > _LONGEST_FILE:
            raise MiniDNNError(f"--labels {path} is longer than {_LONGEST_FILE >> 20} MiB")
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise MiniDNNError(f"--labels {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise MiniDNNError(f"--labels {path} is not UTF-8 text: {error}") from None
    if path.suffix.lower() != ".json":
        return [line.strip() for line in text.rstrip().splitlines()]
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MiniDNNError(f"--labels {path} is not valid JSON: {error}") from None
    return _from_json(document, path)


def _from_json(document: Any, path: Path) -> list[str]:
    if isinstance(document, dict):
        missing = next((i for i in range(len(document)) if str(i) not in document), None)
        if missing is not None:
            raise MiniDNNError(
                f"--labels {path}: the object of {len(document)} names has no key "
                f"{str(missing)!r}; valid are the keys '0', '1', ..."
            )
        document = [document[str(i)] for i in range(len(document))]
    if not isinstance(document, list):
        raise MiniDNNError(f"--labels {path}: valid is a list of names, or an object of them")
    names = [entry[-1] if isinstance(entry, list) and entry else entry for entry in document]
    for i, name in enumerate(names):
        if not isinstance(name, str):
            raise MiniDNNError(f"--labels {path}: entry {i} is {name!r:.60}, which is no name")
    return names
