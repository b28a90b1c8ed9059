"""A graph for all sizes in the ranges of named sizes, as one document.

A network is traced for several sizes, and the documents of these graphs are merged into one, in
which a polynomial of the sizes replaces each integer that depends on them:
``{"$size": [[[factor, name...]...], divisor]}``, see
:class:`minidnn.sizes.polynomial.SizePolynomial`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from minidnn.dynamic.dim import Dim, Template, check_inputs, sizes_of, written_inputs
from minidnn.errors import GraphError
from minidnn.graph.ir import Constant, Graph, Rewriter, Stored, Value, drop_unread
from minidnn.graph.operator import Reshaping
from minidnn.graph.operators import Expand, View
from minidnn.graph.registry import brief, is_text
from minidnn.graph.storage import from_document, to_document
from minidnn.graph.types import TensorType
from minidnn.passes.simplify import is_identity
from minidnn.runtime.interface import interface_of
from minidnn.runtime.plan import described, has_same_numbers
from minidnn.sizes.polynomial import SizePolynomial, SizeSamples

__all__ = ["SizedGraph"]

SIZE = "$size"
"""The key of a polynomial in a document; no attribute has this name."""


def merged(documents: Sequence[Any], samples: SizeSamples, where: str = "the graph") -> Any:
    """The document for all sizes, from the documents for the points of ``samples``.

    GraphError if anything but integers differs, or an integer is no polynomial of sizes; its text
    names the node, or says ``where``.
    """
    first = documents[0]
    if isinstance(first, dict):
        if any(not isinstance(each, dict) or list(each) != list(first) for each in documents):
            raise _other(where, documents)
        if isinstance(first.get("name"), str) and "operator" in first:
            where = f"node {first['name']!r} ({', '.join(first['operator'])})"
        return {key: merged([each[key] for each in documents], samples, where) for key in first}
    if isinstance(first, list):
        if any(not isinstance(each, list) or len(each) != len(first) for each in documents):
            raise _other(where, documents)
        return [merged(each, samples, where) for each in zip(*documents, strict=True)]
    if all(type(each) is type(first) and each == first for each in documents):
        return first
    if any(type(each) is not int for each in documents):
        raise _other(where, documents)
    polynomial = samples.polynomial(documents)
    if polynomial is None:
        shown = ", ".join(f"{n} for {p}" for p, n in zip(samples.points, documents, strict=True))
        raise GraphError(
            f"{where} has the integer {shown}, which is no sum of products of sizes; valid is a "
            "network without, or one that is saved for one size"
        )
    return {SIZE: polynomial.to_json()}


def _other(where: str, documents: Sequence[Any]) -> GraphError:
    other = next((each for each in documents if each != documents[0]), None)
    return GraphError(
        f"{where} is another for other sizes: {brief(documents[0])} becomes {brief(other)}; valid "
        "is a network in which nothing but integers follows from sizes, or one that is saved for "
        "one size"
    )


def bound_document(document: Any, names: Sequence[str]) -> Callable[[Mapping[str, int]], Any]:
    """A function from sizes by name to the document for them; GraphError if a polynomial in the
    document is not valid."""
    if isinstance(document, dict):
        if list(document) == [SIZE]:
            return SizePolynomial.from_json(document[SIZE], names).value
        parts = {key: bound_document(each, names) for key, each in document.items()}
        if all(isinstance(part, _ConstantPart) for part in parts.values()):
            return _ConstantPart(document)
        return lambda sizes: {key: part(sizes) for key, part in parts.items()}
    if isinstance(document, list):
        items = [bound_document(each, names) for each in document]
        if all(isinstance(item, _ConstantPart) for item in items):
            return _ConstantPart(document)
        return lambda sizes: [item(sizes) for item in items]
    return _ConstantPart(document)


class _ConstantPart:
    """A bound part of a document that has no polynomials: it returns the part itself."""

    def __init__(self, document: Any) -> None:
        self._document = document

    def __call__(self, sizes: Mapping[str, int]) -> Any:
        return self._document


VERSION = 2
"""The version of documents with polynomials; those without have version 1."""


class SizedGraph:
    """A graph for all sizes in ranges: what :func:`minidnn.load_graph` gives of a network that was
    saved with a :class:`minidnn.Dim`, and what :func:`minidnn.quantize` makes of one.

    ``compile``, ``quantize``, ``save_graph`` and ``save_onnx`` take it like a graph, for its ranges
    or for sizes within.  Its integers, as the shapes that views give, are sums of products of
    sizes; its weights are the same for all.

    Args:
        document: as :mod:`minidnn.graph.storage` writes a graph, with such sums in it.
        arrays: the constants by key.
        dims: the named sizes with their ranges.

    Attributes:
        interface: of the least sizes.
        templates: the shapes of the inputs, with the named sizes.

    Raises:
        GraphError: the document is none of such a graph.

    >>> batch = md.Dim("batch", 1, 64)
    >>> md.save_graph(net, "any.safetensors", (batch, 3, 32, 32))
    >>> graph = md.load_graph("any.safetensors")
    >>> exe = md.compile(graph, device="reference")
    >>> md.save_onnx(graph, "any.onnx")
    """

    def __init__(
        self, document: Any, arrays: Mapping[str, np.ndarray], dims: Sequence[Dim]
    ) -> None:
        self.dims = tuple(dims)
        self.document = document
        self.arrays = dict(arrays)
        version = document.get("version") if isinstance(document, dict) else None
        if type(version) is not int or version != VERSION:
            raise GraphError(f"the document has version {brief(version)}; valid is {VERSION}")
        self._bound = bound_document(document, [dim.name for dim in self.dims])
        # Both ends of the ranges are checked now; other sizes are checked when they are used.
        small = self.at({dim.name: dim.least for dim in self.dims})
        self.at({dim.name: dim.most for dim in self.dims})
        self.name = small.name
        self.interface = interface_of(small)
        self.templates = self._templates()

    def __repr__(self) -> str:
        inputs = written_inputs(self.interface.inputs, self.templates, named=True)
        return f"<SizedGraph {self.name}: {inputs}; {', '.join(map(str, self.dims))}>"

    def __reduce__(self) -> Any:
        return SizedGraph, (self.document, self.arrays, self.dims)

    @staticmethod
    def traced(trace: Callable[[Mapping[str, int]], Graph], dims: Sequence[Dim]) -> SizedGraph:
        """The sized graph of a network, which is traced for some sizes.

        Args:
            trace: returns the graph for sizes by name.

        Raises:
            GraphError: something in the graph is no polynomial of sizes; names the node.
        """
        try:
            return SizedGraph(*_described(trace, dims), dims)
        except GraphError as error:
            larger = [
                dim if dim.least > 1 else replace(dim, least=min(2, dim.most)) for dim in dims
            ]
            if larger == list(dims):
                raise
            result = SizedGraph(*_described(trace, larger), dims)
            if not all(computes_the_same(trace(p), result.at(p)) for p in _points_with_ones(dims)):
                raise error from None
            return result

    def at(self, sizes: Mapping[str, int]) -> Graph:
        """The graph for one size of each name; GraphError if one is not in its range."""
        checked = check_inputs(self.dims, sizes, f"graph {self._called!r}")
        return from_document({**self._bound(checked), "version": 1}, self.arrays)

    def of_shapes(self, shapes: Any) -> Graph:
        """The graph for inputs of these shapes, given as ``compile`` takes them."""
        names = [each.name for each in self.interface.inputs]
        if isinstance(shapes, Mapping):
            if sorted(shapes) != sorted(names):
                raise GraphError(f"shape names {sorted(shapes)}; valid are the inputs {names}")
            ordered = [shapes[name] for name in names]
        elif len(names) == 1 and not any(isinstance(each, (tuple, list)) for each in shapes):
            ordered = [shapes]
        else:
            ordered = list(shapes)
        if len(ordered) != len(names):
            raise GraphError(f"shape={shapes!r:.100}; valid are {len(names)}, of {names}")
        as_tuples = [tuple(shape) for shape in ordered]
        return self.at(sizes_of(self.interface.inputs, self.templates, as_tuples))

    def mapped(self, change: Callable[[Graph], Graph]) -> SizedGraph:
        """The sized graph after ``change`` rewrites the graph of each size; GraphError as for
        :meth:`traced`."""
        return SizedGraph.traced(lambda sizes: change(self.at(sizes)), self.dims)

    @property
    def named_shapes(self) -> dict[str, Template]:
        """The shapes of the inputs with the named sizes, as ``compile`` takes them."""
        names = [value.name for value in self.interface.inputs]
        return dict(zip(names, self.templates, strict=True))

    @property
    def _called(self) -> str:
        body = self.document.get("graph") if isinstance(self.document, dict) else None
        return str(body.get("name", "")) if isinstance(body, dict) else ""

    def _templates(self) -> tuple[Template, ...]:
        """The shapes of the inputs, by the document; an axis may be a number or a named size."""
        by_name = {dim.name: dim for dim in self.dims}
        templates = []
        for name, (_, shape) in self.document["graph"]["inputs"]:
            template: list[int | Dim] = []
            for axis, size in enumerate(shape):
                if not isinstance(size, dict):
                    template.append(size)
                    continue
                polynomial = SizePolynomial.from_json(size[SIZE], list(by_name))
                match polynomial.terms:
                    case ((1, (single,)),) if polynomial.divisor == 1:
                        template.append(by_name[single])
                    case _:
                        raise GraphError(
                            f"input {name!r}: axis {axis} is {polynomial}; valid are numbers and "
                            "names"
                        )
            templates.append(tuple(template))
        used = {each.name for template in templates for each in template if isinstance(each, Dim)}
        for dim in self.dims:
            if dim.name not in used and dim.least < dim.most:
                raise GraphError(f"no input has the size {dim.name!r}; valid are names of sizes")
        return tuple(templates)


def input_templates(graph: Graph | SizedGraph) -> list[Template]:
    """The shapes of a graph's inputs, with its named sizes if it has any."""
    if isinstance(graph, SizedGraph):
        return list(graph.templates)
    return [value.shape for value in graph.inputs]


