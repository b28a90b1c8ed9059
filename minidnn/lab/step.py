"""Ladders, their steps, and the points at which a study evaluates them.

A step is a kernel's source text with one idea more than the step before it.  A point is a step with
a block and numbers for its parameters.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from ..errors import UnsupportedError

KERNELS = Path(__file__).parent / "kernels"
"""The folder of the built-in steps' source texts; it has a folder for each ladder."""
Block = tuple[int, int]
"""The threads of a block along x and y."""
Parameters = Mapping[str, int]
Choices = Mapping[str, int | Sequence[int]]
"""A number for each parameter, or several numbers to be tried."""


@dataclass(frozen=True, kw_only=True)
class LadderStep:
    """A kernel and its idea.

    The text begins with a comment of three paragraphs: what the step is called, its idea, and what
    to expect of it.

    Attributes:
        name: of the step, and of the kernel in its text.
        source: the text itself, or its file.
        parameters: constants of the text with these names, and their defaults.
        helps: the limits, as :data:`.explain.ADVICE` names them, that its idea is about.
    """

    device: ClassVar[str]
    #: The ending of the names of files with source texts.
    suffix: ClassVar[str]

    name: str
    source: Path | str
    parameters: Parameters = field(default_factory=dict)
    helps: tuple[str, ...] = ()

    @classmethod
    def of(cls, folder: str, name: str, **fields: Any) -> Self:
        """Returns the built-in step of that name, whose text is in a folder of :data:`KERNELS`."""
        return cls(name=name, source=KERNELS / folder / f"{name}{cls.suffix}", **fields)

    @cached_property
    def float16_operands(self) -> frozenset[str]:
        """The operands that are stored in float16."""
        return frozenset()

    @cached_property
    def text(self) -> str:
        """The source text of the kernel."""
        if isinstance(self.source, str):
            return self.source
        try:
            return self.source.read_text(encoding="utf-8")
        except OSError as error:
            raise UnsupportedError(
                f"step {self.name}: {self.source} cannot be read: {error.strerror}"
            ) from error

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
        """What to expect of its speed."""
        return self._paragraphs[2].removeprefix("Expect: ")

    @cached_property
    def _paragraphs(self) -> list[str]:
        lines = itertools.takewhile(
            lambda line: line.startswith("//"), self.text.strip().splitlines()
        )
        comment = "\n".join(line.removeprefix("//").strip() for line in lines)
        texts = [" ".join(paragraph.split()) for paragraph in comment.split("\n\n")]
        if len(texts) != 3:
            raise UnsupportedError(
                f"step {self.name}: its text begins with {len(texts)} paragraphs of comment; valid "
                "are three, between lines of //: title, idea, and what to expect"
            )
        return texts

    def with_own(self, parameters: Parameters | None) -> dict[str, int]:
        """Its parameters, with those of ``parameters`` in place of its defaults; names that it does
        not have are ignored."""
        replaced = parameters or {}
        return {name: replaced.get(name, number) for name, number in self.parameters.items()}

    def variants(self, choices: Choices | None) -> list[dict[str, int]]:
        """Its parameters with each combination of the numbers that ``choices`` has for them."""
        asked = choices or {}
        numbers_of = {
            name: (one,) if isinstance(one := asked.get(name, number), int) else tuple(one)
            for name, number in self.parameters.items()
        }
        return [
            dict(zip(numbers_of, numbers, strict=True))
            for numbers in itertools.product(*numbers_of.values())
        ]


@dataclass(frozen=True)
class Point:
    """A step with a block and a number for each of its parameters: what a cell of a study is of."""

    step: Any
    block: Block
    parameters: dict[str, int]

    def why_not(self, shape: Any, machine: Any) -> str | None:
        """Why this cannot be launched; None if it can."""
        reason: str | None = self.step.why_not(shape, self.block, machine, self.parameters)
        return reason


def points_of(
    steps: Sequence[Any], blocks: Sequence[Block], parameters: Choices | None
) -> list[Point]:
    """Each step with each block and each combination of the numbers for its parameters."""
    return [
        Point(step, block, numbers)
        for step, block in itertools.product(steps, blocks)
        for numbers in step.variants(parameters)
    ]


@dataclass(frozen=True)
class Ladder:
    """Kernels that compute the same, each a step beyond the one before.

    Attributes:
        name: on the command line.
        title: what is computed.
        shape: the default; its fields are the sizes that make a shape.
        steps: from the first to the last, all of one kind.
        reference: returns the result in float64 for a shape and its operands by name.
        shapes: other shapes by name, on which the ladder is measured.
        example: returns a worked example as text; "" for none.

    >>> from minidnn import lab
    >>> ladder = lab.ladder_of("conv")
    >>> ladder.step("tiled").title, ladder.before(ladder.step("tiled")).name
    ('A tile of the input in shared memory', 'constant')
    """

    name: str
    title: str
    shape: Any
    steps: tuple[Any, ...]
    reference: Callable[[Any, Mapping[str, np.ndarray]], np.ndarray]
    shapes: Mapping[str, Any] = field(default_factory=dict)
    example: Callable[[], str] = str

    @property
    def device(self) -> str:
        """What its steps run on: "cuda" or "cpu"."""
        return str(self.steps[0].device)

    def step(self, name: str) -> Any:
        """The step called ``name``; UnsupportedError, which names all, if there is none."""
        for step in self.steps:
            if step.name == name:
                return step
        names = ", ".join(step.name for step in self.steps)
        raise UnsupportedError(f"{self.name} has no step {name!r}; it has {names}")

    def before(self, step: LadderStep) -> Any:
        """The step before ``step``; None before the first."""
        at = self.steps.index(step)
        return self.steps[at - 1] if at else None

    def after(self, name: str) -> Iterator[Any]:
        """The steps that follow the one called ``name``."""
        at = [step.name for step in self.steps].index(name)
        yield from self.steps[at + 1 :]

    def with_step(self, step: LadderStep, after: str = "") -> Ladder:
        """This ladder and ``step``, at its end or after the step called ``after``.

        Raises:
            UnsupportedError: there is a step of its name, none called ``after``, or it runs on
                another device.
        """
        if step.name in (names := [one.name for one in self.steps]):
            raise UnsupportedError(f"{self.name} has a step {step.name!r}: choose another name")
        if step.device != self.device:
            raise UnsupportedError(
                f"step {step.name} is for device {step.device!r}; {self.name} is for "
                f"{self.device!r}"
            )
        at = names.index(self.step(after).name) + 1 if after else len(names)
        return replace(self, steps=(*self.steps[:at], step, *self.steps[at:]))
