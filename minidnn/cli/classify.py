"""``minidnn classify``: classifies pictures, and prints their most likely classes."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

from minidnn.cli.arguments import add_device, add_tune, count, precision_of, tune_of
from minidnn.cli.preparing import RANDOM, add_crop, add_preparation, add_weights
from minidnn.errors import GraphError, MiniDNNError

if TYPE_CHECKING:
    import numpy as np

    from minidnn.batch.predictor import AnyExecutable
    from minidnn.graph.ir import Graph
    from minidnn.preparation import Preparation

HELP = "name what is in pictures"
DESCRIPTION = """\
Classifies pictures with a network of the zoo, or one in an ONNX file, a graph file or a compiled
file (.mdx).

A picture is resized, its centre cut out, and normalized: as the file with the network or its
weights says, or else as torchvision does it for its weights. Of a folder, the picture files in it
are taken, in order of their names.

Exit code: 0; 1 if a picture could not be read (the others are classified); 2 for other errors."""

DEFAULT_NETWORK = "resnet50"
DEFAULT_BATCH = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("images", nargs="+", metavar="IMAGE", help="picture files, or folders of them")
    add(
        "--network",
        default=DEFAULT_NETWORK,
        help="a network of the zoo, an ONNX file, a graph file, or a compiled one (.mdx) "
        f"({DEFAULT_NETWORK})",
    )
    add_weights(parser, "default")
    add_preparation(parser)
    add_crop(parser)
    add("--top", type=count, default=5, help="classes per picture (5)")
    add("--batch", type=count, default=DEFAULT_BATCH, help=f"pictures at once ({DEFAULT_BATCH})")
    add_device(parser, chooses=True)
    add_tune(parser)
    add("--json", action="store_true", help="print JSON")


@dataclass(frozen=True)
class Classifier:
    """A network with its weights, and how pictures are prepared for them."""

    #: Returns the graph for a batch size, or an executable if the network is a compiled file.
    graph: Callable[[int], Any]
    preparation: Preparation
    outputs: int
    #: A description of the weights: a file, torchvision's name, or "random".
    weights: str
    #: The message about a preparation that came from a file; "" if none did.
    told: str
    #: Whether the outputs are probabilities already; otherwise they are computed from the outputs.
    probabilities: bool = False


@dataclass
class Result:
    """The most likely classes of a picture, or the error with which it could not be classified."""

    file: str
    predictions: list[dict[str, Any]] = field(default_factory=list)
    error: str = ""


def run(options: argparse.Namespace) -> int:
    import minidnn
    from minidnn.batch.predictor import AnyExecutable

    files = list(expand(options.images))
    if not any(map(os.path.exists, files)):  # before weights are fetched in vain
        raise MiniDNNError(f"IMAGE {' '.join(files)}: there is no such file")
    classifier = make_classifier(options)
    if classifier.weights == RANDOM:
        _say("the weights are random: these classes mean nothing")
    if classifier.told:
        _say(classifier.told)
    executable = classifier.graph(min(options.batch, len(files)))
    if not isinstance(executable, AnyExecutable):
        executable = minidnn.compile(
            executable, device=options.device, **precision_of(options), **tune_of(options)
        )
        if executable.automatic_precision is not None:
            _say(str(executable.automatic_precision))
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
    """The classifier that the options describe.

    Raises MiniDNNError of the kinds of ``get_model`` and ``load_weights``, and where weights,
    sizes or labels do not fit the network.
    """
    from minidnn.cli import preparing
    from minidnn.cli.networks import shape_of
    from minidnn.cli.preparing import DEFAULT, IMAGENET, known_of, load, source_of
    from minidnn.compiled_file import is_compiled
    from minidnn.frontends.zoo import is_path
    from minidnn.layers.build import to_graph
    from minidnn.layers.calibration import calibrate_on_noise
    from minidnn.models import get_model
    from minidnn.preparation import check_takes

    if is_compiled(options.network):
        return _of_compiled(options)
    if is_path(options.network):
        return _of_file(options)
    name, source = options.network, source_of(options.network, options.weights)
    network = get_model(name)  # raises if there is none; weights are drawn later
    channels, own_size, _ = network.input_shape
    known = known_of(name, source)
    if source == RANDOM:
        calibrate_on_noise(network)
    elif source == DEFAULT and known is None:
        network = get_model(name, weights=DEFAULT)  # its weights came with minidnn
    else:
        network = load(network, name, source, options.key, _say, options.prefix)
    said = None if known or source in (RANDOM, DEFAULT) else preparing.file_says(source)
    base = said or preparing.published(name, source, own_size, channels)
    if options.size is not None:
        base = base.resized(options.size)
    preparation = preparing.prepared(options, base, _outputs(network), IMAGENET if known else None)
    size = (preparation.crop, preparation.crop)
    check_takes(preparation, name, [shape_of(network, 1, size)])
    return Classifier(
        lambda batch: to_graph(network, shape_of(network, batch, size)),
        preparation,
        _outputs(network),
        known.name if known else f"minidnn's {name}" if source == DEFAULT else source,
        preparing.told(options, preparation) if said else "",
    )


def _of_file(options: argparse.Namespace) -> Classifier:
    """The classifier of an ONNX file or of a graph file.  If the file has a fixed batch size, that
    many pictures run at once."""
    from minidnn.cli import preparing
    from minidnn.cli.networks import is_onnx, onnx_graph, onnx_sizes, saved_graph
    from minidnn.frontends.onnx.model import read_model
    from minidnn.preparation import Preparation, check_takes
    from minidnn.sizes.sized_graph import input_templates
    from minidnn.storage import load_graph

    name = options.network
    if options.weights != "default" or options.key is not None or options.prefix:
        raise MiniDNNError(f"--weights, --key, --prefix: the file {name!r} has its weights")
    said = preparing.file_says(name)
    size = None if options.size is None else (options.size, options.size)
    shapes: Sequence[Sequence[Any]]
    if is_onnx(name):
        read, shapes = onnx_graph, onnx_sizes(read_model(name))
    else:
        read, shapes = saved_graph, input_templates(load_graph(name))
    size = preparing.size_of(said, shapes, size)
    first = read(name, None, size)
    if not _is_classifier(first):
        types = ", ".join(str(value.type) for value in (*first.inputs, *first.outputs))
        raise MiniDNNError(
            f"file {name!r} has inputs and outputs {types}; valid are one input of square "
            "pictures (N, C, S, S) and one output (N, classes), of floating-point numbers"
        )
    batch, channels, crop, _ = first.inputs[0].shape
    outputs = first.outputs[0].type.size // batch
    base = said or Preparation(crop, crop, channels)
    if said and options.size is not None:
        base = said.resized(options.size)
    check_takes(base, name, [first.inputs[0].shape])
    preparation = preparing.prepared(options, base, outputs)

    def graph(wanted: int) -> Any:
        try:
            return read(name, wanted, size)
        except GraphError:
            if batch == wanted and is_onnx(name):
                raise
            return first

    return Classifier(
        graph,
        preparation,
        outputs,
        name,
        preparing.told(options, preparation) if said else "",
        _ends_in_softmax(first, outputs),
    )


def _of_compiled(options: argparse.Namespace) -> Classifier:
    """The classifier of a file that ``minidnn export`` compiled."""
    import minidnn
    from minidnn.batch.predictor import interface_of
    from minidnn.cli.opening import prepared_for

    if options.weights != "default":
        raise MiniDNNError(f"--weights: the file {options.network!r} has its weights")
    compiled = minidnn.load(options.network, device=options.device)
    interface = interface_of(compiled)
    own = ("precision", "tolerance", "key", "prefix", "size", "tune")
    preparation, told = prepared_for(options, interface, own)
    outputs = interface.outputs[0].shape
    return Classifier(lambda batch: compiled, preparation, prod(outputs[1:]), options.network, told)


def _is_classifier(graph: Graph) -> bool:
    """Whether a graph takes square pictures and returns a number for each picture and class."""
    from minidnn.graph.types import FLOATS

    values = (*graph.inputs, *graph.outputs)
    if len(values) != 2 or any(v.dtype not in FLOATS or not v.type.size for v in values):
        return False
    shape, result = (value.shape for value in values)
    if len(shape) != 4 or shape[2] != shape[3]:
        return False
    expected = (shape[0], prod(result) // shape[0])
    return [size for size in result if size != 1] == [size for size in expected if size != 1]


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


def expand(arguments: list[str]) -> Iterator[str]:
    """Yields file names; a folder is replaced by the picture files in it (not in its
    subfolders)."""
    from minidnn.pictures import extensions

    for argument in arguments:
        if os.path.isdir(argument):
            entries = sorted(os.listdir(argument))
            known = extensions()
            names = [n for n in entries if os.path.splitext(n)[1].lower() in known]
            if not names:
                raise MiniDNNError(
                    f"folder {argument} has no picture files among its {len(entries)} entries"
                )
            yield from (os.path.join(argument, name) for name in names)
        else:
            yield argument


def _classify(
    classifier: Classifier, executable: AnyExecutable, files: list[str], options: argparse.Namespace
) -> Iterator[Result]:
    """Yields results in the order of the files."""
    from minidnn.backends.cpu.compilers.process import terminal_progress
    from minidnn.batch.predictor import most_rows

    batch = most_rows(executable, options.batch)
    # Printed results show the progress; without them, a bar does, if there is a terminal.
    watch = terminal_progress() if options.json or not sys.stdout.isatty() else None
    for first in range(0, len(files), batch):
        yield from _batch(classifier, executable, files[first : first + batch], options.top)
        if watch is not None:
            watch("classifying", min(first + batch, len(files)), len(files))


def _batch(
    classifier: Classifier, executable: AnyExecutable, files: list[str], top: int
) -> list[Result]:
    import numpy as np

    from minidnn.batch.predictor import interface_of, rows_for
    from minidnn.pictures import PictureError, read_picture

    # Rows of unreadable pictures, and unused rows of a fixed batch size, stay zero.
    shape = interface_of(executable).inputs[0].shape
    x = np.zeros((rows_for(executable, len(files)), *shape[1:]), np.float32)
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

    from minidnn.batch.predictor import ranked

    if not np.isfinite(scores).all():
        wrong = int((~np.isfinite(scores)).sum())
        result.error = (
            f"picture {result.file}: {wrong} of the network's {scores.size} outputs are not "
            f"finite; the weights ({classifier.weights}) may hold such values"
        )
        return
    for index, share in zip(*ranked(scores, top, classifier.probabilities), strict=True):
        prediction: dict[str, Any] = {"class": index}
        if classifier.preparation.classes is not None:
            prediction["label"] = classifier.preparation.classes[index]
        prediction["probability"] = share
        prediction["score"] = float(scores[index])
        result.predictions.append(prediction)


def _table(result: Result) -> str:
    lines = [result.file]
    for rank, entry in enumerate(result.predictions, 1):
        label = f"  {entry['label']}" if "label" in entry else ""
        lines.append(
            f"{rank:4d}.  {100 * entry['probability']:6.2f} %  class {entry['class']:4d}{label}"
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
