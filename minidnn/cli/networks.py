"""Resolves the argument NET and its size options to graphs, for one size or for ranges of sizes.

NET is a network of the zoo, an ONNX file, a file of another front end, or a graph file.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from minidnn.dynamic.dim import Dim, Template, written
from minidnn.errors import GraphError, MiniDNNError, UnsupportedError
from minidnn.frontends.frontend import open_model
from minidnn.frontends.zoo import is_path, network_of
from minidnn.graph.ir import Graph
from minidnn.graph.types import numpy_dtype
from minidnn.layers.build import to_graph
from minidnn.networks import any_graph_of as sized_graph_of
from minidnn.networks import with_own_sizes
from minidnn.runtime.arrays import random_array
from minidnn.sizes.sized_graph import SizedGraph

if TYPE_CHECKING:
    from minidnn.frontends.frontend import FrontEnd
    from minidnn.frontends.onnx.model import OnnxModel


def graph_of(options: argparse.Namespace, network: Any = None) -> Graph:
    """The graph that NET, ``--batch``, ``--size`` and ``--shape`` describe.

    ``network``: the network that NET names, if the caller has made it already.  Raises GraphError
    or WeightsError if NET, or its weights, cannot be found.
    """
    name = options.network
    if network is None and is_path(name) and not is_onnx(name):
        return _of_file(options)
    _refuse(options, ["shape"], f"{name!r} takes --batch and --size")
    if network is None and is_onnx(name):
        return onnx_graph(name, options.batch, options.size)
    if network is None:
        network = network_of(name)
    return to_graph(network, shape_of(network, options.batch or 1, options.size))


def _of_file(options: argparse.Namespace) -> Graph:
    """The graph of a file that a third party's front end reads, or else of a graph file."""
    from minidnn.frontends.frontend import ask
    from minidnn.frontends.zoo import SavedFrontEnd

    name, asked = options.network, ask(options.network)
    if asked.found is not None and not isinstance(asked.found, SavedFrontEnd):
        _refuse(options, ["batch", "size"], f"{name!r} takes --shape")
        return _of_frontend(asked.found, name, options.shape)
    _refuse(options, ["shape"], f"{name!r} takes --batch and --size, if it is for ranges of them")
    try:
        return saved_graph(name, options.batch, options.size)
    except MiniDNNError as error:
        if not asked.broken:
            raise
        raise type(error)(f"{error}{asked.complaint}") from error


def saved_graph(name: str, batch: int | None = None, size: tuple[int, int] | None = None) -> Graph:
    """The graph in a graph file.  One for ranges of sizes is bound to ``batch`` and ``size``, by
    default the least sizes.

    Raises GraphError if the file does not allow these sizes.
    """
    from minidnn.sizes.sized_graph import SizedGraph
    from minidnn.storage import load_graph

    graph = load_graph(name)
    if isinstance(graph, SizedGraph):
        return sized_at(graph, batch, size)
    sides = None if size is None else "x".join(map(str, dict.fromkeys(size)))
    for option, value in (("--batch", batch), ("--size", sides)):
        if value is not None:
            raise GraphError(
                f"{option} {value}: the graph file {name!r} has its own size; valid is a network "
                "of the zoo, or a file for a range of sizes (minidnn export --batch 1:64)"
            )
    return graph


def sized_at(graph: SizedGraph, batch: int | None, size: tuple[int, int] | None) -> Graph:
    """Binds a graph for ranges of sizes: first axes to ``batch``, rows and columns to ``size``;
    sizes that are None, and all others, to the least of their range."""
    sizes = {dim.name: dim.least for dim in graph.dims}
    rows, columns = size or (None, None)
    for option, value, axis, rank in (
        ("--batch", batch, 0, None),
        ("--size", rows, 2, 4),
        ("--size", columns, 3, 4),
    ):
        if value is None:
            continue
        named = {
            template[axis]
            for template in graph.templates
            if template and rank in (None, len(template))
        }
        if any(not isinstance(each, Dim) and each != value for each in named) or not named:
            raise GraphError(f"{option} {value}: {graph!r} has its own")
        sizes |= {each.name: value for each in named if isinstance(each, Dim)}
    return graph.at(sizes)


def _of_frontend(frontend: FrontEnd, name: str, shapes: list[tuple[int, ...]] | None) -> Graph:
    """The graph of a file, read by a third party's front end."""
    shape = shapes[0] if shapes is not None and len(shapes) == 1 else shapes
    try:
        return frontend.to_graph(name, shape)
    except GraphError as error:
        if shape is not None:
            raise
        raise GraphError(f"{error}; --shape 1x3x224x224 says it, one for each input") from error
    except (MiniDNNError, OSError):
        raise
    except Exception as error:  # whatever its own code does
        told = f"{type(error).__name__}: {error}"
        raise MiniDNNError(f"front end {frontend.name!r} fails on {name!r}: {told}") from error


def _refuse(options: argparse.Namespace, arguments: list[str], reason: str) -> None:
    """Raises GraphError if one of these options was given."""
    for argument in arguments:
        if (value := getattr(options, argument)) is not None:
            raise GraphError(f"--{argument} {value}: {reason}")


def is_onnx(name: str) -> bool:
    """Whether NET is the path of an ONNX file."""
    return name.lower().endswith(".onnx") and is_path(name)