def _described(
    trace: Callable[[Mapping[str, int]], Graph], dims: Sequence[Dim]
) -> tuple[Any, dict[str, np.ndarray]]:
    """The document for all sizes, and the constants by key; GraphError as for
    :meth:`SizedGraph.traced`."""
    samples = SizeSamples(dims)
    documents: list[Any] = []
    kept: dict[str, Stored] = {}
    for graph in with_repeats([trace(point) for point in samples.points]):
        document, stored = to_document(graph)
        if documents:
            _check_constants(kept, stored, document)
        else:
            kept = stored
        documents.append(document)
    document_of_all = merged(documents, samples)
    document_of_all["version"] = VERSION
    return document_of_all, {key: value.data for key, value in kept.items()}


def _points_with_ones(dims: Sequence[Dim]) -> list[dict[str, int]]:
    """Sizes with which :meth:`SizedGraph.traced` checks a size of 1: all that may be 1 are, or one
    of them; the others are halfway."""
    halfway = {dim.name: dim.halfway for dim in dims}
    ones = {dim.name: 1 for dim in dims if dim.least == 1}
    return [halfway | ones, *(halfway | {name: 1} for name in ones if len(ones) > 1)]


def _check_constants(
    base: Mapping[str, Stored], other: Mapping[str, Stored], document: Any
) -> None:
    """GraphError if the constants of two sizes are not the same; names a node that reads one."""
    for key, value in other.items():
        one = base.get(key)
        if one is not None and one.type == value.type and has_same_numbers(value.data, one.data):
            continue
        readers = [
            f"node {node['name']!r} ({', '.join(node['operator'])})"
            for node in document["graph"]["nodes"]
            if key in node["inputs"]
        ]
        read = f", which {readers[0]} reads," if readers else ""
        raise GraphError(
            f"constant {key!r}{read} changes with the named sizes; valid are weights that are the "
            "same for all sizes, or a network that is saved for one size"
        )


