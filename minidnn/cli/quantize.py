"""``minidnn quantize``: writes an int8 network, calibrated on data."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from minidnn.cli.arguments import add_network, count, count_from_0
from minidnn.cli.datasets import BUNDLED_HELP, is_bundled, split_folder
from minidnn.cli.export import add_file, add_written, check_written, write
from minidnn.cli.opening import open_network
from minidnn.cli.preparing import add_preparation, add_weights

if TYPE_CHECKING:
    from minidnn.cli.calibration_data import CalibrationData
    from minidnn.graph.ir import Graph

HELP = "write a network whose convolutions and linear layers multiply bytes"
DESCRIPTION = """\
Quantizes a trained network: its convolutions and linear layers compute with int8 and uint8, scaled
by what its values are on --data.  FILE is written as by minidnn export: ONNX in QDQ form, a graph
file, or a compiled network, with how pictures are prepared and what the classes are.

Where the classes of data are known, it says the accuracy before and after, on --validate or else on
the same data.  Folders of classes are those that the network names; the folders' order counts if it
names none."""

DATA_HELP = (
    "a folder of pictures, or of a folder for each class; .npy: an array of inputs; .npz: arrays "
    f"x, or by the names of inputs, and y, the classes; {BUNDLED_HELP}"
)
#: The most rows of a batch in which a network for a range of batches is calibrated.
MOST_ROWS = 32
RANGES = ("error", "minmax", "percentile", "entropy")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_network(parser, ranges=True)
    add_file(parser)
    add = parser.add_argument
    add("--data", required=True, help=DATA_HELP)
    add("--validate", metavar="DATA", help="what accuracy is measured on, as --data (that)")
    add("--samples", type=count, default=512, help="of --data that scales are chosen by (512)")
    add_weights(parser)
    add_preparation(parser)
    add(
        "--ranges",
        choices=RANGES,
        default=RANGES[0],
        help="how scales are chosen: by the least error, all values, 99.99 %% of them, the least "
        "change of their distribution (error)",
    )
    add("--keep", nargs="+", default=[], metavar="LAYER", help="layers that stay in float32")
    add(
        "--accuracy",
        choices=("normal", "high"),
        default="normal",
        help="high: layers stay in float32 of which rounding changes the result by a twentieth "
        "(normal)",
    )
    add("--workers", type=count_from_0, default=2, help="threads that read pictures (2)")
    add_written(parser)


def run(options: argparse.Namespace) -> int:
    import minidnn
    from minidnn.cli.calibration_data import calibration_data
    from minidnn.cli.networks import at_one_size

    check_written(options, for_all=("device",))
    opened = open_network(options, _say)
    network, preparation = opened.graph, opened.preparation or opened.usual
    size = None if preparation is None else (preparation.crop, preparation.crop)
    graph = at_one_size(network, MOST_ROWS, size)
    source, validate = split_folder(options.data, options.validate)
    data = calibration_data(source, graph, preparation, options.workers)
    others = data
    if validate is not None or is_bundled(source):
        held_out = validate or source
        others = calibration_data(held_out, graph, preparation, options.workers, held_out=True)
    if not data.are_pictures:
        preparation = opened.preparation  # the default preparation is for pictures only
    elif opened.preparation is None:
        _say(f"nothing says how pictures are prepared; they are as is usual: {preparation}")
    rows = graph.inputs[0].shape[0]
    small = minidnn.quantize(
        network,
        [arrays for _, arrays in data.batches(rows, options.samples)],
        ranges=options.ranges,
        keep=options.keep,
        accuracy=options.accuracy,
        device=options.device,
    )
    if others.labels is None:
        _say(f"accuracy is not measured: {others.why_no_labels}")
    else:
        quantized = at_one_size(small, MOST_ROWS, size)
        before, after = (_right(options, each, others) for each in (graph, quantized))
        print(
            f"accuracy: {100 * before / others.count:.1f} % of {others.count:,} before, "
            f"{100 * after / others.count:.1f} % after"
        )
    print(write(options, small, preparation))
    return 0


def _say(text: str) -> None:
    print(f"minidnn quantize: {text}", file=sys.stderr, flush=True)


def _right(options: argparse.Namespace, graph: Graph, data: CalibrationData) -> int:
    """How many samples a network classifies correctly."""
    import minidnn
    from minidnn.backends.cpu.compilers.process import terminal_progress
    from minidnn.executable import results_of

    assert data.labels is not None
    program = minidnn.compile(graph, device=options.device)
    watch, right, done = terminal_progress(), 0, 0
    for numbers, arrays in data.batches(graph.inputs[0].shape[0]):
        scores = results_of(program, arrays)[0].reshape(len(numbers), -1)
        new = min(len(numbers), data.count - done)  # the last batch is filled up
        right += int((scores[:new].argmax(1) == data.labels[numbers[:new]]).sum())
        done += new
        watch("measuring accuracy", done, data.count)
    return right
