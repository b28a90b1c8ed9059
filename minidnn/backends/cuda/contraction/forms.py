"""Which forms of a contraction are worth trying, and the least time that each can take."""

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
"""How many times the memory's rate the last cache gives at most; 2 to 2.5 were seen on an H200."""


def least_milliseconds(problem: ContractionProblem, form: Form, machine: Machine) -> float:
    """Each kernel of the form reads and writes each of its tensors once at least."""
    batch = problem.batch
    x, y = _bytes(problem.x, batch), _bytes(problem.y, batch)
    others = [_bytes(t, batch) for t in problem.others]
    seconds = 0.0
    if problem.gather is not None or (problem.before and form.kernel is None):
        prepared = _bytes(problem.gathered, batch)
        seconds += _seconds(machine, x + prepared)
        x = prepared
    read = [stage.index for stage in problem.stages[: form.stages] if stage.mode == "add"]
    weights = prod(problem.w.shape) * ITEMSIZE[problem.w.dtype]
    seconds += _seconds(machine, x + weights + y + sum(others[i] for i in read))
    if problem.front is not None:
        read_before = sum(_bytes(t, batch) for t in problem.front.tensors)
        seconds += _seconds(machine, read_before if form.front else read_before + y)
    if form.packed or form.stages < len(problem.stages):
        left, _, _ = used(problem, form.stages)
        seconds += _seconds(machine, 2 * y + sum(others[i] for i in left))
    if sums_of(problem, form):
        seconds += _seconds(machine, _bytes(problem.made, batch))
    return 1e3 * seconds


def _seconds(machine: Machine, bytes: int) -> float:
    """The least time to move that much, which may lie in the cache where it is small."""
    return bytes / (machine.bandwidth * (_CACHED if bytes < machine.cache_bytes else 1.0))


def _bytes(t: Tensor, batch: int) -> int:
    return batch * t.channels * t.rows * t.columns * t.itemsize


def forms_of(problem: ContractionProblem, machine: Machine) -> list[Form]:
    """The forms on a machine, the most promising first: the kernels of ours by their prices, which
    are multiples of what cuDNN's first form takes, and its others behind all."""
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
    return [form for _, form in sorted(priced, key=lambda one: one[0])] + cudnn[1:]


def _of_any_size(problem: ContractionProblem) -> list[Form]:
    """cuDNN's fixed functions, which are compiled already."""
    levels = dict.fromkeys((_fixed_stages(problem), 0))
    places = [False] if problem.is_dense else [False, True]
    return [Form(FIXED, level, packed) for level in levels for packed in places]


def _by_cudnn(problem: ContractionProblem) -> list[Form]:
    """It computes all stages that it knows, or those before the first residual, since a residual
    leaves it few engines; what it does not compute, a kernel of ours does.  A result that is a
    slice is written there or packed and carried over."""
    if problem.is_whole:
        fused = Form(CONVOLUTION, len(problem.stages))
        return [fused] if why_no_engine(problem) is None else []
    cores = [CONVOLUTION, *([PRODUCT] if can_be_product(problem) else [])]
    if problem.direction != "forward":
        return [Form(core, 0) for core in (*cores, *([FIXED] if problem.is_exact else []))]
    most = fusable_stages(problem)
    adds = [i for i, stage in enumerate(problem.stages[:most]) if stage.mode == "add"]
    levels = list(dict.fromkeys((most, *adds[:1])))
    places = [False] if problem.is_dense else [False, True]
    forms = [Form(core, level, packed) for level in levels for core in cores for packed in places]
    if problem.is_exact:
        levels = list(dict.fromkeys((_fixed_stages(problem), 0)))
        forms += [Form(FIXED, level, packed) for level in levels for packed in places]
    return forms


def last_resort(problem: ContractionProblem) -> list[Form]:
    """What is left where cuDNN has no engine for any of the forms: the convolution by itself."""
    if problem.direction != "forward" or problem.is_whole:
        return []
    places = [False] if problem.is_dense else [False, True]
    return [Form(CONVOLUTION, 0, packed) for packed in places]


def _fixed_stages(problem: ContractionProblem) -> int:
    """How many stages the fused fixed function takes: bias, residual if any, ReLU."""
    if problem.vectors[:1] != (problem.y.dtype,):
        return 0
    modes = [stage.mode for stage in problem.stages[:3]]
    plain = [not stage.parameters for stage in problem.stages[:3]]
    for pattern in (["bias", "add", "relu"], ["bias", "relu"]):
        if modes[: len(pattern)] == pattern and all(plain[: len(pattern)]):
            return len(pattern)
    return 0
