"""``minidnn classify``: what is in these pictures?"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

from minidnn.cli.arguments import add_device, add_tune, count, tune_of
from minidnn.cli.weights import PREFIX_HELP, RANDOM, WEIGHTS_HELP
from minidnn.errors import GraphError, MiniDNNError

if TYPE_CHECKING:
    import numpy as np

    from minidnn.executable import Executable
    from minidnn.graph.ir import Graph
    from minidnn.pictures import Preparation
    from minidnn.weights import KnownWeights

HELP = "name what is in pictures"
DESCRIPTION = """\
Classifies pictures with a network of the zoo, or one in an ONNX file or a graph file.

A picture is prepared as torchvision prepares it for the weights: resized, its centre cut out,
normalized. Of a folder, the picture files in it are taken, in order of their names.

Exit code: 0; 1 if a picture could not be read (the others are classified); 2 for other errors."""

DEFAULT_NETWORK = "resnet50"
DEFAULT_BATCH = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("images", nargs="+", metavar="IMAGE", help="picture files, or folders of them")
    add(
        "--network",
        default=DEFAULT_NETWORK,
        help=f"a network of the zoo, an ONNX file, or a graph file ({DEFAULT_NETWORK})",
    )
    add(
        "--weights",
        default="default",
        help=WEIGHTS_HELP,
    )
    add("--key", help="the entry of a checkpoint that holds the weights (state_dict)")
    add("--prefix", default="", help=PREFIX_HELP)
    add(
        "--labels",
        help="names of the classes: a file with one in each line, or JSON; imagenet (for published "
        "weights); none",
    )
    add("--top", type=count, default=5, help="classes per picture (5)")
    add("--batch", type=count, default=DEFAULT_BATCH, help=f"pictures at once ({DEFAULT_BATCH})")
    add("--resize", type=count, help="pixels of the shorter side (what the weights want)")
    add("--size", type=count, help="rows and columns of the centre (what the weights want)")
    add_device(parser)
    add_tune(parser)
    add("--json", action="store_true", help="print JSON")


@dataclass(frozen=True)
class Classifier:
    """A network with weights, and what belongs to them."""

    #: For a batch of so many pictures.
    graph: Callable[[int], Any]
    preparation: Preparation
    outputs: int
    #: What the weights are, for people: a file, torchvision's name, or "random".
    weights: str
    labels: list[str] | None
    #: Whether the network gives probabilities, which are otherwise made of what it gives.
    probabilities: bool = False


@dataclass
class Result:
    """One picture's most likely classes, or why there are none."""

    file: str
    predictions: list[dict[str, Any]] = field(default_factory=list)
    error: str = ""


def run(options: argparse.Namespace) -> int:
    import minidnn

    files = list(_expand(options.images))
    if not any(map(os.path.exists, files)):  # before weights are fetched for nothing
        raise MiniDNNError(f"IMAGE {' '.join(files)}: there is no such file")
    classifier = make_classifier(options)
    if classifier.weights == RANDOM:
        _say("the weights are random: these classes mean nothing")
    graph = classifier.graph(min(options.batch, len(files)))
    executable = minidnn.compile(
        graph, device=options.device, precision=options.precision, **tune_of(options)
    )
    results = []
    for result in _classify(classifier, executable, files, options):
        results.append(result)
        if result.error:
            _say(result.error)
        elif not options.json:
            print(_table(result), flush=True)
    if options.json:
        print(_json(options, classifier, executable.device, results))
    return 1 if any(result.error for result in results) else 0


def _say(text: str) -> None:
    print(f"minidnn classify: {text}", file=sys.stderr)


