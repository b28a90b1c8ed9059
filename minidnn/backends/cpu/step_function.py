"""The functions that steps of sequences are printed as, which kernels share."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..codegen.kernel import shared_function


@dataclass
class StepFunction:
    """The text of a function, with <name> for its name, and the arguments of one call."""

    text: str
    arguments: list[str]
    scratch_floats: int


class StepFunctions:
    """The functions of a kernel's steps, and calls of them."""

    def __init__(self) -> None:
        #: By text, what stands for the name until all calls are known.
        self._marks: dict[str, str] = {}
        #: By mark, the arguments of each call that are numbers.
        self._constants: dict[str, set[tuple[str, ...]]] = {}

    def call(self, function: StepFunction) -> str:
        mark = self._marks.setdefault(function.text, f"$_s{len(self._marks)}")
        constants = ("" if re.search("[a-z]", each) else each for each in function.arguments)
        self._constants.setdefault(mark, set()).add(tuple(constants))
        return f"{mark}({', '.join(['yb', 'ye', *function.arguments])});"

    def named(self, text: str) -> tuple[str, list[str]]:
        """A text with calls of them, by their names, and their texts."""
        found = {
            mark: shared_function("seq_step", function, *sorted(self._constants[mark]))
            for function, mark in self._marks.items()
        }
        text = re.sub(r"\$_s\d+", lambda mark: found[mark[0]][0], text)
        return text, [function for _, function in found.values()]
