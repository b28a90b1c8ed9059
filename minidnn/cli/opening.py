"""Opens NET with its weights and its preparation, for commands that write networks."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

from minidnn.cli.preparing import DEFAULT, RANDOM
from minidnn.errors import GraphError, MiniDNNError

if TYPE_CHECKING:
    from minidnn.graph.ir import Graph
    from minidnn.preparation import Preparation
    from minidnn.runtime.interface import Interface
    from minidnn.sizes.sized_graph import SizedGraph

Say = Callable[[str], None]


@dataclass(frozen=True)
class OpenedNetwork:
    """A network with the preparation of its pictures.

    Attributes:
        graph: for one size, or for ranges of sizes.
        preparation: how pictures are prepared, from a file, published weights or options; None if
            none of them says it.
        usual: the default preparation, as ``minidnn classify`` has it; None for a network that
            takes no square pictures.
    """

    graph: Graph | SizedGraph
    preparation: Preparation | None
    usual: Preparation | None

    def outputs(self) -> int:
        """How many elements the first output has for a picture."""
        from minidnn.graph.ir import Graph

        graph = self.graph
        outputs = graph.outputs if isinstance(graph, Graph) else graph.interface.outputs
        return prod(outputs[0].shape[1:])


def open_network(options: argparse.Namespace, say: Say) -> OpenedNetwork:
    """Opens NET as ``--weights``, ``--batch``, ``--size`` and ``--shape`` say.

    Raises MiniDNNError as ``get_model``, ``load_weights`` and front ends do, and if a preparation
    does not fit the network.
    """
    from minidnn.cli import preparing
    from minidnn.cli.networks import any_graph_of
    from minidnn.dynamic.dim import written
    from minidnn.preparation import check_takes
    from minidnn.sizes.sized_graph import input_templates

    network = _network(options, say)
    known, is_of_file = _known(options)
    size = options.size
    if is_of_file:
        size = _size(options, known)
    graph = any_graph_of(argparse.Namespace(**{**vars(options), "size": size}), network)
    shapes = input_templates(graph)
    if is_of_file and options.size is None:
        check_takes(known, options.network, shapes)
    preparation = preparing.fitted(known, shapes)
    if known is not None and preparation is None:
        takes = ", ".join(map(written, shapes))
        say(f"nothing says how pictures are prepared for {takes}, as it was for others: {known}")
    opened = OpenedNetwork(graph, preparation, _usual(options, shapes))
    asked = [name for name in ("resize", "mean", "std", "labels") if getattr(options, name)]
    if asked and (preparation := preparation or opened.usual) is None:
        raise GraphError(
            f"--{asked[0]}: network {options.network!r} takes {', '.join(map(written, shapes))}; "
            "valid for one input of square pictures (N, 1 or 3, S, S) alone"
        )
    if preparation is not None:
        preparation = preparing.prepared(options, preparation, opened.outputs())
        if is_of_file:
            say(preparing.told(options, preparation))
    return replace(opened, preparation=preparation)


def _known(options: argparse.Namespace) -> tuple[Preparation | None, bool]:
    """The preparation that a file or published weights have, and whether it came from a file."""
    from minidnn.cli import preparing
    from minidnn.cli.preparing import known_of, source_of
    from minidnn.frontends.zoo import is_path
    from minidnn.models import list_models

    name = options.network
    if not is_path(name) and (name not in list_models() or options.weights is None):
        return preparing.of_zoo(name), False
    source = name if is_path(name) else source_of(name, options.weights)
    if source == DEFAULT or (not is_path(name) and known_of(name, source) is not None):
        return preparing.of_zoo(name, source), False
    said = None if source == RANDOM else preparing.file_says(source)
    return said, said is not None


def _usual(options: argparse.Namespace, shapes: Sequence[tuple[Any, ...]]) -> Preparation | None:
    """The default preparation: that of published weights, or else one without a crop, normalized as
    by torchvision."""
    from minidnn.cli import preparing
    from minidnn.models import get_model, list_models
    from minidnn.preparation import Preparation

    if options.network in list_models():
        channels, own_size, _ = get_model(options.network).input_shape
        own = preparing.published(options.network, DEFAULT, own_size, channels)
        return preparing.fitted(own, shapes)
    if len(shapes) != 1 or len(shapes[0]) != 4 or shapes[0][2] != shapes[0][3]:
        return None
    _, channels, size, _ = shapes[0]
    is_known = type(size) is int and channels in (1, 3)
    return Preparation(size, size, channels) if is_known else None


def _size(options: argparse.Namespace, known: Preparation | None) -> tuple[int, int] | None:
    """``--size``, or the size that pictures are prepared for if NET leaves its size open."""
    from minidnn.cli import preparing
    from minidnn.cli.networks import is_onnx, onnx_sizes
    from minidnn.frontends.onnx.model import read_model
    from minidnn.frontends.onnx.shapes import named_shapes
    from minidnn.frontends.zoo import is_path

    size: tuple[int, int] | None = options.size
    if is_onnx(options.network):
        model = read_model(options.network)
        if named_shapes(model) is not None:
            return size  # open sizes stay ranges
        return preparing.size_of(known, onnx_sizes(model), size)
    if size is None and known is not None and not is_path(options.network):
        return known.crop, known.crop
    return size


def _network(options: argparse.Namespace, say: Say) -> Any:
    """The network of the zoo with the weights of ``--weights``; None if NET has its own weights."""
    from minidnn.cli.preparing import load, source_of
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
        return load(network, name, source, options.key, say, options.prefix)
    if options.weights is None:
        say("the weights are random; --weights default takes published ones")
    return network


def prepared_for(
    options: argparse.Namespace, interface: Interface, own: Sequence[str]
) -> tuple[Preparation, str]:
    """The preparation of pictures for a compiled network, and the message about it.

    Args:
        options: of the command; ``network`` is the file.
        interface: of the network.
        own: options that are not valid, since a compiled network fixes what they set.

    Raises:
        MiniDNNError: one of these options was given, or the network takes no pictures.
    """
    from minidnn.cli import preparing
    from minidnn.preparation import Preparation, check_takes

    for name in own:
        if value := getattr(options, name):
            raise MiniDNNError(
                f"--{name} {value}: {options.network!r} is compiled, and has its own"
            )
    shapes = [each.shape for each in (*interface.inputs, *interface.outputs)]
    if len(shapes) != 2 or len(shapes[0]) != 4 or shapes[0][2] != shapes[0][3]:
        raise MiniDNNError(
            f"{options.network!r} has inputs and outputs {shapes}; valid are one input of square "
            "pictures (N, C, S, S) and one output with a row for each"
        )
    _, channels, crop, _ = shapes[0]
    said = preparing.file_says(options.network)
    base = said or Preparation(crop, crop, channels)
    check_takes(base, options.network, shapes[:1])
    preparation = preparing.prepared(options, base, prod(shapes[1][1:]))
    return preparation, preparing.told(options, preparation) if said else ""
