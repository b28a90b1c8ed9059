"""What a process printed for planes of any size.

Someone waits for such a kernel, and networks repeat themselves: what was printed is not printed
again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, Protocol

from ....fusion.contraction import Parts
from ....graph.ir import Value
from ...codegen.kernel import KernelSource
from .numbers import Number, Numbers

_MOST_KNOWN = 2048
#: By the scheme and what is absorbed, with the numbers; None for one that follows from the weight.
_printed: dict[Hashable, tuple[KernelSource, dict[str, int | None]]] = {}


#: By all that a text follows from, with the names of its numbers.
_texts: dict[Hashable, tuple[KernelSource, tuple[str, ...]]] = {}


class NamedNumbers(Protocol):
    """Numbers that follow from their names."""

    @property
    def values(self) -> Mapping[str, Number]:
        """All of them by name, in the order in which they are first used."""

    def __call__(self, name: str) -> str:
        """Takes note that a number is used."""


def printed_once(
    key: Hashable,
    numbers: Numbers,
    print: Callable[[], KernelSource],
    of_weight: Number = 0,
) -> KernelSource:
    """The kernel that ``print`` gives, whose numbers are among ``numbers`` afterwards.

    Args:
        key: all that the text and the numbers follow from.
        of_weight: the number that follows from the weight, of which no other kernel is told.
    """
    if (known := _printed.get(key)) is not None:
        source, values = known
        for name, value in values.items():
            numbers(name, of_weight if value is None else value)
        return source
    source = print()
    kept = {name: None if callable(value) else value for name, value in numbers.values.items()}
    if len(_printed) >= _MOST_KNOWN:
        _printed.clear()
    _printed[key] = source, kept
    return source


def printed_for_all_sizes(
    key: Hashable, numbers: NamedNumbers, print: Callable[[], KernelSource]
) -> KernelSource:
    """The kernel that ``print`` gives, whose numbers follow from their names.

    Args:
        key: all that the text follows from; other numbers make no other text.
    """
    if (known := _texts.get(key)) is not None:
        source, names = known
        for name in names:
            numbers(name)
        return source
    source = print()
    if len(_texts) >= _MOST_KNOWN:
        _texts.clear()
    _texts[key] = source, tuple(numbers.values)
    return source


def absorbed(parts: Parts) -> Hashable:
    """What a kernel computes before and after its sums."""
    places: dict[Value, Any] = {value: i for i, value in enumerate(parts.others)}
    places |= {parts.source: "source", parts.node.output: "sums"}
    vectors = {value: i for i, value in enumerate(parts.vectors)}
    found: list[Hashable] = [len(parts.prologue), len(parts.statistics)]
    for operation in (*parts.prologue, *parts.epilogue):
        read = tuple(places[value] for value in operation.operands)
        used = tuple(vectors[vector.value] for vector in operation.vectors)
        found.append((operation.code, read, used, operation.output.dtype))
        places[operation.output] = ("made", len(found))
    return tuple(found)
