"""Numbers that a kernel reads when it runs, so that many shapes share one text.

Register tiles, unrolled channels and the distances between neighbouring pixels stand in the text:
they make the arithmetic what it is.  Everything else (sizes, strides, counts) costs nothing when
it is read from memory, and compiling costs a tenth of a second for each text.

Someone waits for a kernel for planes of any size, and networks repeat themselves: what a process
printed for these is not printed again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from ....fusion.contraction import Parts
from ....graph.ir import Value
from ...codegen.code import Code
from ...codegen.kernel import KernelSource
from ..execution.buffers import Array

#: A number, or what gives it when constants are packed.
Number = int | Callable[[], int]

PARAMETER = "const uniform int32 * uniform numbers"


class Numbers:
    """Names of numbers, in the order in which they are first used.

    Equal texts use equal names in equal order, so the packed numbers fit every kernel that shares
    the text.
    """

    def __init__(self) -> None:
        self._values: dict[str, Number] = {}
        self._used: dict[str, None] = {}

    def __call__(self, name: str, value: Number) -> str:
        """The name, for use within :meth:`declared`.

        A number that follows from weights is a function, called when constants are packed.
        """
        held = self._values.setdefault(name, value)
        assert held == value, f"{name} has two values"
        self._used[name] = None
        return name

    @property
    def values(self) -> Mapping[str, Number]:
        """All of them by name."""
        return self._values

    @contextmanager
    def declared(self, code: Code) -> Iterator[None]:
        """Declares at the beginning of a function the numbers that it uses."""
        self._used = {}
        mark = code.mark()
        yield
        index = {name: i for i, name in enumerate(self._values)}
        used = sorted(self._used, key=index.__getitem__)
        code.insert(mark, [f"const uniform int {name} = numbers[{index[name]}];" for name in used])

    def pack(self) -> Array:
        """The numbers as int32, seen as float32, which packed constants are."""
        values = [value() if callable(value) else value for value in self._values.values()]
        return np.array(values, np.int32).view(np.float32)


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