def onnx_graph(name: Any, batch: int | None = None, size: tuple[int, int] | None = None) -> Graph:
    """The graph of an ONNX file, or of a model that was read from one.

    Open sizes are bound: the first axis of inputs to ``batch`` (1 by default), and rows and columns
    of inputs of rank 4 to ``size``.  Raises GraphError if the file has other sizes, or leaves more
    sizes open.
    """
    from minidnn.frontends.onnx.convert import load_model
    from minidnn.frontends.onnx.model import OnnxModel, read_model

    model = name if isinstance(name, OnnxModel) else read_model(name)
    with in_options("--size gives rows and columns of inputs of rank 4; no option gives others"):
        return load_model(model, onnx_shapes(model, batch, size))[0]


def onnx_sizes(model: OnnxModel) -> list[Sequence[Any]]:
    """The shapes of a model's inputs that declare a rank, open sizes included."""
    return [each.sizes for each in model.inputs if each.sizes is not None]


def onnx_shapes(
    model: OnnxModel, batch: int | None, size: tuple[int, int] | None
) -> dict[str, tuple[int, ...]]:
    """The shapes by name of the inputs whose sizes :func:`onnx_graph` can all bind."""
    shapes = {}
    for declared in model.inputs:
        if declared.sizes is None:
            continue
        shape: list[Any] = list(declared.sizes)
        if shape and (batch is not None or not isinstance(shape[0], int)):
            shape[0] = batch or 1
        if len(shape) == 4:
            shape[2:] = shape[2:] if size is None else size
        if all(isinstance(each, int) for each in shape):
            shapes[declared.name] = tuple(shape)
    return shapes


@contextmanager
def in_options(sizes: str) -> Iterator[None]:
    """A context that rewrites errors about open sizes for the command line; ``sizes`` names the
    options that bind them."""
    from minidnn.frontends.onnx.convert import OpenInputsError
    from minidnn.frontends.onnx.shapes import OpenSizesError

    try:
        yield
    except OpenSizesError as error:
        raise GraphError(f"{error.told}; {sizes}") from error
    except OpenInputsError as error:
        raise UnsupportedError(
            f"{error}\n  (no option gives constants: minidnn.load_onnx does, in Python)"
        ) from error


def shape_of(network: Any, batch: int, size: tuple[int, int] | None = None) -> tuple[int, ...]:
    """The input shape of a network of the zoo, for a batch and an image size (its own by
    default)."""
    channels, *own = network.input_shape
    return (batch, channels, *(size or own))


def noise(shape: tuple[int, ...], seed: int, dtype: str = "float32") -> np.ndarray:
    """Normally distributed numbers, the same for the same seed."""
    return random_array(np.random.default_rng(seed), shape, numpy_dtype(dtype))


def any_graph_of(options: argparse.Namespace, network: Any = None) -> Graph | SizedGraph:
    """The graph that NET, ``--batch``, ``--size`` and ``--shape`` describe; ``--batch`` may be a
    range.  A file for ranges of sizes keeps them all, if no option gives a size.

    ``network``: the network that NET names, if the caller has made it already.
    """
    name, batch = options.network, options.batch
    is_file = network is None and is_path(name)
    if not isinstance(batch, Dim):
        asked = [batch, options.size, options.shape]
        if is_file and all(each is None for each in asked):
            opened, shapes = with_own_sizes(name, None)
            if shapes is not None:
                return sized_graph_of(opened, shapes)
        return graph_of(options, network)
    if options.shape is not None:
        raise GraphError(f"--shape {options.shape}: valid beside a range is --size")
    if is_file:
        return sized_graph_of(*_range_of_file(name, batch, options.size))
    if network is None:
        network = network_of(name)
    shape: Any = (batch, *shape_of(network, 1, options.size)[1:])
    return sized_graph_of(network, shape)


def _range_of_file(name: str, batch: Dim, size: tuple[int, int] | None) -> tuple[Any, Any]:
    """The model of a file, and the shapes of its inputs for a range of batches."""
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
    """The graph of a file for a range of batches, which ends at ``most`` images if it includes such
    batches; None if the file is for one size."""
    opened, shapes = with_own_sizes(name, None)
    if shapes is None:
        return None
    if (batch := batch_of(shapes.values())) is None:
        return None
    narrow = replace(batch, most=batch.up_to(most))
    graph = sized_graph_of(
        opened, {name: _with_batch(each, narrow, size) for name, each in shapes.items()}
    )
    return graph if isinstance(graph, SizedGraph) else None


def batch_of(templates: Iterable[Template]) -> Dim | None:
    """The named size of the first axis, if all inputs share one; otherwise None."""
    first = {template[0] if template else None for template in templates}
    dim = first.pop() if len(first) == 1 else None
    return dim if isinstance(dim, Dim) else None


def at_one_size(graph: Graph | SizedGraph, most: int, size: tuple[int, int] | None) -> Graph:
    """The graph itself or, of one for ranges of sizes, that for a batch of at most ``most`` images
    and for ``size`` rows and columns; other ranges are bound to their least sizes."""
    if isinstance(graph, Graph):
        return graph
    batch = batch_of(graph.templates)
    return sized_at(graph, None if batch is None else batch.up_to(most), size)


def _with_batch(template: Template, batch: Dim, size: tuple[int, int] | None) -> Template:
    """An input's shape with another batch; its other sizes are ``size``, or the least of their
    ranges."""
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