def dims_to_json(dims: Sequence[Dim]) -> list[list[Any]]:
    """Named sizes as files have them: ``[name, least, most, multiple]`` of each."""
    return [[dim.name, dim.least, dim.most, dim.multiple] for dim in dims]


def dims_from_json(data: Any) -> tuple[Dim, ...]:
    """Named sizes of a file; GraphError if they are none."""
    dims: dict[str, Dim] = {}
    for item in data if isinstance(data, list) else [None]:
        match item:
            case [name, least, most, multiple] if is_text(name) and name not in dims:
                dims[name] = Dim(name, least, most, multiple)
            case _:
                raise GraphError(
                    f"named sizes: {brief(item)}; valid is [name, least, most, multiple], each "
                    "name once"
                )
    return tuple(dims.values())


# Whether two graphs compute the same, identities and reshapes apart.
#
# For a size of 1, front ends leave out moves and broadcasts that do nothing, and reshape in another
# way: so the graph for 1 has other nodes than the graph for a larger size, and computes the same.


def computes_the_same(one: Graph, other: Graph) -> bool:
    """Whether both graphs have the same operators on the same constants, except for identities and
    the kinds of reshapes."""
    arrays = {value.name: value.data for value in one.constants}
    return described(_normal(one), arrays) == described(_normal(other), arrays)


