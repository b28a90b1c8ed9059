"""``minidnn export``: a network, with its weights, as an ONNX file, a graph file, or compiled."""

from __future__ import annotations

import argparse
import sys

from minidnn.cli.arguments import add_network
from minidnn.cli.opening import add_weights, open_network
from minidnn.cli.preparing import add_preparation
from minidnn.cli.writing import add_file, add_written, check_written, write

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
