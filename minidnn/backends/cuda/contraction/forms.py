"""The forms (algorithms) of a contraction that are worth trying, and a lower bound of their times.

The bound is that of memory traffic, so tuning can drop forms without building them.
"""

from __future__ import annotations

from math import prod

from ....graph.types import ITEMSIZE
from ..machine import Machine
from ..tensor import Tensor
from .graphs import can_be_product, fusable_stages, why_no_engine
from .kernel_registry import KERNELS
from .problem import ContractionProblem
from .recipe import CONVOLUTION, FIXED, PRODUCT, Form, sums_of, used

_CACHED = 3.0
"""Bandwidth of the L2 cache over that of memory, at most; 2 to 2.5 were seen on an H200."""


def least_milliseconds(problem: ContractionProblem, form: Form, machine: Machine) -> float:
    """A lower bound of a form's time: each of its kernels reads and writes each of its tensors at
    least once."""
    batch = problem.batch
    x, y = _bytes(problem.x, batch), _bytes(problem.y, batch)
    others = [_bytes(t, batch) for t in problem.others]
    seconds = 0.0
    if problem.gather is not None or (problem.before and form.kernel is None):
        prepared = _bytes(problem.gathered, batch)
        seconds += _seconds(machine, x + prepared)
        x = prepared
    residuals = [stage.index for stage in problem.stages[: form.stages] if stage.mode == "add"]
    weights = prod(problem.w.shape) * ITEMSIZE[problem.w.dtype]
    seconds += _seconds(machine, x + weights + y + sum(others[i] for i in residuals))
    if problem.front is not None:
        read_before = sum(_bytes(t, batch) for t in problem.front.tensors)
        seconds += _seconds(machine, read_before if form.front else read_before + y)
    if form.packed or form.stages < len(problem.stages):
        unfused, _, _ = used(problem, form.stages)
        seconds += _seconds(machine, 2 * y + sum(others[i] for i in unfused))
    if sums_of(problem, form):
        seconds += _seconds(machine, _bytes(problem.made, batch))
    return 1e3 * seconds


def _seconds(machine: Machine, bytes: int) -> float:
    """The least time to move that many bytes, which the L2 cache may hold where they are few."""
    return bytes / (machine.bandwidth * (_CACHED if bytes < machine.cache_bytes else 1.0))


def _bytes(t: Tensor, batch: int) -> int:
    return batch * t.channels * t.rows * t.columns * t.itemsize


def forms_of(problem: ContractionProblem, machine: Machine) -> list[Form]:
    """The forms on a machine, the most promising first: our kernels and cuDNN's first form in the
    order of :meth:`.ContractionKernel.price`, then cuDNN's other forms."""
    if problem.any_size:
        return _of_any_size(problem)
    stages = len(problem.stages)
    possible = [
        (kernel, Form(kernel.name, stages, front=front))
        for kernel in KERNELS.values()
        for front in ((False,) if problem.front is None else (True, False))
    ]
    priced = [
        (kernel.price(problem), form)
        for kernel, form in possible
        if kernel.refusal(form.of_core(problem), machine) is None
    ]
    cudnn = _by_cudnn(problem)
    priced += [(1.0, form) for form in cudnn[:1]]
    return [form for _, form in sorted(priced, key=lambda entry: entry[0])] + cudnn[1:]


def _of_any_size(problem: ContractionProblem) -> list[Form]:
    """The forms for planes of any size: cuDNN's fixed functions, which need no compiler."""
    levels = dict.fromkeys((_fixed_stages(problem), 0))
    packings = [False] if problem.is_dense else [False, True]
    return [Form(FIXED, level, packed) for level in levels for packed in packings]


def _by_cudnn(problem: ContractionProblem) -> list[Form]:
    """cuDNN's forms.

    It fuses all stages that it supports, or those before the first residual, since few engines
    support a residual; a kernel of ours computes the other stages.  A result that is a slice is
    written in place, or packed into the workspace and then copied.
    """
    if problem.is_whole:
        fused = Form(CONVOLUTION, len(problem.stages))
        return [fused] if why_no_engine(problem) is None else []
    cores = [CONVOLUTION, *([PRODUCT] if can_be_product(problem) else [])]
    if problem.direction != "forward":
        return [Form(core, 0) for core in (*cores, *([FIXED] if problem.is_exact else []))]
    fusable = fusable_stages(problem)
    adds = [i for i, stage in enumerate(problem.stages[:fusable]) if stage.mode == "add"]
    levels = list(dict.fromkeys((fusable, *adds[:1])))
    packings = [False] if problem.is_dense else [False, True]
    forms = [Form(core, level, packed) for level in levels for core in cores for packed in packings]
    if problem.is_exact:
        levels = list(dict.fromkeys((_fixed_stages(problem), 0)))
        forms += [Form(FIXED, level, packed) for level in levels for packed in packings]
    return forms


def last_resort(problem: ContractionProblem) -> list[Form]:
    """The forms that remain where cuDNN has no engine for any other: nothing is fused."""
    if problem.direction != "forward" or problem.is_whole:
        return []
    packings = [False] if problem.is_dense else [False, True]
    return [Form(CONVOLUTION, 0, packed) for packed in packings]


def _fixed_stages(problem: ContractionProblem) -> int:
    """How many stages cuDNN's fixed function fuses: bias, residual if any, ReLU."""
    if problem.vectors[:1] != (problem.y.dtype,):
        return 0
    modes = [stage.mode for stage in problem.stages[:3]]
    plain = [not stage.parameters for stage in problem.stages[:3]]
    for pattern in (["bias", "add", "relu"], ["bias", "relu"]):
        if modes[: len(pattern)] == pattern and all(plain[: len(pattern)]):
            return len(pattern)
    return 0
