"""A step in ISPC: the layouts of its operands, its tasks, and the constants of its text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from ...backends.codegen.kernel import KernelSource
from ...errors import UnsupportedError
from ..step import Block, LadderStep, Parameters
from .machine import CpuMachine, CpuWork, least_work

Pack = Callable[[Any, np.ndarray, int], np.ndarray]
"""Packs an operand in the layout of a kernel, from the shape, the plain array, and a vector's
lanes."""

_MOST_ELEMENTS = 2**31 - 1  # what an int can count
_OPERAND = re.compile(r"\b(\w+)\s*=\s*MD_(?:IN|OUT)\(float, (\d+)\)")


def _takes_all(shape: Any, parameters: Parameters, lanes: int) -> None:
    """Refuses nothing."""


def _none(shape: Any, lanes: int) -> dict[str, int]:
    return {}


@dataclass(frozen=True, kw_only=True)
class IspcStep(LadderStep):
    """A step of a ladder, in ISPC.

    The kernel is ``MD_KERNEL(name)``, which computes the tasks ``md_begin`` to ``md_end``; operand
    number i is ``MD_IN(float, i)`` or ``MD_OUT(float, i)``, held in a pointer of the operand's
    name, and ``md_fma(a, b, c)`` is a fused multiply-add.  Words in capitals are constants that
    precede the text: ``LANES``, the step's parameters, and the sizes of the shape.

    >>> from minidnn import lab
    >>> text = '''
    ... // Four vectors at a time.
    ... //
    ... // A task copies a piece, whose length is a multiple of four vectors.
    ... //
    ... // Expect: As fast as foreach, where memory is the limit.
    ... MD_KERNEL(four) {
    ...   const uniform float * uniform x = MD_IN(float, 0);
    ...   uniform float * uniform y = MD_OUT(float, 1);
    ...   for (uniform int at = md_begin * PIECE; at < md_end * PIECE; at += 4 * LANES)
    ... #pragma unroll
    ...     for (uniform int i = 0; i < 4; i++)
    ...       y[at + i * LANES + programIndex] = x[at + i * LANES + programIndex];
    ... }'''
    >>> def tasks(shape, parameters, lanes):
    ...     return shape.pieces
    >>> four = lab.IspcStep(name="four", source=text, tasks=tasks)
    >>> ladder = lab.ladder_of("memory-cpu").with_step(four)
    >>> study = lab.run(ladder, ["four"], shapes=[{"pieces": 8}])
    >>> print("\\n".join(lab.table(study, ladder)))

    Args:
        name: of the step, and of the kernel in its text.
        source: the text itself, or the path of its file.
        parameters: constants of the text with these names, and their defaults.
        helps: the limits, as ``lab.ADVICE`` names them, that its idea is about.
        tasks: how many there are, of a shape, parameters, and the lanes of a vector.
        packs: layouts of operands, by their names: functions of the shape, an operand, and the
            lanes.  The other operands stay plain.
        numbers: further constants before the text, of the shape and the lanes.
        work: what the kernel reads and computes, of the shape, parameters, and the machine; by
            default the least that any kernel must.
        refusal: why a shape cannot be computed, of it, parameters, and the lanes; None if it
            can.
    """

    device: ClassVar[str] = "cpu"
    suffix: ClassVar[str] = ".ispc"

    tasks: Callable[[Any, Parameters, int], int]
    packs: Mapping[str, Pack] = field(default_factory=dict)
    numbers: Callable[[Any, int], Mapping[str, int]] = _none
    work: Callable[[Any, Parameters, CpuMachine], CpuWork] | None = None
    refusal: Callable[[Any, Parameters, int], str | None] = _takes_all

    def kernel(self, shape: Any, parameters: Parameters, lanes: int) -> KernelSource:
        """The source of the kernel: its text after the constants that it uses, as macros."""
        numbers = {"LANES": lanes, **self.with_own(parameters), **self.numbers(shape, lanes)}
        sizes = {name: getattr(shape, name) for name in dir(shape) if not name.startswith("_")}
        numbers |= {name.upper(): one for name, one in sizes.items() if isinstance(one, int)}
        used = [name for name in numbers if re.search(rf"\b{name}\b", self.text)]
        before = [f"#define {name} {numbers[name]}" for name in used]
        body, count = re.subn(rf"MD_KERNEL\({self.name}\)", "MD_KERNEL(@)", self.text)
        if not count:
            raise UnsupportedError(f"step {self.name}: its text has no MD_KERNEL({self.name})")
        after = [f"#undef {name}" for name in used]
        return KernelSource.named(self.name, "\n".join([*before, body, *after, ""]))

    def operands(self, shape: Any) -> list[str]:
        """The names of the operands that it reads and writes, in their order."""
        by_index = {int(number): name for name, number in _OPERAND.findall(self.text)}
        names = [by_index.get(index, "") for index in range(len(by_index))]
        if not names or not set(names) <= set(shape.operands):
            raise UnsupportedError(
                f"step {self.name} has operands {', '.join(map(repr, names)) or 'of no name'}; "
                f"valid are {', '.join(shape.operands)}, as name = MD_IN(float, 0) and so on"
            )
        return names

    def packed(self, name: str, shape: Any, array: np.ndarray, lanes: int) -> np.ndarray:
        """An operand in the layout that the kernel expects."""
        return self.packs[name](shape, array, lanes) if name in self.packs else array

    def work_of(self, shape: Any, parameters: Parameters, machine: CpuMachine) -> CpuWork:
        """The work of the kernel: what ``work`` returns, or the least that any kernel must do."""
        if self.work is not None:
            return self.work(shape, parameters, machine)
        sizes = {name: shape.operands[name] for name in self.operands(shape)}
        return least_work(sizes, shape.operations, machine)

    def why_not(
        self, shape: Any, block: Block, machine: CpuMachine, parameters: Parameters | None = None
    ) -> str | None:
        """Why this cannot run; None if it can."""
        reason = self.refusal(shape, self.with_own(parameters), machine.lanes)
        if reason is not None:
            return reason
        limit = _MOST_ELEMENTS // machine.lanes if self.packs else _MOST_ELEMENTS
        for name, count in shape.operands.items():
            if count > limit:
                return f"{name} has {count} elements; there may be {limit}"
        return None
