"""Numbers that a kernel reads when it runs, so that many shapes share one text.

Register tiles, unrolled channels and the distances between neighbouring pixels stand in the text:
they make the arithmetic what it is.  Everything else (sizes, strides, counts) costs nothing when
it is read from memory, and compiling costs a tenth of a second for each text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from ...codegen.code import Code
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
