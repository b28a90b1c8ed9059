"""A step in CUDA C: its launch, and what such a launch is given."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from ..backends.codegen.kernel import KernelSource
from ..backends.cuda.kernels import Launch
from ..backends.cuda.machine import Machine
from ..errors import UnsupportedError
from .access import Work, least_work
from .occupancy import MOST_THREADS
from .step import Block, LadderStep, Parameters

Sizes = tuple[tuple[int, int, int], tuple[int, int, int], int]
"""Blocks of the grid, threads of a block, and bytes of dynamic shared memory."""

MOST_STATIC = 48 << 10
"""Bytes of shared memory whose size stands in a text."""
_MOST_GRID = (2**31 - 1, 65535, 65535)
_MOST_ELEMENTS = 2**31 - 1  # what an int can count


def _takes_all(shape: Any, block: Block, parameters: Parameters) -> None:
    """Refuses nothing."""


@dataclass(frozen=True, kw_only=True)
class CudaStep(LadderStep):
    """A step of a ladder, in CUDA C.

    Arguments of the kernel are operands and sizes of the shape by their names.  Words in capitals
    are numbers that stand before the text: ``BLOCK_X``, ``BLOCK_Y``, the step's parameters, and
    the fields of the shape.  A text of one's own needs a name and the rule of its launch:

    >>> from minidnn import lab
    >>> text = '''
    ... // Four outputs a thread.
    ... //
    ... // A thread computes four rows, so that a number of b is read once for four products.
    ... //
    ... // Expect: Fewer reads than naive, and the same sums.
    ... extern "C" __global__ void four(const float *a, const float *b, float *y, int rows,
    ...                                 int columns, int depth) {
    ...   const int column = blockIdx.x * BLOCK_X + threadIdx.x;
    ...   const int first = (blockIdx.y * BLOCK_Y + threadIdx.y) * 4;
    ...   for (int row = first; row < min(first + 4, rows); row++) {
    ...     float sum = 0.0f;
    ...     for (int k = 0; k < depth && column < columns; k++)
    ...       sum = fmaf(a[row * depth + k], b[k * columns + column], sum);
    ...     if (column < columns) y[row * columns + column] = sum;
    ...   }
    ... }'''
    >>> def sizes(shape, block, parameters):
    ...     across, down = -(-shape.columns // block[0]), -(-shape.rows // (4 * block[1]))
    ...     return (across, down, 1), (*block, 1), 0
    >>> four = lab.CudaStep(name="four", source=text, sizes=sizes)
    >>> ladder = lab.ladder_of("product").with_step(four, after="coalesced")
    >>> study = lab.model(ladder, ["coalesced", "four"], blocks=[(32, 8)], gpu="H100")
    >>> print(*lab.table(study, ladder), sep="\\n")

    ``lab.run`` in place of ``lab.model`` checks and times it, where there is a GPU.

    Args:
        name: of the step, and of the kernel in its text.
        source: the text itself, or the path of its file.
        parameters: numbers that stand in the text under these names, and their defaults.
        helps: the limits, as ``lab.ADVICE`` names them, that its idea is about.
        sizes: the launch for a shape, a block and parameters: blocks of the grid and threads of a
            block, three numbers each, and bytes of dynamic shared memory.
        work: what such a launch reads, writes and computes, for the prediction; by default the
            least that any kernel must: each operand once.
        refusal: why a shape cannot be computed so by a block; None if it can.
        constants: arrays of constant memory in the text, and the operands that they hold.
    """

    device: ClassVar[str] = "cuda"

    sizes: Callable[[Any, Block, Parameters], Sizes]
    work: Callable[[Any, Block, Parameters], Work] | None = None
    refusal: Callable[[Any, Block, Parameters], str | None] = _takes_all
    constants: Mapping[str, str] = field(default_factory=dict)

    def launch(self, shape: Any, block: Block, parameters: Parameters | None = None) -> Launch:
        """The kernel for a shape, and its launch."""
        parameters = self.with_own(parameters)
        grid, threads, shared_bytes = self.sizes(shape, block, parameters)
        return Launch(self._source(shape, block, parameters), grid, threads, shared_bytes)

    def work_of(self, shape: Any, block: Block, parameters: Parameters) -> Work:
        """What a launch does, as ``work`` says, or at least."""
        if self.work is not None:
            return self.work(shape, block, parameters)
        sizes = {name: shape.operands[name] for name in self.operands(shape)}
        return least_work(sizes, shape.operations)

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
        if match is None:
            raise UnsupportedError(f"step {self.name}: its text has no kernel of that name")
        return [self._argument(part, shape) for part in match[1].split(",")]

    def _argument(self, part: str, shape: Any) -> str | int:
        name = re.split(r"[\s*]+", part.strip())[-1]
        if "*" in part:
            valid: tuple[str, ...] = tuple(shape.operands)
            found: Any = name if name in valid else None
        else:
            valid = tuple(one for one in dir(shape) if isinstance(getattr(shape, one), int))
            found = int(getattr(shape, name)) if name in valid else None
        if found is None:
            raise UnsupportedError(
                f"step {self.name} has an argument {part.strip()!r}; valid names of such are "
                f"{', '.join(valid)}"
            )
        return found

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