def make_classifier(options: argparse.Namespace) -> Classifier:
    """The network with its weights, as the options say.

    Raises MiniDNNError of the kinds of ``get_model`` and ``load_weights``, and where weights,
    sizes or labels do not fit the network.
    """
    from minidnn.cli.labels import IMAGENET, load_labels
    from minidnn.cli.networks import calibrated, shape_of
    from minidnn.cli.weights import DEFAULT, known_of, load, source_of
    from minidnn.frontends.zoo import is_path
    from minidnn.layers.build import to_graph
    from minidnn.models import get_model
    from minidnn.pictures import Preparation

    if is_path(options.network):
        return _of_file(options)
    name, source = options.network, source_of(options.network, options.weights)
    network = get_model(name)  # says so, if there is none; draws no weights yet
    channels, own_size, _ = network.input_shape
    known = known_of(name, source)
    if source == RANDOM:
        calibrated(network)
    elif source == DEFAULT and known is None:
        network = get_model(name, weights=DEFAULT)  # its weights came with minidnn
    else:
        network = load(network, name, source, options.key, _say, options.prefix)
    outputs = _outputs(network)
    # Weights that nobody published are most likely prepared for like those that somebody did.
    resize, crop = _sizes(known or known_of(name, DEFAULT), own_size, options)
    labels = options.labels or (IMAGENET if known else "none")
    return Classifier(
        lambda batch: to_graph(network, shape_of(network, batch, (crop, crop))),
        Preparation(resize, crop, channels),
        outputs,
        known.name if known else f"minidnn's {name}" if source == DEFAULT else source,
        None if labels == "none" else load_labels(labels, outputs),
    )


def _of_file(options: argparse.Namespace) -> Classifier:
    """The network of an ONNX file or of one that ``save_graph`` wrote.  One with a batch of its
    own is given so many pictures at once."""
    from minidnn.cli.labels import load_labels
    from minidnn.cli.networks import is_onnx, onnx_graph, saved_graph
    from minidnn.pictures import Preparation

    name = options.network
    if options.weights != "default" or options.key is not None or options.prefix:
        raise MiniDNNError(f"--weights, --key, --prefix: the file {name!r} has its weights")
    size = None if options.size is None else (options.size, options.size)
    read = onnx_graph if is_onnx(name) else saved_graph
    first = read(name, None, size)
    if not _is_classifier(first):
        types = ", ".join(str(value.type) for value in (*first.inputs, *first.outputs))
        raise MiniDNNError(
            f"file {name!r} has inputs and outputs {types}; valid are one input of square "
            "pictures (N, C, S, S) and one output (N, classes), of floating-point numbers"
        )
    batch, channels, crop, _ = first.inputs[0].shape
    outputs = first.outputs[0].type.size // batch
    resize = crop if options.resize is None else options.resize
    if crop > resize:
        raise MiniDNNError(f"--resize {resize} is less than the {crop} pixels that are cut out")

    def graph(wanted: int) -> Any:
        try:
            return read(name, wanted, size)
        except GraphError:
            if batch == wanted and is_onnx(name):
                raise
            return first

    labels = None if options.labels in (None, "none") else load_labels(options.labels, outputs)
    return Classifier(
        graph,
        Preparation(resize, crop, channels),
        outputs,
        name,
        labels,
        _ends_in_softmax(first, outputs),
    )


