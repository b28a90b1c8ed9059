"""Runtime parameters of kernels: integers that a kernel reads when it runs, so that many shapes
share one text.

Register tiles, unrolled channels and the strides between neighbouring pixels are constants of the
text, since the compiler's code depends on them.  Everything else (sizes, strides, counts) costs
nothing when it is read from memory, and compiling costs a tenth of a second for each text.

A caller waits while a kernel for any spatial size is printed, and networks repeat themselves: the
texts that a process has printed are cached here.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from ....fusion.region import Parts
from ....graph.ir import Value
from ...codegen.code import Code
from ...codegen.kernel import KernelSource
from ..execution.buffers import Array

#: A number, or a function that returns it when constants are packed.
Number = int | Callable[[], int]

#: The parameter of ISPC's functions that points to the packed numbers.
PARAMETER = "const uniform int32 * uniform numbers"


class Numbers:
    """The named numbers of one kernel, in the order in which they are first used.

    A printer calls it wherever the text needs a number.  Equal texts use equal names in equal
    order, so the packed numbers fit every kernel that shares the text.
    """

    def __init__(self) -> None:
        self._values: dict[str, Number] = {}
        self._used: dict[str, None] = {}

    def __call__(self, name: str, value: Number) -> str:
        """Registers a number, and returns its name for use within :meth:`declared`.

        A number that follows from weights is a function, called when constants are packed.
        """
        known = self._values.setdefault(name, value)
        assert known == value, f"{name} has two values"
        self._used[name] = None
        return name

    @property
    def values(self) -> Mapping[str, Number]:
        """All numbers by name."""
        return self._values

    @contextmanager
    def declared(self, code: Code) -> Iterator[None]:
        """Declares the numbers that the function printed meanwhile uses, at its beginning."""
        self._used = {}
        mark = code.mark()
        yield
        index = {name: i for i, name in enumerate(self._values)}
        used = sorted(self._used, key=index.__getitem__)
        code.insert(mark, [f"const uniform int {name} = numbers[{index[name]}];" for name in used])

    def pack(self) -> Array:
        """The numbers as int32, viewed as float32, the dtype of packed constants."""
        values = [value() if callable(value) else value for value in self._values.values()]
        return np.array(values, np.int32).view(np.float32)


_MOST_KNOWN = 2048
#: Kernels and their numbers by scheme and absorbed operations; None is a number of the weight.
_printed: dict[Hashable, tuple[KernelSource, dict[str, int | None]]] = {}


#: Kernels with the names of their numbers, by all that the text depends on.
_texts: dict[Hashable, tuple[KernelSource, tuple[str, ...]]] = {}


class NamedNumbers(Protocol):
    """Numbers that are computed from their names; see :func:`printed_for_all_sizes`."""

    @property
    def values(self) -> Mapping[str, Number]:
        """All numbers by name, in the order in which they are first used."""

    def __call__(self, name: str) -> str:
        """Registers the number of a name, and returns the name."""


def printed_once(
    key: Hashable,
    numbers: Numbers,
    print: Callable[[], KernelSource],
    of_weight: Number = 0,
) -> KernelSource:
    """The kernel that ``print`` returns, cached; its numbers are among ``numbers`` afterwards.

    Args:
        key: all that the text and the numbers depend on, except for the weight.
        of_weight: the number that is computed from the weight: this kernel's own, where the cached
            kernel has that of another weight.
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
    """The kernel that ``print`` returns, cached for all sizes: its numbers are computed from their
    names.

    Args:
        key: all that the text depends on; it does not depend on the numbers.
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
    """A key of what a kernel computes before and after its sums, for the caches above."""
    names: dict[Value, Any] = {value: i for i, value in enumerate(parts.others)}
    names |= {parts.source: "source", parts.node.output: "sums"}
    vectors = {value: i for i, value in enumerate(parts.vectors)}
    key: list[Hashable] = [len(parts.prologue), len(parts.statistics)]
    for operation in (*parts.prologue, *parts.epilogue):
        operands = tuple(names[value] for value in operation.operands)
        vector_indices = tuple(vectors[vector.value] for vector in operation.vectors)
        key.append((operation.code, operands, vector_indices, operation.output.dtype))
        names[operation.output] = ("made", len(key))
    return tuple(key)
