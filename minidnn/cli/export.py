"""``minidnn export``: writes a network and its weights as an ONNX, graph, or compiled file.

``minidnn quantize`` writes its result by the same functions.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from minidnn.cli.arguments import add_network, add_tolerance, count
from minidnn.cli.opening import open_network
from minidnn.cli.preparing import add_preparation, add_weights
from minidnn.errors import MiniDNNError

if TYPE_CHECKING:
    from minidnn.graph.ir import Graph
    from minidnn.preparation import Preparation
    from minidnn.sizes.sized_graph import SizedGraph

ONNX, GRAPH, COMPILED = ".onnx", ".safetensors", ".mdx"


def add_file(parser: argparse.ArgumentParser) -> None:
    """Adds the positional argument FILE."""
    parser.add_argument(
        "file", metavar="FILE", help="what is written: name.onnx, name.safetensors or name.mdx"
    )


def add_written(parser: argparse.ArgumentParser) -> None:
    """Adds the options that apply to one kind of file only."""
    add = parser.add_argument
    add("--opset", type=count, help="of an ONNX file (20)")
    add("--device", help="of a compiled network: cpu, cuda (cpu)")
    add("--precision", help="of a compiled network: one of the device's, or auto (float32)")
    add_tolerance(parser)
    add("--threads", type=count, help="of a compiled network (all usable cores)")
    add("--isa", help="of a compiled network: avx2, avx512 (the best that the processor has)")


def check_written(options: argparse.Namespace, for_all: Collection[str] = ()) -> None:
    """Raises MiniDNNError if the extension of FILE is unknown, or if an option does not apply to
    its kind.  Options in ``for_all`` apply to every kind."""
    kind = _kind(options)
    if kind not in (ONNX, GRAPH, COMPILED):
        raise MiniDNNError(
            f"FILE {options.file!r}: valid are names that end in {ONNX}, {GRAPH} or {COMPILED}"
        )
    if options.opset is not None and kind != ONNX:
        raise MiniDNNError(f"--opset {options.opset}: {options.file!r} is no ONNX file")
    for name, value in _compiling(options).items():
        if kind != COMPILED and name not in for_all:
            raise MiniDNNError(f"--{name} {value}: {options.file!r} is no compiled network")


def write(
    options: argparse.Namespace, graph: Graph | SizedGraph, preparation: Preparation | None
) -> str:
    """Writes FILE; returns the message about it."""
    import minidnn
    from minidnn.cli.networks import described
    from minidnn.executable import Executable

    kind, precision, chosen = _kind(options), "", ""
    if kind == ONNX:
        minidnn.save_onnx(graph, options.file, opset=options.opset, preparation=preparation)
    elif kind == COMPILED:
        compiled = minidnn.compile(graph, **{"device": "cpu"} | _compiling(options))
        compiled.save(options.file, preparation=preparation)
        precision = f" in {compiled.precision}"
        if isinstance(compiled, Executable) and compiled.automatic_precision is not None:
            chosen = f"\n{compiled.automatic_precision}"
    else:
        minidnn.save_graph(graph, options.file, preparation=preparation)
    size = os.path.getsize(options.file) / 1e6
    return f"{options.file}: {graph.name}{precision} for {described(graph)}, {size:.1f} MB{chosen}"


def _kind(options: argparse.Namespace) -> str:
    return os.path.splitext(options.file)[1].lower()


def _compiling(options: argparse.Namespace) -> dict[str, Any]:
    names = ("device", "precision", "tolerance", "threads", "isa")
    return {name: value for name in names if (value := getattr(options, name)) is not None}


HELP = "write a network, with its weights, as an ONNX file, a graph file, or compiled"
DESCRIPTION = """\
Writes a network, with its weights, to FILE: as ONNX if its name ends in .onnx, for other engines,
or as what minidnn.save_graph writes if it ends in .safetensors.  Both are taken back by
minidnn.compile(FILE), and where other commands take NET.  If it ends in .mdx, the network is
compiled for this machine; minidnn.load(FILE) runs it without a compiler.

    minidnn export resnet50.DEFAULT any.onnx --batch 1:64

FILE is for one size of the inputs, or for all batches in a range, which serve and batch then take
as they come.

What NET, its weights, or options say of how pictures are prepared and what classes there are,
stands in FILE, too."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_network(parser, ranges=True)
    add_file(parser)
    add_weights(parser)
    add_preparation(parser)
    add_written(parser)


def run(options: argparse.Namespace) -> int:
    check_written(options)
    opened = open_network(options, _say)
    print(write(options, opened.graph, opened.preparation))
    return 0


def _say(text: str) -> None:
    print(f"minidnn export: {text}", file=sys.stderr)
