"""A step in CUDA C: the launches of its kernels, and their arguments.

The kernel's parameter list in the text says which operands and sizes are passed.  Block sizes,
parameters and the fields of the shape are compile-time constants that precede the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

from ...backends.codegen.kernel import KernelSource
from ...backends.cuda.kernels import Launch
from ...backends.cuda.machine import Machine
from ...errors import UnsupportedError
from ..access import Work, least_work
from ..model import MOST_THREADS
from ..step import Block, LadderStep, Parameters

Sizes = tuple[tuple[int, int, int], tuple[int, int, int], int]
"""Blocks of the grid, threads of a block, and bytes of dynamic shared memory."""

MOST_STATIC = 48 << 10
"""The most static shared memory of a block, in bytes."""
_MOST_GRID = (2**31 - 1, 65535, 65535)
_MOST_ELEMENTS = 2**31 - 1  # what an int can count
_MOST_OF_TEXTURE = 1 << 27
_HALF, _TEXTURE = "md_half", "cudaTextureObject_t"
_KERNEL = re.compile(r'(?=^extern "C" __global__)', re.MULTILINE)


def _takes_all(shape: Any, block: Block, parameters: Parameters) -> None:
    """Refuses nothing."""


def _no_scratch(shape: Any, block: Block, parameters: Parameters) -> dict[str, int]:
    return {}


def why_no_static(asked: int) -> str | None:
    """Why a block cannot have so many bytes of static shared memory; None if it can."""
    if asked <= MOST_STATIC:
        return None
    return f"{asked} bytes of static shared memory; there may be {MOST_STATIC}"


def why_no_patches(block: Block) -> str | None:
    """Why warps of a block are not patches of 4 x 8 threads; None if they are."""
    if block[0] % 4 or block[1] % 8:
        return f"a block of {block[0]} x {block[1]} threads; this step wants patches of 4 x 8"
    return None


class Texture(NamedTuple):
    """An argument: the operand of this name as a texture."""

    operand: str


Argument = str | int | Texture
"""The name of an operand or of a scratch array, an integer, or an operand as a texture."""


@dataclass(frozen=True, kw_only=True)
class KernelBefore:
    """A kernel that is launched before the main kernel of a step, from the same text.

    Attributes:
        name: of the kernel.
        sizes: its launch, as :attr:`CudaStep.sizes`.
        work: its memory accesses and arithmetic, as :attr:`CudaStep.work`.
    """

    name: str
    sizes: Callable[[Any, Block, Parameters], Sizes]
    work: Callable[[Any, Block, Parameters], Work]


@dataclass(frozen=True)
class KernelCall:
    """A kernel launch and its arguments."""

    launch: Launch
    arguments: tuple[Argument, ...]


@dataclass(frozen=True, kw_only=True)
class CudaStep(LadderStep):
    """A step of a ladder, in CUDA C.

    Arguments of the kernel are operands and sizes of the shape by their names: ``md_half *x`` is an
    operand in float16, ``cudaTextureObject_t x`` one as a texture.  Words in capitals
    are constants that precede the text: ``BLOCK_X``, ``BLOCK_Y``, the step's parameters, and the
    fields of the shape.  Your own text needs a name and the rule of its launch:

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
        parameters: constants of the text with these names, and their defaults.
        helps: the limits, as ``lab.ADVICE`` names them, that its idea is about.
        sizes: the launch for a shape, a block and parameters: blocks of the grid and threads of a
            block, three numbers each, and bytes of dynamic shared memory.
        work: what such a launch reads, writes and computes, for the prediction; by default the
            least that any kernel must: each operand once.
        refusal: why a block cannot compute a shape; None if it can.
        constants: arrays of constant memory in the text, and the operands that they hold.
        before: kernels of the text that are launched before, in their order.
        scratch: arrays that kernels pass on to each other: names and sizes in floats, of a shape, a
            block and parameters.
    """

    device: ClassVar[str] = "cuda"
    suffix: ClassVar[str] = ".cu"

    sizes: Callable[[Any, Block, Parameters], Sizes]
    work: Callable[[Any, Block, Parameters], Work] | None = None
    refusal: Callable[[Any, Block, Parameters], str | None] = _takes_all
    constants: Mapping[str, str] = field(default_factory=dict)
    before: tuple[KernelBefore, ...] = ()
    scratch: Callable[[Any, Block, Parameters], Mapping[str, int]] = _no_scratch

    def calls(
        self, shape: Any, block: Block, parameters: Parameters | None = None
    ) -> list[KernelCall]:
        """The kernel launches for a shape, in their order, with their arguments."""
        parameters = self.with_own(parameters)
        scratch = self.scratch(shape, block, parameters)
        rules = [*((one.name, one.sizes) for one in self.before), (self.name, self.sizes)]
        launches = []
        for name, sizes in rules:
            grid, threads, shared_bytes = sizes(shape, block, parameters)
            source = self._source(name, shape, block, parameters)
            arguments = tuple(self._arguments(name, shape, scratch))
            launches.append(KernelCall(Launch(source, grid, threads, shared_bytes), arguments))
        return launches

    def works(self, shape: Any, block: Block, parameters: Parameters) -> list[Work]:
        """The work of each launch: what ``work`` returns, or the least that any kernel must do."""
        before = [one.work(shape, block, parameters) for one in self.before]
        if self.work is not None:
            return [*before, self.work(shape, block, parameters)]
        sizes = {name: shape.operands[name] for name in self.operands(shape)}
        return [*before, least_work(sizes, shape.operations)]

    def _text_of(self, kernel: str) -> str:
        """The text with this kernel only."""
        head, *kernels = _KERNEL.split(self.text)
        return head + "".join(one for one in kernels if re.search(rf"\b{kernel}\(", one))

    def _source(
        self, kernel: str, shape: Any, block: Block, parameters: Parameters
    ) -> KernelSource:
        """The source of a kernel, in its own namespace, after the constants that it uses."""
        numbers = {"BLOCK_X": block[0], "BLOCK_Y": block[1], **parameters}
        numbers |= {name.upper(): number for name, number in asdict(shape).items()}
        text = self._text_of(kernel)
        used = [name for name in numbers if re.search(rf"\b{name}\b", text)]
        lines = ["namespace in_@ {", *(f"constexpr int {name} = {numbers[name]};" for name in used)]
        body = re.sub(rf"\b{kernel}\(", "@(", text)
        return KernelSource.named(kernel, "\n".join([*lines, body + "}", ""]))

    def _parameters_of(self, kernel: str) -> list[str]:
        match = re.search(rf"\b{kernel}\((.*?)\)\s*{{", self.text, re.DOTALL)
        if match is None:
            raise UnsupportedError(f"step {self.name}: its text has no kernel of that name")
        return match[1].split(",")

    def _arguments(self, kernel: str, shape: Any, scratch: Mapping[str, int]) -> list[Argument]:
        """The arguments of a kernel, from the parameter list in its text."""
        return [self._argument(part, shape, scratch) for part in self._parameters_of(kernel)]

    def _argument(self, declared: str, shape: Any, scratch: Mapping[str, int]) -> Argument:
        type, name = re.split(r"[\s*]+", declared.strip())[-2:]
        if "*" in declared or type == _TEXTURE:
            valid: tuple[str, ...] = (*shape.operands, *scratch)
            argument: Any = name if name in valid else None
            if argument and "*" not in declared:
                return Texture(name)
        else:
            names = (one for one in dir(shape) if not one.startswith("_"))
            valid = tuple(one for one in names if isinstance(getattr(shape, one), int))
            argument = int(getattr(shape, name)) if name in valid else None
        if argument is None:
            raise UnsupportedError(
                f"step {self.name} has an argument {declared.strip()!r}; valid names of such are "
                f"{', '.join(valid)}"
            )
        return argument

    @cached_property
    def _all_parameters(self) -> list[str]:
        kernels = [*(one.name for one in self.before), self.name]
        return [part.strip() for name in kernels for part in self._parameters_of(name)]

    def operands(self, shape: Any) -> list[str]:
        """The names of the operands that it reads and writes, constant memory included."""
        names = [re.split(r"[\s*]+", part)[-1] for part in self._all_parameters]
        return [
            *dict.fromkeys([one for one in names if one in shape.operands]),
            *self.constants.values(),
        ]

    @cached_property
    def float16_operands(self) -> frozenset[str]:
        """The operands that are stored in float16."""
        return self._named(_HALF)

    @cached_property
    def _textures(self) -> frozenset[str]:
        return self._named(_TEXTURE)

    def _named(self, type: str) -> frozenset[str]:
        parts = [re.split(r"[\s*]+", part) for part in self._all_parameters]
        return frozenset(words[-1] for words in parts if type in words)

    def symbols(self, launch: Launch) -> dict[str, str]:
        """The mangled symbols of its constant-memory arrays, and the operands that they hold."""
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
        memory = {**shape.operands, **self.scratch(shape, block, parameters)}
        for name, count in memory.items():
            limit = _MOST_OF_TEXTURE if name in self._textures else _MOST_ELEMENTS
            if count > limit:
                return f"{name} has {count} elements; there may be {limit}"
        for sizes in (*(one.sizes for one in self.before), self.sizes):
            if (reason := _why_unfit(sizes(shape, block, parameters), machine)) is not None:
                return reason
        return None


def _why_unfit(sizes: Sizes, machine: Machine) -> str | None:
    """Why a launch cannot be made; None if it can."""
    grid, _, shared_bytes = sizes
    for axis, blocks, limit in zip("xyz", grid, _MOST_GRID, strict=True):
        if blocks > limit:
            return f"{blocks} blocks along {axis}; there may be {limit}"
    if shared_bytes > machine.shared_bytes:
        return (
            f"{shared_bytes} bytes of shared memory a block; "
            f"{machine.name} has {machine.shared_bytes}"
        )
    return None
