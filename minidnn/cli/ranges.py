"""What a user typed as a network, for one size or for a range of batches."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from minidnn.cli.networks import graph_of, is_onnx, onnx_shapes, shape_of, sized_at
from minidnn.dynamic.dim import Dim, Template, written
from minidnn.errors import GraphError
from minidnn.frontends.frontend import open_model
from minidnn.frontends.zoo import is_path, network_of
from minidnn.graph.ir import Graph
from minidnn.networks import any_graph_of as sized_graph_of
from minidnn.networks import with_own_sizes
from minidnn.sizes.sized_graph import SizedGraph

__all__ = ["any_graph_of", "at_one_size", "batch_of", "batches_of_file", "described"]


def any_graph_of(options: argparse.Namespace, network: Any = None) -> Graph | SizedGraph:
    """The graph that NET, ``--batch``, which may be a range, ``--size`` and ``--shape`` mean; of a
    file for ranges, of which no option says a size, that for all of them.

    network: what NET names, when the caller has made it already.
    """
    name, batch = options.network, options.batch
    is_file = network is None and is_path(name)
    if not isinstance(batch, Dim):
        given = [batch, options.size, options.shape]
        if is_file and all(each is None for each in given):
            opened, shapes = with_own_sizes(name, None)
            if shapes is not None:
                return sized_graph_of(opened, shapes)
        return graph_of(options, network)
    if options.shape is not None:
        raise GraphError(f"--shape {options.shape}: valid beside a range is --size")
    if is_file:
        return sized_graph_of(*_of_file(name, batch, options.size))
    if network is None:
        network = network_of(name)
    shape: Any = (batch, *shape_of(network, 1, options.size)[1:])
    return sized_graph_of(network, shape)


def _of_file(name: str, batch: Dim, size: tuple[int, int] | None) -> tuple[Any, Any]:
    """A file that was read, and the shapes of its inputs for a range of batches."""
    if is_onnx(name):
        model = open_model(name)
        return model, {n: (batch, *shape[1:]) for n, shape in onnx_shapes(model, 1, size).items()}
    opened, shapes = with_own_sizes(name, None)
    if shapes is None:
        raise GraphError(
            f"--batch {batch.least}:{batch.most}: the file {name!r} has its own size; valid are a "
            "network of the zoo, an ONNX file with an open batch, and a file for a range"
        )
    return opened, {name: _with_batch(each, batch, size) for name, each in shapes.items()}


def batches_of_file(name: str, most: int, size: tuple[int, int] | None) -> SizedGraph | None:
    """The graph of a file for a range of batches, of which none has more than ``most`` images if it
    has smaller ones; None if the file is for one size."""
    opened, shapes = with_own_sizes(name, None)
    if shapes is None:
        return None
    if (batch := batch_of(shapes.values())) is None:
        return None
    narrow = replace(batch, most=batch.up_to(most))
    found = sized_graph_of(
        opened, {name: _with_batch(each, narrow, size) for name, each in shapes.items()}
    )
    return found if isinstance(found, SizedGraph) else None


def batch_of(templates: Iterable[Template]) -> Dim | None:
    """The named size that is the first of all inputs."""
    first = {template[0] if template else None for template in templates}
    found = first.pop() if len(first) == 1 else None
    return found if isinstance(found, Dim) else None


def at_one_size(graph: Graph | SizedGraph, most: int, size: tuple[int, int] | None) -> Graph:
    """A graph, or of one for ranges that for a batch of at most so many images and for rows and
    columns of this size; of other ranges the least."""
    if isinstance(graph, Graph):
        return graph
    batch = batch_of(graph.templates)
    return sized_at(graph, None if batch is None else batch.up_to(most), size)


def _with_batch(template: Template, batch: Dim, size: tuple[int, int] | None) -> Template:
    """The shape of an input with another batch, and one size for rows and columns."""
    sides = [each.least if isinstance(each, Dim) else each for each in template[1:]]
    if size is not None and len(template) == 4:
        sides[1:] = size
    return (batch, *sides)


def described(graph: Graph | SizedGraph) -> str:
    """The inputs with their types, and the ranges of named sizes."""
    if isinstance(graph, Graph):
        return ", ".join(f"{value.name}: {value.type}" for value in graph.inputs)
    inputs = ", ".join(
        f"{value.name}: {value.dtype}[{written(template)[1:-1]}]"
        for value, template in zip(graph.interface.inputs, graph.templates, strict=True)
    )
    return f"{inputs} with {', '.join(map(str, graph.dims))}"
