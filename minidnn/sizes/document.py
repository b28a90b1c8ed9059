"""Documents of a graph for several sizes as one, in which sizes stand for the integers that follow
from them.

Such an integer is ``{"$size": [[[factor, name...]...], divisor]}``, see
:class:`minidnn.sizes.polynomial.SizePolynomial`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from minidnn.errors import GraphError
from minidnn.graph.attributes import brief
from minidnn.sizes.polynomial import SizePolynomial, SizeSamples

SIZE = "$size"
"""The key of an integer that follows from sizes: no attribute has such a name."""


def merged(documents: Sequence[Any], samples: SizeSamples, where: str = "the graph") -> Any:
    """The document for all sizes, by those for the points of samples.

    GraphError if something differs that is no integer, or an integer that does not follow from
    sizes; names the node.
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
    """What gives the document for sizes by name; GraphError if an integer in it makes no sense."""
    if isinstance(document, dict):
        if list(document) == [SIZE]:
            return SizePolynomial.from_json(document[SIZE], names).value
        parts = {key: bound_document(each, names) for key, each in document.items()}
        if all(isinstance(part, _Same) for part in parts.values()):
            return _Same(document)
        return lambda sizes: {key: part(sizes) for key, part in parts.items()}
    if isinstance(document, list):
        items = [bound_document(each, names) for each in document]
        if all(isinstance(item, _Same) for item in items):
            return _Same(document)
        return lambda sizes: [item(sizes) for item in items]
    return _Same(document)


class _Same:
    """A part of a document that is the same for all sizes."""

    def __init__(self, document: Any) -> None:
        self._document = document

    def __call__(self, sizes: Mapping[str, int]) -> Any:
        return self._document