def _is_classifier(graph: Graph) -> bool:
    """Whether a graph takes square pictures and gives each a number for every class."""
    from minidnn.graph.types import FLOATS

    values = (*graph.inputs, *graph.outputs)
    if len(values) != 2 or any(v.dtype not in FLOATS or not v.type.size for v in values):
        return False
    shape, given = (value.shape for value in values)
    if len(shape) != 4 or shape[2] != shape[3]:
        return False
    wanted = (shape[0], prod(given) // shape[0])
    return [size for size in given if size != 1] == [size for size in wanted if size != 1]


def _ends_in_softmax(graph: Graph, classes: int) -> bool:
    """Whether the output of a graph is a softmax over the classes, in whatever shape."""
    from minidnn.graph import operators as ops

    node = graph.outputs[0].producer
    while node is not None and isinstance(node.op, (ops.View, ops.Flatten, ops.Reshape)):
        node = node.inputs[0].producer
    if node is None or not isinstance(node.op, ops.Softmax):
        return False
    return node.output.shape[node.op.dim] == classes


def _outputs(network: Any) -> int:
    *_, (_, parameter) = network.named_parameters()
    count: int = parameter.type.shape[0]
    return count


def _sizes(
    known: KnownWeights | None, own_size: int, options: argparse.Namespace
) -> tuple[int, int]:
    resize, crop = (known.resize, known.crop) if known else (own_size, own_size)
    if options.size is not None:
        # The margin that the crop takes off is in proportion.
        resize, crop = round(options.size * resize / crop), options.size
    if options.resize is not None:
        resize = options.resize
    if crop > resize:
        raise MiniDNNError(f"--resize {resize} is less than the {crop} pixels that are cut out")
    return resize, crop


def _expand(arguments: list[str]) -> Iterator[str]:
    """Files, with folders replaced by the picture files in them (not in folders below)."""
    from minidnn.pictures import extensions

    for argument in arguments:
        if os.path.isdir(argument):
            found = sorted(os.listdir(argument))
            known = extensions()
            names = [n for n in found if os.path.splitext(n)[1].lower() in known]
            if not names:
                raise MiniDNNError(
                    f"folder {argument} has no picture files among its {len(found)} entries"
                )
            yield from (os.path.join(argument, name) for name in names)
        else:
            yield argument


def _classify(
    classifier: Classifier, executable: Executable, files: list[str], options: argparse.Namespace
) -> Iterator[Result]:
    """Results in the order of the files."""
    from minidnn.backends.cpu.progress import terminal_progress

    batch = executable.graph.inputs[0].shape[0]
    # What is printed shows how far it is; else a bar does, if there is a terminal.
    watch = terminal_progress() if options.json or not sys.stdout.isatty() else None
    for first in range(0, len(files), batch):
        yield from _batch(classifier, executable, files[first : first + batch], options.top)
        if watch is not None:
            watch("classifying", min(first + batch, len(files)), len(files))


def _batch(
    classifier: Classifier, executable: Executable, files: list[str], top: int
) -> list[Result]:
    import numpy as np

    from minidnn.pictures import PictureError, read_picture

    # Pictures that cannot be read, and those missing in the last batch, stay zero.
    x = np.zeros(executable.graph.inputs[0].shape, np.float32)
    results = [Result(file) for file in files]
    for i, result in enumerate(results):
        try:
            x[i] = read_picture(result.file, classifier.preparation)[0]
        except PictureError as error:
            result.error = str(error)
    readable = [(i, result) for i, result in enumerate(results) if not result.error]
    if readable:
        y = np.asarray(executable(x), np.float64).reshape(len(x), -1)
        for i, result in readable:
            _judge(y[i], result, classifier, top)
    return results


def _judge(scores: np.ndarray, result: Result, classifier: Classifier, top: int) -> None:
    import numpy as np

    from minidnn.batch.ranking import ranked

    if not np.isfinite(scores).all():
        wrong = int((~np.isfinite(scores)).sum())
        result.error = (
            f"picture {result.file}: {wrong} of the network's {scores.size} outputs are not "
            f"finite; the weights ({classifier.weights}) may hold such values"
        )
        return
    for index, share in zip(*ranked(scores, top, classifier.probabilities), strict=True):
        prediction: dict[str, Any] = {"class": index}
        if classifier.labels is not None:
            prediction["label"] = classifier.labels[index]
        prediction["probability"] = share
        prediction["score"] = float(scores[index])
        result.predictions.append(prediction)


def _table(result: Result) -> str:
    lines = [result.file]
    for rank, found in enumerate(result.predictions, 1):
        label = f"  {found['label']}" if "label" in found else ""
        lines.append(
            f"{rank:4d}.  {100 * found['probability']:6.2f} %  class {found['class']:4d}{label}"
        )
    return "\n".join(lines)


def _json(
    options: argparse.Namespace, classifier: Classifier, device: str, results: list[Result]
) -> str:
    listed = [
        {"file": r.file, "error": r.error}
        if r.error
        else {"file": r.file, "classes": r.predictions}
        for r in results
    ]
    document = {
        "network": options.network,
        "weights": classifier.weights,
        "device": device,
        "resize": classifier.preparation.resize,
        "crop": classifier.preparation.crop,
        "pictures": listed,
    }
    return json.dumps(document, indent=1, allow_nan=False)
