"""``minidnn export``: a network, with its weights, as an ONNX file, a graph file, or compiled."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from minidnn.cli.arguments import add_network, count
from minidnn.cli.weights import PREFIX_HELP, WEIGHTS_HELP
from minidnn.errors import GraphError, MiniDNNError

HELP = "write a network, with its weights, as an ONNX file, a graph file, or compiled"
DESCRIPTION = """\
Writes a network, with its weights, to FILE: as ONNX if its name ends in .onnx, for other engines,
or as what minidnn.save_graph writes if it ends in .safetensors.  Both are taken back by
minidnn.compile(FILE), and where other commands take NET.  If it ends in .mdx, the network is
compiled for this machine; minidnn.load(FILE) runs it without a compiler.

    minidnn export resnet50.DEFAULT any.onnx --batch 1:64

FILE is for one size of the inputs, or for all batches in a range, which serve and batch then take
as they come."""

ONNX, GRAPH, COMPILED = ".onnx", ".safetensors", ".mdx"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_network(parser, ranges=True)
    add = parser.add_argument
    add("file", metavar="FILE", help="what is written: name.onnx, name.safetensors or name.mdx")
    add("--weights", help=f"of a network of the zoo: {WEIGHTS_HELP} (that)")
    add("--key", help="the entry of a checkpoint that holds the weights (state_dict)")
    add("--prefix", default="", help=PREFIX_HELP)
    add("--opset", type=count, help="of an ONNX file (20)")
    add("--device", help="of a compiled network: cpu, cuda (cpu)")
    add("--precision", help="of a compiled network: one of the device's (float32)")
    add("--threads", type=count, help="of a compiled network (all usable cores)")
    add("--isa", help="of a compiled network: avx2, avx512 (the best that the processor has)")


def run(options: argparse.Namespace) -> int:
    import minidnn
    from minidnn.cli.ranges import any_graph_of, described

    kind = os.path.splitext(options.file)[1].lower()
    if kind not in (ONNX, GRAPH, COMPILED):
        raise MiniDNNError(
            f"FILE {options.file!r}: valid are names that end in {ONNX}, {GRAPH} or {COMPILED}"
        )
    if options.opset is not None and kind != ONNX:
        raise MiniDNNError(f"--opset {options.opset}: {options.file!r} is no ONNX file")
    names = ("device", "precision", "threads", "isa")
    own = {name: given for name in names if (given := getattr(options, name)) is not None}
    for name, given in own.items():
        if kind != COMPILED:
            raise MiniDNNError(f"--{name} {given}: {options.file!r} is no compiled network")
    graph = any_graph_of(options, _network(options))
    if kind == ONNX:
        minidnn.save_onnx(graph, options.file, opset=options.opset)
    elif kind == COMPILED:
        minidnn.compile(graph, **{"device": "cpu"} | own).save(options.file)
    else:
        minidnn.save_graph(graph, options.file)
    shapes = described(graph)
    size = os.path.getsize(options.file) / 1e6
    print(f"{options.file}: {graph.name} for {shapes}, {size:.1f} MB")
    return 0


def _network(options: argparse.Namespace) -> Any:
    """The network of the zoo with the weights that are asked for; None for one that has its own."""
    from minidnn.cli.weights import DEFAULT, RANDOM, load, source_of
    from minidnn.frontends.zoo import is_path
    from minidnn.models import get_model, list_models

    name = options.network
    if is_path(name) or name not in list_models():
        if options.weights is not None or options.key is not None or options.prefix:
            raise GraphError(f"--weights, --key, --prefix: {name!r} has its weights")
        return None
    source = RANDOM if options.weights is None else source_of(name, options.weights)
    if name == "digits" and source in (RANDOM, DEFAULT):
        return get_model(name, weights=DEFAULT if source == DEFAULT else None)
    network = get_model(name)
    if source != RANDOM:
        return load(network, name, source, options.key, _say, options.prefix)
    if options.weights is None:
        _say("the weights are random; --weights default takes published ones")
    return network


def _say(text: str) -> None:
    print(f"minidnn export: {text}", file=sys.stderr)
