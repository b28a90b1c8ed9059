"""A ladder, and its steps: one kernel in a file each, what it is about, and how it is launched."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..backends.codegen.kernel import KernelSource
from ..backends.cuda.kernels import Launch
from ..backends.cuda.machine import Machine
from ..errors import UnsupportedError
from .access import Work
from .occupancy import MOST_THREADS

Block = tuple[int, int]
"""Threads of a block, across and down."""
Parameters = Mapping[str, int]
Sizes = tuple[tuple[int, int, int], tuple[int, int, int], int]
"""Blocks of the grid, threads of a block, and bytes of dynamic shared memory."""

_MOST_GRID = (2**31 - 1, 65535, 65535)
_MOST_ELEMENTS = 2**31 - 1  # what an int can count


def _takes_all(shape: Any, block: Block, parameters: Parameters) -> None:
    """Refuses nothing."""


@dataclass(frozen=True)
class LadderStep:
    """One kernel and its idea.

    The file begins with a comment: what the step is called, its idea, and what to expect of it.

    Attributes:
        name: of the step, of its file, and of the kernel in it.
        folder: where its file lies.
        sizes: the launch for a shape, a block and parameters.
        work: what such a launch reads, writes and computes.
        parameters: numbers that stand in the text under these names, and their defaults.
        refusal: why a shape cannot be computed so by a block; None if it can.
        constants: arrays of constant memory in the text, and the operands that they hold.
        helps: the limits, as :data:`.explain.ADVICE` names them, that its idea is about.
    """

    name: str
    folder: Path
    sizes: Callable[[Any, Block, Parameters], Sizes]
    work: Callable[[Any, Block, Parameters], Work]
    parameters: Parameters = field(default_factory=dict)
    refusal: Callable[[Any, Block, Parameters], str | None] = _takes_all
    constants: Mapping[str, str] = field(default_factory=dict)
    helps: tuple[str, ...] = ()

    @cached_property
    def text(self) -> str:
        """The file as it is."""
        return (self.folder / f"{self.name}.cu").read_text(encoding="utf-8")

    @property
    def title(self) -> str:
        """The idea in a few words."""
        return self._paragraphs[0].rstrip(".")

    @property
    def idea(self) -> str:
        """What is different from the step before, and why."""
        return self._paragraphs[1]

    @property
    def expectation(self) -> str:
        """What should come of it."""
        return self._paragraphs[2].removeprefix("Expect: ")

    @cached_property
    def _paragraphs(self) -> list[str]:
        lines = itertools.takewhile(lambda line: line.startswith("//"), self.text.splitlines())
        whole = "\n".join(line.removeprefix("//").strip() for line in lines)
        return [" ".join(part.split()) for part in whole.split("\n\n")]

    def with_own(self, parameters: Parameters | None) -> dict[str, int]:
        """Its parameters, those that are given in place of its own; others are not its."""
        given = parameters or {}
        return {name: given.get(name, number) for name, number in self.parameters.items()}

    def launch(self, shape: Any, block: Block, parameters: Parameters | None = None) -> Launch:
        """The kernel for a shape, and its launch."""
        parameters = self.with_own(parameters)
        grid, threads, shared_bytes = self.sizes(shape, block, parameters)
        return Launch(self._source(shape, block, parameters), grid, threads, shared_bytes)

    def _source(self, shape: Any, block: Block, parameters: Parameters) -> KernelSource:
        """The text behind the numbers that it is compiled for, in a namespace of its own."""
        numbers = {"BLOCK_X": block[0], "BLOCK_Y": block[1], **parameters}
        numbers |= {name.upper(): number for name, number in asdict(shape).items()}
        used = [name for name in numbers if re.search(rf"\b{name}\b", self.text)]
        lines = ["namespace in_@ {", *(f"constexpr int {name} = {numbers[name]};" for name in used)]
        body = re.sub(rf"\b{self.name}\(", "@(", self.text)
        return KernelSource.named(self.name, "\n".join([*lines, body + "}", ""]))

    def arguments(self, shape: Any) -> list[str | int]:
        """What the kernel is given, as its text names it: operands by name, and numbers."""
        match = re.search(rf"\b{self.name}\((.*?)\)\s*{{", self.text, re.DOTALL)
        assert match is not None, f"{self.name}.cu has no kernel of that name"
        parts = [part.strip() for part in match[1].split(",")]
        return [
            part.rpartition("*")[2] if "*" in part else int(getattr(shape, part.split()[-1]))
            for part in parts
        ]

    def operands(self, shape: Any) -> list[str]:
        """Those that it reads and writes, in constant memory, too."""
        given = [one for one in self.arguments(shape) if isinstance(one, str)]
        return [*given, *self.constants.values()]

    def symbols(self, launch: Launch) -> dict[str, str]:
        """The symbols of its arrays of constant memory, and the operands that they hold."""
        space = f"in_{launch.source.name}"
        return {
            f"_ZN{len(space)}{space}{len(array)}{array}E": operand
            for array, operand in self.constants.items()
        }

    def why_not(
        self, shape: Any, block: Block, machine: Machine, parameters: Parameters | None = None
    ) -> str | None:
        """Why this cannot be launched; None if it can."""
        parameters = self.with_own(parameters)
        if (reason := self.refusal(shape, block, parameters)) is not None:
            return reason
        if not 1 <= block[0] * block[1] <= MOST_THREADS:
            return f"a block of {block[0] * block[1]} threads; valid are 1 to {MOST_THREADS}"
        for name, count in shape.operands.items():
            if count > _MOST_ELEMENTS:
                return f"{name} has {count} elements; there may be {_MOST_ELEMENTS}"
        grid, _, shared_bytes = self.sizes(shape, block, parameters)
        for axis, blocks, most in zip("xyz", grid, _MOST_GRID, strict=True):
            if blocks > most:
                return f"{blocks} blocks along {axis}; there may be {most}"
        if shared_bytes > machine.shared_bytes:
            return (
                f"{shared_bytes} bytes of shared memory a block; "
                f"{machine.name} has {machine.shared_bytes}"
            )
        return None


@dataclass(frozen=True)
class Ladder:
    """Kernels that compute the same, each a step beyond the one before.

    Attributes:
        name: by which the command line knows it.
        title: what is computed.
        shape: a default, whose fields are the numbers that make a shape.
        steps: from the first to the last.
        reference: the result in float64, of a shape and its operands by name.
        shapes: others by their names, on which the ladder is measured.
    """

    name: str
    title: str
    shape: Any
    steps: tuple[LadderStep, ...]
    reference: Callable[[Any, Mapping[str, np.ndarray]], np.ndarray]
    shapes: Mapping[str, Any] = field(default_factory=dict)

    def step(self, name: str) -> LadderStep:
        """The step of that name; UnsupportedError, which names all, if there is none."""
        for step in self.steps:
            if step.name == name:
                return step
        names = ", ".join(step.name for step in self.steps)
        raise UnsupportedError(f"{self.name} has no step {name!r}; it has {names}")

    def before(self, step: LadderStep) -> LadderStep | None:
        """The step before another; None before the first."""
        at = self.steps.index(step)
        return self.steps[at - 1] if at else None
