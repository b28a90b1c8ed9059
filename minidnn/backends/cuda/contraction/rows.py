"""Linear layers of few rows in exact float32, with split-K over the input features.

cuDNN gives each block all inputs of some outputs; a classifier of few rows then has work for a
quarter of an H200's multiprocessors.  Here blocks compute partial sums side by side into the
workspace, and a second kernel adds them, always in the same order, and computes the epilogue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, prod

from ....graph.expression import argument, linearize
from ....runtime.operand import KernelArgument
from ..kernels import Launch
from ..machine import Machine
from ..pointwise import CHAIN, Argument, PointStep, print_pointwise
from .kernel import ContractionKernel
from .problem import Addresses, ContractionProblem, dense
from .text import source_of

FEW = 4
"""Rows: up to so many, the filters are read straight into registers."""
MOST = 512
"""Rows: with more, all multiprocessors have work without split-K."""
_SLAB = 16
_FILTERS = 128
_WARPS = 8
_MOST_PARTS = 32
_LEAST_DEPTH = 128
_BUSY = 0.96
"""The least share of the multiprocessors that must have work."""


class RowsKernel(ContractionKernel):
    """Linear layers of few rows; a choice is the number of split-K parts."""

    name = "rows"
    usual_price = 0.6

    def why_not(self, problem: ContractionProblem, machine: Machine) -> str | None:
        x, y = problem.x, problem.y
        if not problem.is_exact:
            return "its products need not be exact float32"
        if not problem.is_pointwise or x.rows * x.columns != 1 or problem.before:
            return "it is no linear layer"
        if problem.batch > MOST:
            return f"it has {problem.batch} rows"
        if x.channel != 1 or any(step % 4 for step in (x.channels, x.offset, x.image)):
            return "its rows are not aligned to vectors of 4 inputs"
        return None if y.channel == 1 else "its results are not contiguous"

    def choices(self, problem: ContractionProblem, machine: Machine) -> Sequence[int]:
        """As many parts as give most multiprocessors work, and twice and four times as many."""
        blocks = prod(_grid(problem))
        most_parts = min(_MOST_PARTS, max(1, problem.x.channels // _LEAST_DEPTH))
        least_parts = min(most_parts, ceil(_BUSY * machine.multiprocessors / blocks))
        return list(dict.fromkeys(min(most_parts, least_parts * times) for times in (2, 1, 4)))

    def launches(
        self, problem: ContractionProblem, choice: int, machine: Machine
    ) -> Sequence[Launch]:
        """The kernel of the partial sums, and the one that adds them up and computes all stages.

        Arguments of the first: image, filter, partial sums; of the second: each part, the others,
        the vectors, the result.
        """
        return _product(problem, choice), _total(problem, choice)

    def arguments(
        self, problem: ContractionProblem, choice: int, at: Addresses, machine: Machine
    ) -> list[list[KernelArgument]]:
        parts = [at.workspace + i * _part_bytes(problem) for i in range(choice)]
        return [[at.x, at.w, at.workspace], [*parts, *at.others, *at.vectors, at.y]]

    def workspace(self, problem: ContractionProblem, choice: int, machine: Machine) -> int:
        """Bytes of all partial sums."""
        return choice * _part_bytes(problem)

    def shape(self, choice: int) -> str:
        return f"in {choice} parts"


def _part_bytes(problem: ContractionProblem) -> int:
    """Bytes of one part."""
    return problem.batch * problem.w.shape[0] * 4


def _rows(problem: ContractionProblem) -> int:
    """Rows of a block; 0 where each warp computes all rows of a filter."""
    if problem.batch <= FEW:
        return 0
    return next((rows for rows in (32, 64) if problem.batch <= rows), 128)


def _grid(problem: ContractionProblem) -> tuple[int, int]:
    """Blocks along the filters, and along the rows."""
    filters, rows = problem.w.shape[0], _rows(problem)
    if not rows:
        return -(-filters // _WARPS), 1
    return -(-filters // _FILTERS), -(-problem.batch // rows)


def _product(problem: ContractionProblem, parts: int) -> Launch:
    """The kernel of the partial sums."""
    rows = _rows(problem)
    inputs = problem.x.channels
    slabs = -(-inputs // _SLAB)
    numbers = {
        "M": problem.batch,
        "N": problem.w.shape[0],
        "K": inputs,
        "DEPTH": -(-slabs // parts) * _SLAB,
        "STEP": problem.x.image,
    }
    threads, shared = _WARPS * 32, 0
    if rows:
        thread_rows = 4 if rows == 32 else 8
        threads = rows // thread_rows * (_FILTERS // 8)
        shared = 2 * _SLAB * (rows + 4 + _FILTERS + 4) * 4
        numbers |= {"BM": rows, "BN": _FILTERS, "RM": thread_rows, "RN": 8}
    source = source_of("rows.cu" if rows else "rows_few.cu", numbers | {"THREADS": threads})
    return Launch(source, (*_grid(problem), parts), (threads, 1, 1), shared)


def _total(problem: ContractionProblem, parts: int) -> Launch:
    """The point-wise kernel that adds up the parts and computes all stages."""
    total = argument(0)
    for i in range(1, parts):
        total = total + argument(i)
    reads = (CHAIN, *(Argument("tensor", i) for i in range(1, parts)))
    steps = [PointStep(linearize(total), reads)] if parts > 1 else []
    steps += [_shifted(stage.step, parts - 1) for stage in problem.stages]
    inputs = [dense(problem.y)] * parts + list(problem.others)
    return print_pointwise(problem.batch, inputs, problem.y, problem.vectors, steps)


def _shifted(step: PointStep, by: int) -> PointStep:
    """A step whose tensors have indices that are higher by ``by``."""
    arguments = (
        replace(a, index=a.index + by) if a.kind == "tensor" else a for a in step.arguments
    )
    return replace(step, arguments=tuple(arguments))