def _normal(graph: Graph) -> Graph:
    """The graph in normal form: without identities and dead nodes, and with each chain of reshapes
    as one View."""
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        if is_identity(node):
            rewriter.replace(node.output, rewriter.value(node.inputs[0]))
        elif isinstance(node.op, Reshaping):
            source = _before_views(rewriter.value(node.inputs[0]))
            if source.shape == node.output.shape:
                rewriter.replace(node.output, source)
            else:
                new = rewriter.add(View(node.output.shape), [source], node.name)
                rewriter.replace(node.output, new.output)
        else:
            rewriter.keep(node)
    return drop_unread(rewriter.finish())


def _before_views(value: Value) -> Value:
    """The value before the Views that make this one."""
    while value.producer is not None and isinstance(value.producer.op, View):
        value = value.producer.inputs[0]
    return value


def with_repeats(graphs: Sequence[Graph]) -> list[Graph]:
    """Graphs of a network for several sizes, in which an Expand replaces each constant that repeats
    its elements along a varying axis, so that all sizes have the same constants."""
    rows = list(zip(*(graph.constants for graph in graphs), strict=False))
    replaced: list[dict[Constant, Constant]] = [{} for _ in graphs]
    for row in rows:
        once = _once(row)
        if once is not None:
            for constants, constant in zip(replaced, row, strict=True):
                constants[constant] = once
    return [
        _with_expands(graph, constants) for graph, constants in zip(graphs, replaced, strict=True)
    ]


def _once(row: Sequence[Constant]) -> Constant | None:
    """The constant that the constants of several sizes repeat along the axes whose sizes differ;
    None if none differs, or the elements are not repeated."""
    first = row[0]
    are_alike = all(
        (each.type.rank, each.dtype, each.name) == (first.type.rank, first.dtype, first.name)
        for each in row
    )
    if not are_alike or all(each.shape == first.shape for each in row):
        return None
    axes = [axis for axis in range(first.type.rank) if len({each.shape[axis] for each in row}) > 1]
    first_slices = tuple(
        slice(0, 1) if axis in axes else slice(None) for axis in range(first.type.rank)
    )
    once = np.ascontiguousarray(first.data[first_slices])
    if not all(has_same_numbers(np.broadcast_to(once, each.shape), each.data) for each in row):
        return None
    return Constant(TensorType(once.shape, first.dtype), first.name, once)


def _with_expands(graph: Graph, once: dict[Constant, Constant]) -> Graph:
    """The graph with an Expand of another constant in place of each constant in ``once``."""
    if not once:
        return graph
    rewriter = Rewriter(graph)
    for constant, small in once.items():
        name = rewriter.fresh(f"{constant.name}.repeated")
        node = rewriter.add(Expand(constant.shape), [small], name)
        rewriter.replace(constant, node.output)
    for node in graph.nodes:
        rewriter.keep(node)
    return rewriter.finish()
