"""Linear layers in exact float32 by kernels of ours, which share out the sum over the inputs too.

cuDNN gives each block all inputs of some outputs; a classifier of few rows then has work for a
quarter of an H200's multiprocessors.  Here parts of the sum are computed side by side into the
workspace, and a second kernel adds them, always in the same order, with what follows.
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
"""Rows, up to which the filters are read straight into registers."""
MOST = 512
"""Rows; with more there is work for all multiprocessors without dividing sums."""
_SLAB = 16
_FILTERS = 128
_WARPS = 8
_MOST_PARTS = 32
_LEAST_DEPTH = 128
_BUSY = 0.96
"""The share of the multiprocessors that have work at least."""


class RowsKernel(ContractionKernel):
    """Linear layers of few rows; a choice is into how many parts sums are divided."""

    name = "rows"

    def why_not(self, problem: ContractionProblem, machine: Machine) -> str | None:
        x, y = problem.x, problem.y
        if not problem.is_exact:
            return "its products need not be exact float32"
        if not problem.is_pointwise or x.rows * x.columns != 1 or problem.before:
            return "it is no linear layer"
        if problem.batch > MOST:
            return f"it has {problem.batch} rows"
        if x.channel != 1 or any(step % 4 for step in (x.channels, x.offset, x.image)):
            return "its rows are no whole chunks of 4 inputs"
        return None if y.channel == 1 else "its results lie apart"

    def price(self, problem: ContractionProblem) -> float:
        return 0.6

    def choices(self, problem: ContractionProblem, machine: Machine) -> Sequence[int]:
        """As many parts as give most multiprocessors work, twice and four times as many."""
        blocks = prod(_grid(problem))
        most = min(_MOST_PARTS, max(1, problem.x.channels // _LEAST_DEPTH))
        least = min(most, ceil(_BUSY * machine.multiprocessors / blocks))
        return list(dict.fromkeys(min(most, least * times) for times in (2, 1, 4)))

    def launches(
        self, problem: ContractionProblem, choice: int, machine: Machine
    ) -> Sequence[Launch]:
        """The products of each part, and their sum with all stages.

        Arguments of the first: image, filter, parts; of the second: each part, the others, the
        vectors, the result.
        """
        return _product(problem, choice), _total(problem, choice)

    def arguments(
        self, problem: ContractionProblem, choice: int, at: Addresses, machine: Machine
    ) -> list[list[KernelArgument]]:
        every = [at.workspace + i * _part_bytes(problem) for i in range(choice)]
        return [[at.x, at.w, at.workspace], [*every, *at.others, *at.vectors, at.y]]

    def workspace(self, problem: ContractionProblem, choice: int, machine: Machine) -> int:
        """Bytes of all parts."""
        return choice * _part_bytes(problem)

    def shape(self, choice: int) -> str:
        return f"in {choice} parts"


def _part_bytes(problem: ContractionProblem) -> int:
    return problem.batch * problem.w.shape[0] * 4


def _rows(problem: ContractionProblem) -> int:
    """Rows of a block; 0 where each warp takes them all."""
    if problem.batch <= FEW:
        return 0
    return next((rows for rows in (32, 64) if problem.batch <= rows), 128)


def _grid(problem: ContractionProblem) -> tuple[int, int]:
    """Blocks across the filters and down the rows."""
    filters, rows = problem.w.shape[0], _rows(problem)
    if not rows:
        return -(-filters // _WARPS), 1
    return -(-filters // _FILTERS), -(-problem.batch // rows)


def _product(problem: ContractionProblem, parts: int) -> Launch:
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
        each = 4 if rows == 32 else 8
        threads = rows // each * (_FILTERS // 8)
        shared = 2 * _SLAB * (rows + 4 + _FILTERS + 4) * 4
        numbers |= {"BM": rows, "BN": _FILTERS, "RM": each, "RN": 8}
    source = source_of("rows.cu" if rows else "rows_few.cu", numbers | {"THREADS": threads})
    return Launch(source, (*_grid(problem), parts), (threads, 1, 1), shared)


def _total(problem: ContractionProblem, parts: int) -> Launch:
    whole = argument(0)
    for i in range(1, parts):
        whole = whole + argument(i)
    reads = (CHAIN, *(Argument("tensor", i) for i in range(1, parts)))
    steps = [PointStep(linearize(whole), reads)] if parts > 1 else []
    steps += [_shifted(stage.step, parts - 1) for stage in problem.stages]
    inputs = [dense(problem.y)] * parts + list(problem.others)
    return print_pointwise(problem.batch, inputs, problem.y, problem.vectors, steps)


def _shifted(step: PointStep, by: int) -> PointStep:
    """A step whose tensors stand behind so many others."""
    moved = (replace(a, index=a.index + by) if a.kind == "tensor" else a for a in step.arguments)
    return replace(step, arguments=tuple(moved))
